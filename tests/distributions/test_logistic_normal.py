"""The logistic-normal against SciPy's Gaussian, quadrature, a million samples, and the laws that every batch must obey."""

import math

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats
from torch import Tensor

from opu import measures
from opu.distributions import Dirichlet, LogisticNormal, cat, fit_logistic_normal
from opu.distributions.normal_rule import MOST_POINTS, normal_points, num_points_for

laws = settings(deadline=None, max_examples=30, derandomize=True)
SHAPES = ((2, 0), (2, 3), (3, 1), (5, 2), (10, 4), (47, 4))
shapes = pytest.mark.parametrize(("num_classes", "rank"), SHAPES)


def some(num_classes: int, rank: int, batch: int = 4, spread: float = 0.5, seed: int = 0) -> LogisticNormal:
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    scales = math.log(spread) + 0.3 * normal(batch, num_classes)
    return LogisticNormal(2 * normal(batch, num_classes), scales, spread * normal(batch, num_classes, rank))


def basis(num_classes: int) -> np.ndarray:
    """Orthonormal directions of log-ratios that sum to 0."""
    return np.linalg.svd(np.eye(num_classes) - 1 / num_classes)[0][:, : num_classes - 1]


def gaussian(q: LogisticNormal, row: int) -> stats.rv_continuous:
    directions, factors = basis(q.num_classes), q.factors[row].numpy()
    covariance = np.diag(np.exp(2 * q.log_scale[row].numpy())) + factors @ factors.T
    return stats.multivariate_normal(directions.T @ q.location[row].numpy(), directions.T @ covariance @ directions)


# Density and entropy


@shapes
def test_the_density_of_log_ratios_is_that_of_a_gaussian(num_classes, rank):
    q = some(num_classes, rank)
    points = q.log_rsample(7)
    ratios = (points - points.mean(-1, keepdim=True)).numpy()
    for row in range(len(q)):
        want = gaussian(q, row).logpdf(ratios[:, row] @ basis(num_classes))
        np.testing.assert_allclose(q.log_ratio_log_prob(points)[:, row], want, rtol=1e-9, atol=1e-9)


def test_the_density_on_the_simplex_integrates_to_one():
    q = some(2, 1, batch=1)

    def density(p: float) -> float:
        return float(q.log_prob(torch.tensor([[p, 1 - p]], dtype=torch.float64).log()).exp())

    assert integrate.quad(density, 0, 1)[0] == pytest.approx(1, abs=1e-7)


def test_with_two_classes_the_density_is_that_of_a_logit_normal():
    q = some(2, 2, batch=1)
    p = 0.3
    middle = float(q.location[0, 0] - q.location[0, 1])
    spread = math.sqrt(float(torch.exp(2 * q.log_scale).sum() + q.factors.diff(dim=-2).square().sum()))
    want = stats.norm(middle, spread).logpdf(math.log(p / (1 - p))) - math.log(p * (1 - p))
    assert float(q.log_prob(torch.tensor([[p, 1 - p]], dtype=torch.float64).log())) == pytest.approx(want, rel=1e-12)


@shapes
def test_the_entropy_is_the_mean_of_minus_the_log_density(num_classes, rank):
    q = some(num_classes, rank, batch=2, spread=0.3)
    points = q.log_rsample(20_000)
    values = -q.log_prob(points)
    error = values.std(0) / math.sqrt(len(values))
    # The part that is not in closed form is a sum over classes, and the fixed points have an error of their own.
    assert ((q.entropy() - values.mean(0)).abs() < 5 * error + 2e-3 * num_classes).all()


@shapes
def test_the_entropy_of_log_ratios_is_scipys(num_classes, rank):
    q = some(num_classes, rank)
    for row in range(len(q)):
        on_simplex = float(q.entropy()[row] - q.log_points()[:, row].sum(-1).mean()) - 0.5 * math.log(num_classes)
        assert on_simplex == pytest.approx(gaussian(q, row).entropy(), rel=1e-9)


# Expectations by the fixed points


