"""Diagnostics of chains against series whose effective size is known."""

import numpy as np
import pytest

from opu.teachers.diagnostics import Mixing, effective_sample_size, mixing, split_r_hat

CHAINS, LENGTH, QUANTITIES = 4, 2000, 50


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def autoregressive(rng, rho, chains=CHAINS, length=LENGTH, quantities=QUANTITIES):
    """Stationary series whose neighbours have correlation rho."""
    x = rng.normal(size=(chains, length, quantities))
    for t in range(1, length):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * x[:, t]
    return x


def slow_ess(draws):
    """Geyer's monotone sequence, one quantity and one lag at a time, straight from the definition."""
    half = draws.shape[1] // 2
    parts = [part for chain in draws for part in (chain[:half], chain[-half:])]
    within = np.mean([part.var(ddof=1) for part in parts])
    total = within * (half - 1) / half + np.var([part.mean() for part in parts], ddof=1)

    def correlation(lag):
        if lag == 0:
            return 1.0
        products = [((part - part.mean())[lag:] * (part - part.mean())[: half - lag]).sum() / half for part in parts]
        return 1 - (within - np.mean(products)) / total

    time, last = -1.0, np.inf
    for lag in range(0, half - 1, 2):
        pair = correlation(lag) + correlation(lag + 1)
        if pair <= 0:
            break
        last = min(last, pair)
        time += 2 * last
    count = len(parts) * half
    return count / max(time, 1 / np.log10(count))


def test_independent_draws_count_in_full_and_agree(rng):
    draws = rng.normal(size=(CHAINS, LENGTH, QUANTITIES))
    ess = effective_sample_size(draws)
    # Each sum of autocorrelations has an error of a few sqrt(2 / S); the median over quantities has far less.
    assert np.median(ess) == pytest.approx(CHAINS * LENGTH, rel=0.03)
    assert ess.min() > 0.8 * CHAINS * LENGTH
    assert abs(split_r_hat(draws) - 1).max() < 0.005


@pytest.mark.parametrize("rho", [0.5, 0.9])
def test_an_autoregressive_series_is_worth_what_theory_says(rng, rho):
    ess = effective_sample_size(autoregressive(rng, rho))
    assert np.median(ess) == pytest.approx(CHAINS * LENGTH * (1 - rho) / (1 + rho), rel=0.07)


def test_draws_that_repel_each_other_are_worth_more_than_independent_ones(rng):
    rho, total = -0.4, CHAINS * LENGTH
    ess = effective_sample_size(autoregressive(rng, rho))
    assert np.median(ess) == pytest.approx(total * (1 - rho) / (1 + rho), rel=0.07)
    extreme = effective_sample_size(autoregressive(rng, -0.99))
    np.testing.assert_allclose(extreme, total * np.log10(total))  # where the bound is reached


@pytest.mark.parametrize("length", [4, 5, 60, 61])
def test_the_vectorised_sizes_are_those_of_the_definition(rng, length):
    draws = autoregressive(rng, 0.6, chains=3, length=length, quantities=5) + rng.normal(size=(3, 1, 5)) / 3
    expected = [slow_ess(draws[:, :, q]) for q in range(5)]
    np.testing.assert_allclose(effective_sample_size(draws), expected, rtol=1e-9)


def test_r_hat_is_its_formula_by_hand():
    # Halves 0 1 | 2 3 and 0 1 | 0 1: W = 1/2, B/n = variance of .5 2.5 .5 .5 = 1, so var+ = 1/4 + 1.
    draws = np.array([[0.0, 1, 2, 3], [0, 1, 0, 1]])[:, :, None]
    np.testing.assert_allclose(split_r_hat(draws), np.sqrt(1.25 / 0.5))


def test_chains_with_different_means_are_told_apart(rng):
    draws = rng.normal(size=(CHAINS, LENGTH, QUANTITIES)) + np.arange(CHAINS)[:, None, None]
    assert split_r_hat(draws).min() > 1.1
    assert effective_sample_size(draws).max() < 50


def test_one_chain_that_drifts_disagrees_with_itself(rng):
    draws = rng.normal(size=(1, LENGTH, 3)) + np.linspace(0, 3, LENGTH)[None, :, None]
    assert split_r_hat(draws).min() > 1.1


def test_neither_place_nor_scale_nor_company_matters(rng):
    draws = autoregressive(rng, 0.7, length=300, quantities=300)
    ess, ratio = effective_sample_size(draws), split_r_hat(draws)
    np.testing.assert_allclose(effective_sample_size(5 - 1e3 * draws), ess, rtol=1e-6)
    np.testing.assert_allclose(split_r_hat(5 - 1e3 * draws), ratio, rtol=1e-9)
    np.testing.assert_allclose(effective_sample_size(draws[:, :, 280:290]), ess[280:290], rtol=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6])  # the mean of three times 0.1 is not 0.1
def test_a_quantity_that_never_changes_is_known_exactly(value):
    draws = np.full((2, 6, 1), value)
    assert effective_sample_size(draws) == 12
    assert split_r_hat(draws) == 1


def test_chains_that_each_stand_still_elsewhere_have_no_finite_r_hat():
    draws = np.broadcast_to(np.array([0.1, 0.3])[:, None, None], (2, 10, 1))
    assert split_r_hat(draws) == np.inf
    assert effective_sample_size(draws) < 3


def test_the_worst_of_all_parts_is_reported(rng):
    good = rng.normal(size=(CHAINS, 500, 3))
    bad = autoregressive(rng, 0.95, length=500, quantities=2)
    found = mixing(iter([good, bad]))
    sizes = np.concatenate([effective_sample_size(good), effective_sample_size(bad)])
    ratio = max(split_r_hat(good).max(), split_r_hat(bad).max())
    assert found == Mixing(sizes.min(), np.median(sizes), ratio)
    assert found.min_ess < 200 < found.median_ess


@pytest.mark.parametrize("shape", [(2, 3, 1), (0, 10, 1), (2, 10, 0)])
def test_too_few_draws_are_refused(shape):
    with pytest.raises(ValueError, match=r"at least 4 draws each of at least one quantity"):
        split_r_hat(np.zeros(shape))


def test_draws_that_are_not_numbers_are_refused():
    with pytest.raises(ValueError, match="draws must be finite"):
        effective_sample_size(np.full((2, 10, 1), np.nan))
