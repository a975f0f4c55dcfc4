"""Polya-Gamma sampling against posteriors that are known by quadrature, and its laws."""

import sys
import warnings

import numpy as np
import pytest
import torch

from opu.teachers import GibbsSettings, polya_gamma
from opu.teachers.diagnostics import effective_sample_size, mixing, split_r_hat
from opu.teachers.logistic import polya_gamma_source


def quick(**options):
    return GibbsSettings(**{"burn_in": 50, "thinning": 2, "num_samples": 4000, **options})


def one_feature(num_rows=40, slope=1.5, intercept=-0.5):
    x = torch.randn(num_rows, 1, dtype=torch.float64)
    return x, (torch.rand(num_rows) < torch.sigmoid(slope * x[:, 0] + intercept)).long()


def by_quadrature(x, labels, prior_variance, reach=9.0, points=601):
    """Mean and covariance of the posterior of one or two coefficients, summed over a fine grid."""
    x, sign = np.asarray(x), 2 * np.asarray(labels) - 1.0
    axis = np.linspace(-reach, reach, points)
    theta = np.stack(np.meshgrid(*[axis] * x.shape[1], indexing="ij"), -1).reshape(-1, x.shape[1])
    log_density = -0.5 * np.square(theta).sum(1) / prior_variance
    for row, s in zip(x, sign, strict=True):
        log_density -= np.logaddexp(0, -s * (theta @ row))
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    mean = weight @ theta
    return mean, (theta - mean).T @ ((theta - mean) * weight[:, None])


def chains_of(draws, num_chains=4):
    """Pooled draws (S, F) as (chains, draws, F): neighbours come from different chains."""
    return np.asarray(draws).reshape(-1, num_chains, draws.shape[-1]).swapaxes(0, 1)


def assert_moments(draws, mean, covariance):
    """Mean and covariance within four and a half standard errors, which follow from the effective sample size."""
    draws = np.asarray(draws)
    spread = np.sqrt(np.diag(covariance))
    miss = np.abs(draws.mean(0) - mean) / (spread / np.sqrt(effective_sample_size(chains_of(draws))))
    assert miss.max() < 4.5
    centred = (draws - mean) / spread
    products = (centred[:, :, None] * centred[:, None, :]).reshape(len(draws), -1)
    expected = (covariance / np.outer(spread, spread)).ravel()
    error = products.std(0) / np.sqrt(effective_sample_size(chains_of(products)))
    assert (np.abs(products.mean(0) - expected) < 4.5 * error).all()


def pooled(teacher):
    """Coefficients and intercept of a binary fit, in one matrix."""
    return torch.cat([teacher.coefficients[:, 0], teacher.intercepts], 1)


@pytest.mark.parametrize("z", [0.0, -0.5, 3.0, 12.0, 39.0, -41.0, 150.0, 500.0, -1e6])
def test_polya_gamma_variables_have_their_moments_however_large_the_logit(z):
    count, size = 40_000, abs(z)
    omega = polya_gamma_source(np.random.default_rng(1))(np.full(count, z))
    mean = 0.25 if z == 0 else np.tanh(size / 2) / (2 * size)
    # (sinh z - z) / (4 z^3 cosh^2(z / 2)), written so that nothing overflows.
    damped = 2 * (1 - np.exp(-2 * size) - 2 * size * np.exp(-size)) / (1 + np.exp(-size)) ** 2
    variance = 1 / 24 if z == 0 else damped / (4 * size**3)
    assert abs(omega.mean() - mean) < 4.5 * np.sqrt(variance / count)
    fourth = np.mean((omega - mean) ** 4)
    assert abs(np.mean((omega - mean) ** 2) - variance) < 4.5 * np.sqrt((fourth - variance**2) / count)


def test_near_the_border_both_ways_of_drawing_give_one_law():
    from scipy.stats import ks_2samp

    draw = polya_gamma_source(np.random.default_rng(2))
    below, above = draw(np.full(20_000, 39.999)), draw(np.full(20_000, 40.001))
    assert ks_2samp(below, above).pvalue > 1e-3