def by_sampling(q: LogisticNormal, draws: int = 1_000_000) -> dict[str, Tensor]:
    mean, entropies = 0, 0
    for _ in range(draws // 50_000):
        points = q.log_rsample(50_000)
        mean = mean + points.exp().mean(0)
        entropies = entropies - (points.exp() * points).sum(-1).mean(0)
    mean, expected = mean * 50_000 / draws, entropies * 50_000 / draws
    return {
        "mean": mean,
        "expected_entropy": expected,
        "mutual_information": torch.special.entr(mean).sum(-1) - expected,
    }


@pytest.mark.parametrize(("num_classes", "rank"), [(2, 3), (3, 1), (10, 4)])
@pytest.mark.parametrize(("spread", "most"), [(0.1, 0.001), (0.3, 0.015), (1.0, 0.1)])
def test_the_fixed_points_agree_with_a_million_samples(num_classes, rank, spread, most):
    q = some(num_classes, rank, batch=3, spread=spread)
    want = by_sampling(q)
    assert ((q.mean - want["mean"]).abs().sum(-1) / 2).max() < most / 2
    assert (q.expected_entropy() - want["expected_entropy"]).abs().max() < most
    information = want["mutual_information"]
    assert ((q.mutual_information() - information).abs() / information).max() < 0.15


def test_averages_over_the_points_are_those_of_particles():
    for dtype, digits in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        q = some(6, 3, spread=0.7).to(dtype)
        points = q.log_points()
        for name in ("predictive_entropy", "expected_entropy", "mutual_information", "least_confidence"):
            measure = measures.MEASURES[name]
            torch.testing.assert_close(measure(q), measure(points), rtol=digits, atol=0)


def test_with_two_classes_the_mean_is_that_of_quadrature():
    q = some(2, 2, batch=6, spread=1.0)
    for row in range(len(q)):
        middle = float(q.location[row, 0] - q.location[row, 1])
        spread = math.sqrt(float(torch.exp(2 * q.log_scale[row]).sum() + q.factors[row].diff(dim=-2).square().sum()))
        want = stats.norm(middle, spread).expect(special.expit)
        assert float(q.mean[row, 0]) == pytest.approx(want, abs=2e-3)


@pytest.mark.parametrize(("num_classes", "rank"), [(2, 1), (3, 1), (10, 4), (47, 4)])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_intervals_hold_their_level(num_classes, rank, level, spread):
    q = some(num_classes, rank, batch=3, spread=spread)
    low, high = q.interval(level)
    points = q.rsample(20_000)
    inside = ((points >= low) & (points <= high)).double().mean(0)
    assert (inside - level).square().mean().sqrt() < 0.025
    assert (inside - level).abs().max() < 0.09
    if level == 0.9:
        assert (inside - level).abs().max() < 0.03
    below = (points < low).double().mean(0)
    assert (below - (1 - level) / 2).square().mean().sqrt() < 0.025
    assert ((low >= 0) & (low <= high) & (high <= 1)).all()


@pytest.mark.parametrize(("num_classes", "rank"), [(2, 1), (3, 1), (10, 4)])
def test_intervals_are_the_same_in_blocks_of_any_size(num_classes, rank, monkeypatch):
    q = some(num_classes, rank, batch=5)
    want = q.interval()
    for few in (1, 100, 10**8):  # one point of one row, some points, everything
        monkeypatch.setattr("opu.distributions.logistic_normal._NUMBERS_AT_ONCE", few)
        for one, other in zip(q.interval(), want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=0)


def test_an_interval_of_one_distribution_has_no_batch():
    q = some(4, 2, batch=3)
    assert all((one == all_of[1]).all() for one, all_of in zip(q[1].interval(), q.interval(), strict=True))


def test_the_level_of_an_interval_is_checked():
    with pytest.raises(ValueError, match="must lie between 0 and 1; got 1"):
        some(3, 1).interval(1.0)


def test_half_the_spread_is_the_mutual_information_where_it_is_small():
    q = some(6, 2, spread=0.02)
    spread = torch.exp(math.log(q.num_classes - 1) - q.log_precision)
    torch.testing.assert_close(spread / 2, q.mutual_information(), rtol=2e-3, atol=0)


def test_the_log_precision_is_that_of_the_dirichlet_that_a_fit_came_from():
    truth = Dirichlet.from_concentration(torch.tensor([[300.0, 200.0, 500.0], [3000.0, 100.0, 900.0]]).double())
    fitted = fit_logistic_normal(truth.log_rsample(20_000))
    torch.testing.assert_close(fitted.log_precision, truth.log_precision, atol=0.05, rtol=0)


def test_the_spread_does_not_depend_on_classes_that_are_next_to_impossible():
    logits = torch.tensor([[1.0, 0.0, -80.0]], dtype=torch.float64)
    near, far = (
        LogisticNormal(logits, torch.tensor([[-1.0, -1.0, s]], dtype=torch.float64), torch.zeros(1, 3, 0).double())
        for s in (-1.0, 1.0)
    )
    torch.testing.assert_close(near.log_precision, far.log_precision, rtol=1e-9, atol=0)


# Laws


@given(seed=st.integers(0, 10**6), shape=st.sampled_from(SHAPES), spread=st.floats(1e-3, 5))
@laws
def test_adding_a_number_to_all_logits_changes_nothing(seed, shape, spread):
    q = some(*shape, spread=spread, seed=seed)
    moved = LogisticNormal(q.location + 3, q.log_scale, q.factors + torch.tensor(2.0))
    for name in ("mean", "log_precision"):
        torch.testing.assert_close(getattr(moved, name), getattr(q, name))
    torch.testing.assert_close(moved.entropy(), q.entropy())


@given(seed=st.integers(0, 10**6), shape=st.sampled_from(SHAPES))
@laws
def test_densities_follow_a_permutation_of_the_classes(seed, shape):
    q = some(*shape, seed=seed)
    order = torch.randperm(q.num_classes, generator=torch.Generator().manual_seed(seed))
    turned = LogisticNormal(q.location[:, order], q.log_scale[:, order], q.factors[:, order])
    points = q.log_rsample(3)
    torch.testing.assert_close(turned.log_prob(points[..., order]), q.log_prob(points), rtol=1e-8, atol=1e-8)


def test_the_mean_follows_a_permutation_up_to_the_error_of_the_points():
    q = some(10, 4, batch=20)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    turned = LogisticNormal(q.location[:, order], q.log_scale[:, order], q.factors[:, order])
    assert ((turned.mean - q.mean[:, order]).abs().sum(-1) / 2).max() < 0.03


@given(seed=st.integers(0, 10**6), shape=st.sampled_from(SHAPES), spread=st.floats(1e-4, 50))
@laws
def test_measures_are_finite_and_ordered(seed, shape, spread):
    q = some(*shape, spread=spread, seed=seed).to(torch.float32)
    found = measures.all_measures(q)
    assert all(values.isfinite().all() for values in found.values())
    assert (found["mutual_information"] >= 0).all()
    total = found["expected_entropy"] + found["mutual_information"]
    torch.testing.assert_close(found["predictive_entropy"], total, rtol=1e-4, atol=1e-6)
    assert (found["predictive_entropy"] <= math.log(q.num_classes) + 1e-5).all()


def test_a_wider_distribution_is_more_uncertain():
    narrow, wide = some(5, 2, spread=0.1), some(5, 2, spread=1.0)
    assert (wide.mutual_information() > narrow.mutual_information()).all()
    assert (wide.log_precision < narrow.log_precision).all()


def test_next_to_a_corner_float32_keeps_its_digits():
    logits = torch.tensor([[21.0, 0.0, -1.0]])
    q32 = LogisticNormal(logits, torch.full((1, 3), -1.0), torch.zeros(1, 3, 1))
    for name in ("predictive_entropy", "least_confidence", "mutual_information", "negative_log_precision"):
        exact = measures.MEASURES[name](q32.to(torch.float64))
        torch.testing.assert_close(measures.MEASURES[name](q32).double(), exact, rtol=1e-3, atol=0)
    assert float(measures.least_confidence(q32)) > 0


def test_gradients_agree_with_finite_differences():
    torch.manual_seed(1)
    values = [torch.randn(2, 4), torch.randn(2, 4), torch.randn(2, 4, 2)]
    values = [v.double().requires_grad_() for v in values]
    points = torch.randn(3, 2, 4, dtype=torch.float64).log_softmax(-1)

    def all_of(*parameters: Tensor) -> tuple[Tensor, ...]:
        q = LogisticNormal(*parameters)
        return q.log_prob(points), q.entropy(), q.mean, q.mutual_information(), q.log_precision, q.log_points(8)

    assert torch.autograd.gradcheck(all_of, values, atol=1e-6)


# As a value


def test_rows_are_chosen_joined_replaced_and_blanked():
    q = some(4, 2, batch=5)
    again = cat([q[:2], q[2:]])
    assert (again.location == q.location).all()
    assert (again.factors == q.factors).all()
    other = q.replaced(torch.tensor([1, 3]), some(4, 2, batch=2, seed=9))
    assert (other.location[[0, 2, 4]] == q.location[[0, 2, 4]]).all()
    assert (other.location[[1, 3]] == some(4, 2, batch=2, seed=9).location).all()
    known = torch.tensor([True, False, True, True, False])
    assert (q.where(known).mean.isfinite().all(-1) == known).all()


def test_an_empty_batch_is_a_batch():
    q = some(3, 1)[:0]
    assert q.mean.shape == (0, 3)
    assert q.interval()[0].shape == (0, 3)
    assert q.entropy().shape == q.mutual_information().shape == q.log_precision.shape == (0,)


def test_shapes_that_disagree_are_refused(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users have it
    words = r"locations of shape \(2, 3\), log-scales of shape \(2, 4\)"
    with pytest.raises(ValueError, match=words):
        LogisticNormal(torch.zeros(2, 3), torch.zeros(2, 4), torch.zeros(2, 3, 1))


# The rule


@pytest.mark.parametrize("dimensions", [1, 2, 12, 31, 51, 120])
def test_points_have_the_moments_of_a_normal_distribution(dimensions):
    points = normal_points(num_points_for(dimensions), dimensions)
    assert points.mean(0).abs().max() < 1e-12
    assert points.pow(3).mean(0).abs().max() < 1e-12
    second = points.mT @ points / len(points)
    torch.testing.assert_close(second.diagonal(), torch.ones(dimensions, dtype=torch.float64))
    if 2 * dimensions < len(points):
        torch.testing.assert_close(second, torch.eye(dimensions, dtype=torch.float64), atol=1e-10, rtol=0)


def test_points_are_the_same_whatever_the_random_state():
    normal_points.cache_clear()
    torch.manual_seed(0)
    before, state = normal_points(64, 5), torch.get_rng_state()
    torch.manual_seed(1)
    normal_points.cache_clear()
    assert (normal_points(64, 5) == before).all()
    torch.manual_seed(0)
    assert (torch.get_rng_state() == state).all()


def test_the_number_of_points_grows_with_the_dimensions_up_to_a_limit():
    assert [num_points_for(d) for d in (1, 14, 31, 51, 127, 1004)] == [64, 64, 64, 128, MOST_POINTS, MOST_POINTS]


def test_a_thousand_classes_are_predicted():
    q = some(1000, 4, batch=2, spread=0.3).to(torch.float32)
    torch.testing.assert_close(q.mean.sum(-1), torch.ones(2))
    assert all(values.isfinite().all() for values in measures.all_measures(q).values())
    low, high = q.interval()
    inside = ((q.rsample(2000) >= low) & (q.rsample(2000) <= high)).double().mean()
    assert inside == pytest.approx(0.9, abs=0.05)


# Fits to particles


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_a_fit_has_the_moments_of_the_log_ratios(num_classes):
    points = some(num_classes, 2, batch=3).log_rsample(400)
    q = fit_logistic_normal(points)
    ratios = points - points.mean(-1, keepdim=True)
    torch.testing.assert_close(q.location, ratios.mean(0))
    centring = torch.eye(num_classes, dtype=torch.float64) - 1 / num_classes
    for row in range(3):
        covariance = torch.cov(ratios[:, row].mT)
        fitted = torch.diag(torch.exp(2 * q.log_scale[row])) + q.factors[row] @ q.factors[row].mT
        torch.testing.assert_close(centring @ fitted @ centring, covariance, rtol=1e-3, atol=1e-5)


def test_a_fit_recovers_the_distribution():
    truth = some(5, 2, batch=2)
    q = fit_logistic_normal(truth.log_rsample(50_000))
    torch.testing.assert_close(q.mean, truth.mean, atol=0.02, rtol=0)
    torch.testing.assert_close(q.mutual_information(), truth.mutual_information(), rtol=0.1, atol=0)


def test_few_factors_keep_the_variance_of_each_log_ratio():
    points = some(10, 4, batch=2).log_rsample(300)
    q = fit_logistic_normal(points, rank=1)
    variance = (points - points.mean(-1, keepdim=True)).var(0)
    torch.testing.assert_close(torch.exp(2 * q.log_scale) + q.factors.square().sum(-1), variance, rtol=0.01, atol=1e-3)


def test_fits_to_odd_particles_are_finite():
    same = torch.tensor([0.7, 0.2, 0.1]).log().expand(20, 2, 3)
    sure = torch.tensor([[0.0, -torch.inf, -torch.inf]]).expand(20, 1, 3)
    few = torch.randn(2, 3, 4).log_softmax(-1)
    for particles in (same, sure, few):
        found = measures.all_measures(fit_logistic_normal(particles))
        assert all(values.isfinite().all() for values in found.values())
    with pytest.raises(ValueError, match="at least two particles per input; got 1"):
        fit_logistic_normal(few[:1])