@pytest.mark.parametrize("prior_variance", [0.3, 1.0, 4.0])
def test_one_coefficient_has_the_posterior_of_quadrature(prior_variance):
    x, labels = one_feature()
    teacher = polya_gamma(x, labels, quick(prior_variance=prior_variance, intercept=False))
    assert float(teacher.intercepts.abs().max()) == 0
    assert_moments(teacher.coefficients[:, 0], *by_quadrature(x, labels, prior_variance))


@pytest.mark.parametrize("prior_variance", [0.5, 2.0])
def test_a_coefficient_and_an_intercept_have_the_posterior_of_quadrature(prior_variance):
    x, labels = one_feature(intercept=1.0)
    teacher = polya_gamma(x, labels, quick(prior_variance=prior_variance))
    design = torch.cat([x, torch.ones_like(x)], 1)
    assert_moments(pooled(teacher), *by_quadrature(design, labels, prior_variance))


def test_two_correlated_coefficients_have_the_posterior_of_quadrature():
    x = torch.randn(30, 2, dtype=torch.float64) @ torch.tensor([[1.0, 0.8], [0.0, 0.6]]).double()
    labels = (x[:, 0] > 0.2).long()  # separable, so that only the prior keeps the posterior proper
    teacher = polya_gamma(x, labels, quick(thinning=5, intercept=False))
    assert_moments(teacher.coefficients[:, 0], *by_quadrature(x, labels, 1.0))


def test_rows_that_say_nothing_leave_the_prior():
    teacher = polya_gamma(
        torch.zeros(6, 3), torch.tensor([0, 1] * 3), quick(prior_variance=2.5, intercept=False, burn_in=0)
    )
    assert_moments(teacher.coefficients[:, 0], np.zeros(3), 2.5 * np.eye(3))
    assert teacher.diagnostics["logits"].max_r_hat == 1  # all are 0


def test_a_class_without_rows_keeps_its_prior():
    x, labels = one_feature()
    teacher = polya_gamma(x, labels, quick(prior_variance=0.5), num_classes=4)
    assert teacher.num_classes == 4
    # Nobody is above class 1: logit 1 has rows that all say no, and logit 2 has no rows at all.
    nobody = torch.cat([teacher.coefficients[:, 2], teacher.intercepts[:, 2:]], 1)
    assert_moments(nobody, np.zeros(2), 0.5 * np.eye(2))
    assert float(teacher.intercepts[:, 1].mean()) < -0.5


def test_exchanging_the_two_classes_turns_the_signs():
    x, labels = one_feature(intercept=1.0)
    there, back = (pooled(polya_gamma(x, y, quick())).numpy() for y in (labels, 1 - labels))
    error = [d.std(0) / np.sqrt(effective_sample_size(chains_of(d))) for d in (there, back)]
    gap = np.abs(there.mean(0) + back.mean(0))
    assert (gap < 4.5 * np.hypot(*error)).all()
    assert (np.abs(there.mean(0)) > 20 * error[0]).any()


def test_each_logit_of_three_classes_is_a_binary_regression_on_the_rows_that_reach_it():
    x, _ = one_feature(60)
    labels = torch.arange(60) % 3
    teacher = polya_gamma(x, labels, quick(intercept=False))
    for k in range(2):
        rows = labels >= k
        mean, covariance = by_quadrature(x[rows], labels[rows] > k, 1.0)
        assert_moments(teacher.coefficients[:, k], mean, covariance)


def test_a_known_model_of_four_classes_is_recovered():
    torch.manual_seed(1)
    truth, shift = torch.tensor([[1.0, -1.0], [0.5, 1.5], [-1.0, 0.5]]), torch.tensor([0.8, 0.5, 0.0])
    x = torch.randn(4000, 2)
    reach = torch.sigmoid(x @ truth.T + shift)
    left = torch.cat([torch.ones(4000, 1), reach.cumprod(1)], 1)
    probabilities = left * torch.cat([1 - reach, torch.ones(4000, 1)], 1)
    labels = probabilities.multinomial(1)[:, 0]
    teacher = polya_gamma(x, labels, quick(num_samples=200, thinning=3))
    draws = torch.cat([teacher.coefficients, teacher.intercepts.unsqueeze(-1)], -1)
    expected = torch.cat([truth, shift.unsqueeze(-1)], 1)
    assert bool(((draws.mean(0) - expected).abs() < 4.5 * draws.std(0)).all())
    particles = teacher(x[:500], 200).exp()
    torch.testing.assert_close(particles.sum(-1), torch.ones(200, 500))
    torch.testing.assert_close(particles.mean(0), probabilities[:500], rtol=0.0, atol=0.1)


def test_a_fit_follows_the_random_state_of_torch_and_leaves_that_of_numpy_alone():
    x, labels = one_feature()
    settings = quick(num_samples=40)
    fits = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in (5, 5, 6):
            torch.manual_seed(seed)
            fits.append(polya_gamma(x, labels, settings).coefficients)
    assert torch.equal(fits[0], fits[1])
    assert not torch.equal(fits[0], fits[2])
    assert np.random.randint(10**9) == np.random.RandomState(0).randint(10**9)  # noqa: NPY002


def test_arrays_and_tensors_of_any_type_give_one_fit():
    x, labels = one_feature()
    fits = []
    for features, classes in (
        (x, labels),
        (x.numpy(), labels.numpy().astype(np.int32)),
        (x, labels.bool()),
        (x, labels.double()),
    ):
        torch.manual_seed(3)
        fits.append(polya_gamma(features, classes, quick(num_samples=400)).coefficients)
    assert all(torch.equal(fit, fits[0]) for fit in fits)


def test_showing_progress_changes_nothing():
    x, labels = one_feature()
    fits = []
    for progress in (False, True):
        torch.manual_seed(3)
        fits.append(polya_gamma(x, labels, quick(num_samples=400), progress=progress).coefficients)
    assert torch.equal(*fits)


def test_the_diagnostics_are_those_of_the_chains_for_every_logit():
    x, _ = one_feature(30)
    teacher = polya_gamma(x, torch.arange(30) % 3, quick(num_samples=800, num_chains=2))
    pools = torch.cat([teacher.coefficients, teacher.intercepts.unsqueeze(-1)], -1)
    draws = [chains_of(pools[:, k], 2) for k in range(2)]
    assert teacher.diagnostics["coefficients"] == mixing(draws)
    logits = np.concatenate([part @ np.concatenate([x, np.ones((30, 1))], 1).T for part in draws], 2)
    found = teacher.diagnostics["logits"]
    assert found.min_ess == pytest.approx(effective_sample_size(logits).min())
    assert found.median_ess == pytest.approx(np.median(effective_sample_size(logits)))
    assert found.max_r_hat == pytest.approx(split_r_hat(logits).max())


def hard_problem():
    """Separable, with a prior so wide that the coefficients wander far and slowly."""
    x = torch.randn(300, 2)
    return x, (x[:, 0] > 0).long()


def test_chains_that_mix_too_little_are_told_of_once():
    settings = GibbsSettings(prior_variance=1e4, burn_in=20, thinning=1, num_samples=400)
    with pytest.warns(UserWarning, match=r"effective sample size of 400 is \d+ and .*raise thinning") as seen:
        teacher = polya_gamma(*hard_problem(), settings)
    assert len(seen) == 1
    assert teacher.diagnostics["coefficients"].min_ess < 100


def test_a_high_r_hat_alone_is_reason_enough(monkeypatch):
    x, labels = one_feature()
    polya_gamma(x, labels, quick())  # says nothing
    monkeypatch.setattr("opu.teachers.logistic.LARGEST_R_HAT", 1.0)
    with pytest.warns(UserWarning, match=r"R-hat 1\.\d+; raise thinning \(now 2\) or burn_in \(now 50\)"):
        polya_gamma(x, labels, quick())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior_variance": 0.0}, "positive and finite"),
        ({"prior_variance": float("inf")}, "positive and finite"),
        ({"prior_variance": float("nan")}, "positive and finite"),
        ({"burn_in": -1}, "burn_in must be at least 0"),
        ({"thinning": 0}, "at least 1"),
        ({"num_chains": 0}, "at least 1"),
        ({"num_samples": 501}, "a multiple of num_chains"),
        ({"num_samples": 12}, "at least 4 for each"),
    ],
)
def test_settings_that_make_no_chain_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GibbsSettings(**options)


@pytest.mark.parametrize(
    ("x", "labels", "message"),
    [
        (torch.zeros(0, 2), torch.zeros(0), "at least one row"),
        (torch.zeros(4), torch.tensor([0, 1, 0, 1]), "must be a batch"),
        (torch.zeros(4, 2, 2), torch.tensor([0, 1, 0, 1]), "two axes"),
        (torch.full((4, 2), torch.nan), torch.tensor([0, 1, 0, 1]), "must be finite"),
        (torch.zeros(4, 2), torch.tensor([0, 1, 0]), "one class for each of the 4 inputs"),
        (torch.zeros(4, 2), torch.tensor([[0], [1], [0], [1]]), "one class for each of the 4 inputs"),
        (torch.zeros(4, 2), torch.tensor([0.0, 1.0, 0.5, 1.0]), r"integers 0 \.\. K - 1"),
        (torch.zeros(4, 2), torch.tensor([0.0, 1.0, torch.nan, 1.0]), r"integers 0 \.\. K - 1"),
        (torch.zeros(4, 2), torch.tensor([-1, 1, -1, 1]), r"integers 0 \.\. K - 1"),
        (torch.zeros(4, 2), torch.tensor([0, 2, 0, 2]), "class 1 has none"),
        (torch.zeros(4, 2), torch.tensor([0, 0, 0, 0]), "class 1 has none"),
        (torch.zeros(4, 2), torch.tensor([1, 1, 1, 1]), "class 0 has none"),
    ],
)
def test_data_that_cannot_be_fitted_are_refused(x, labels, message):
    with pytest.raises(ValueError, match=message):
        polya_gamma(x, labels, quick())


def test_features_of_wildly_different_sizes_are_refused():
    x, labels = one_feature()
    large = 1e10 * torch.randn_like(x)
    with pytest.raises(ValueError, match=r"of similar size.*standardise them"):
        polya_gamma(torch.cat([x, large, x + large], 1), labels, quick())


@pytest.mark.parametrize("num_classes", [1, 2])
def test_too_few_classes_are_refused(num_classes):
    with pytest.raises(ValueError, match=f"above every label; got {num_classes}"):
        polya_gamma(torch.zeros(3, 2), torch.tensor([0, 1, 2]), quick(), num_classes=num_classes)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "polyagamma", None)
    with pytest.raises(ImportError, match=r'pip install "one-pass-uncertainty\[blr\]"'):
        polya_gamma(*one_feature())


def test_a_thinned_chain_agrees_with_a_long_one_in_many_dimensions():
    # Correlated columns and few rows, where Gibbs moves slowly and no grid can be summed.
    x = torch.randn(120, 6, dtype=torch.float64) @ torch.randn(6, 6, dtype=torch.float64)
    labels = (torch.rand(120) < torch.sigmoid(x[:, 0] - 0.5 * x[:, 3])).long()
    long = pooled(polya_gamma(x, labels, quick(burn_in=500, thinning=1, num_samples=12_000)))
    covariance = np.cov(np.asarray(long).T)
    assert effective_sample_size(chains_of(long)).min() > 2500  # so that its own error is at most half the other's
    assert_moments(
        pooled(polya_gamma(x, labels, quick(thinning=10, num_samples=500))), long.mean(0).numpy(), covariance
    )
