"""Both fits against the truth they were drawn from, their own optimality, SciPy, and the laws of a batch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats
from torch import Tensor

from opu.distributions.dirichlet import Dirichlet
from opu.distributions.kernels import Exponential, Kernel, Polynomial
from opu.distributions.moments import kernel_between, kernel_to_points
from opu.distributions.pointwise import LARGEST_LOG_PRECISION, maximum_likelihood, minimise_rows, minimum_mmd
from opu.objectives import ExactMMD, squared_mmd_between

laws = settings(deadline=None, max_examples=30, derandomize=True, phases=(Phase.explicit, Phase.generate))

TRUTHS = {
    "tiny": [1e-3, 1e-3, 1e-3],
    "small": [0.05, 0.2, 0.1],
    "even": [1.0, 1.0],
    "moderate": [0.5, 2.0, 7.0],
    "skewed": [30.0, 0.3, 0.02],
    "large": [1e3, 1e3, 1e3, 1e3],
    "wide": [1e-3, 1.0, 1e3],
    "all sizes": [1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3],
}
truths = pytest.mark.parametrize("alpha", TRUTHS.values(), ids=TRUTHS.keys())


def draws(alpha: list[float], count: int) -> Tensor:
    """Log-particles ``(S, 1, K)`` from one Dirichlet, in float64."""
    return Dirichlet.from_concentration(torch.tensor([alpha], dtype=torch.float64)).log_rsample(count)


def log_likelihood(log_alpha: Tensor, statistics: Tensor) -> Tensor:
    """Mean log-density of particles whose mean log-probabilities are ``statistics``, by its definition."""
    alpha = log_alpha.exp()
    normaliser = torch.lgamma(alpha).sum(-1) - torch.lgamma(alpha.sum(-1))
    return ((alpha - 1) * statistics).sum(-1) - normaliser


def slopes(q: Dirichlet, log_particles: Tensor) -> Tensor:
    """The first-order condition psi(alpha_0) - psi(alpha_k) + mean log pi_k, relative to its terms."""
    alpha = q.log_concentration().exp()
    whole, own = torch.digamma(alpha.sum(-1, keepdim=True)), torch.digamma(alpha)
    statistics = log_particles.double().mean(0)
    return (whole - own + statistics) / (whole.abs() + own.abs() + statistics.abs())


# Maximum likelihood


@truths
def test_maximum_likelihood_recovers_the_truth_within_its_sampling_error(alpha):
    count = 20_000
    got = maximum_likelihood(draws(alpha, count)).log_concentration().exp()[0].numpy()
    # count (a - alpha)' I (a - alpha) is chi-squared with K degrees of freedom, I the Fisher information.
    information = np.diag(special.polygamma(1, alpha)) - special.polygamma(1, np.sum(alpha))
    statistic = count * (got - alpha) @ information @ (got - alpha)
    assert statistic < stats.chi2(len(alpha)).isf(1e-4)


@truths
def test_maximum_likelihood_is_stationary(alpha):
    log_particles = draws(alpha, 500)
    assert slopes(maximum_likelihood(log_particles), log_particles).abs().max() < 1e-6


@pytest.mark.parametrize("alpha", [[0.5, 2.0, 7.0], [0.02, 0.3], [40.0, 10.0, 5.0, 1.0]])
def test_maximum_likelihood_agrees_with_scipy(alpha):
    log_particles = draws(alpha, 300)
    statistics = log_particles.mean(0)[0].numpy()

    def loss(log_alpha):
        a = np.exp(log_alpha)
        return special.gammaln(a).sum() - special.gammaln(a.sum()) - ((a - 1) * statistics).sum()

    def gradient(log_alpha):
        a = np.exp(log_alpha)
        return a * (special.digamma(a) - special.digamma(a.sum()) - statistics)

    best = optimize.minimize(loss, np.zeros(len(alpha)), jac=gradient, method="BFGS", options={"gtol": 1e-10})
    got = maximum_likelihood(log_particles).log_concentration()[0].numpy()
    np.testing.assert_allclose(got, best.x, atol=1e-6)


@st.composite
def clouds(draw: st.DrawFn, reach: float = 30.0) -> Tensor:
    """A few particles from logits within ``reach``, two or more, which are never all the same."""
    count, num_classes = draw(st.integers(2, 8)), draw(st.integers(2, 5))
    seed, scale = draw(st.integers(0, 2**31)), draw(st.floats(0.01, reach))
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(num_classes, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, 1, num_classes, generator=generator, dtype=torch.float64)
    return (scale * (centre + draw(st.floats(0.1, 1.0)) * noise)).log_softmax(-1)


@laws
@given(clouds())
def test_no_other_dirichlet_is_more_likely(log_particles):
    q = maximum_likelihood(log_particles)
    statistics = log_particles.mean(0)
    log_alpha = q.log_concentration()
    assert log_alpha.isfinite().all()
    value = log_likelihood(log_alpha, statistics)
    slack = 1e-12 * (1 + q.precision * q.log_precision.abs().clamp(min=1))  # for the rounding of lgamma
    if q.log_precision > LARGEST_LOG_PRECISION - 1e-3:
        slack = slack + 2.0  # at the edge the fit stops, and classes that are rarer than 1e-8 may be left a nat short
    for scale in (1e-3, 0.1, 2.0):
        others = log_alpha + scale * torch.randn(200, log_alpha.shape[-1], dtype=torch.float64)
        inside = others.logsumexp(-1) <= LARGEST_LOG_PRECISION
        assert (log_likelihood(others, statistics)[inside] <= value + slack).all()


@pytest.mark.parametrize("spread", [0.3, 3.0])
@pytest.mark.parametrize("depth", [10.0, 20.0, 30.0, 50.0, 100.0, 500.0])
def test_maximum_likelihood_holds_where_every_particle_is_confident(depth, spread):
    # All but one class have log-probabilities near -depth. Then alpha_k is about 1 / depth, not about e^-depth.
    logits = spread * torch.randn(50, 1, 4, dtype=torch.float64)
    logits[:, :, 1:] -= depth
    log_particles = logits.log_softmax(-1)
    statistics = log_particles.mean(0)
    q = maximum_likelihood(log_particles)
    value = log_likelihood(q.log_concentration(), statistics).item()
    assert q.log_concentration().isfinite().all()
    for g in np.arange(-2.0, LARGEST_LOG_PRECISION + 0.5, 0.5):
        rare = (1 / (g - statistics[0, 1:]).clamp(min=1)).log()
        other = torch.cat([torch.tensor([math.log(math.exp(g) - rare.exp().sum().clamp(max=0.9 * math.exp(g)))]), rare])
        assert log_likelihood(other, statistics[0]).item() <= value + 1e-4  # lgamma(e^20) is rounded to about 1e-6


@laws
@given(clouds(), st.randoms(use_true_random=False))
def test_maximum_likelihood_follows_a_permutation_of_the_classes(log_particles, random):
    order = list(range(log_particles.shape[-1]))
    random.shuffle(order)
    q, moved = maximum_likelihood(log_particles), maximum_likelihood(log_particles[..., order])
    torch.testing.assert_close(moved.log_concentration(), q.log_concentration()[:, order], rtol=1e-6, atol=1e-4)


def many_rows() -> Tensor:
    alpha = torch.tensor([[0.01, 0.02, 0.03], [1.0, 1.0, 1.0], [900.0, 50.0, 50.0], [0.5, 2.0, 7.0]])
    return Dirichlet.from_concentration(alpha.double()).log_rsample(60)


@pytest.mark.parametrize("fit", [maximum_likelihood, minimum_mmd])
def test_a_batch_is_fitted_as_its_rows_are(fit):
    log_particles = many_rows()
    together = fit(log_particles)
    for row in range(log_particles.shape[1]):
        alone = fit(log_particles[:, row : row + 1])
        torch.testing.assert_close(together.mean[row : row + 1], alone.mean, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(together.log_precision[row : row + 1], alone.log_precision, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fit", [maximum_likelihood, minimum_mmd])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_fit_has_the_dtype_of_the_particles(fit, dtype):
    log_particles = many_rows()
    q = fit(log_particles.to(dtype))
    assert q.mean.dtype == q.log_precision.dtype == q.log_mean.dtype == dtype
    torch.testing.assert_close(q.mean.double(), fit(log_particles).mean, rtol=1e-3, atol=1e-4)


# Clouds that sit in one point


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("count", [1, 2, 50])
def test_a_cloud_in_one_point_gets_the_largest_precision_there(count, dtype):
    points = torch.randn(20, 4, dtype=dtype).log_softmax(-1)
    q = maximum_likelihood(points.expand(count, -1, -1))
    torch.testing.assert_close(q.mean, points.exp(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(q.log_precision, torch.full_like(q.log_precision, LARGEST_LOG_PRECISION))


@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_cloud_in_one_corner_gets_the_largest_precision_there(count, dtype):
    corners = torch.tensor([[0.0, -500.0, -500.0], [-500.0, -500.0, 0.0]], dtype=dtype)
    q = maximum_likelihood(corners.expand(count, -1, -1))
    assert q.log_mean.isfinite().all()
    torch.testing.assert_close(q.mean, corners.exp(), rtol=0, atol=1e-9)
    torch.testing.assert_close(q.log_precision, torch.full_like(q.log_precision, LARGEST_LOG_PRECISION))


def test_a_cloud_over_several_corners_is_fitted():
    corners = torch.full((4, 1, 3), -500.0, dtype=torch.float64)
    corners[[0, 1, 2, 3], 0, [0, 1, 1, 1]] = 0.0  # the third class is never chosen
    q = maximum_likelihood(corners)
    assert slopes(q, corners).abs().max() < 1e-6
    assert q.log_precision < -4  # alpha_k is about 1 / 500


def test_a_corner_is_reached_in_mmd_too():
    corner = torch.tensor([[0.0, -500.0, -500.0]], dtype=torch.float64).expand(5, -1, -1)
    q = minimum_mmd(corner)
    torch.testing.assert_close(q.mean, corner[0].exp(), rtol=0, atol=1e-5)
    assert biased_squared_mmd(q, corner.exp(), Exponential()) < 1e-6


# Minimum MMD


def biased_squared_mmd(q: Dirichlet, points: Tensor, kernel: Kernel) -> Tensor:
    """The squared MMD to the particles as a distribution of their own (all pairs count), which is a squared norm."""
    c = kernel.power_series()
    inner = torch.einsum("sbk,tbk->stb", points, points)
    among = sum(weight * inner**j for j, weight in enumerate(c)).mean((0, 1))
    return among - 2 * kernel_to_points(q, points, c) + kernel_between(q, q, c)


def repeated(q: Dirichlet, count: int) -> Dirichlet:
    return Dirichlet(q.mean.expand(count, -1), q.log_precision.expand(count), q.log_mean.expand(count, -1))


def two_lumps() -> Tensor:
    return torch.cat([draws([20.0, 1.0, 1.0], 60), draws([1.0, 20.0, 1.0], 30)])


CLOUDS = {
    "moderate": lambda: draws([2.0, 3.0, 5.0], 80),
    "two lumps": two_lumps,
    "flat": lambda: draws([1.0, 1.0, 1.0, 1.0], 60),
    "sparse": lambda: draws([0.01, 0.01, 0.01], 60),
    "sharp": lambda: draws([1e3, 2e3], 60),
    "corner": lambda: draws([50.0, 0.1, 0.1], 200),
    "ten classes": lambda: draws([0.5] * 10, 60),
}
KERNELS = {"exponential": Exponential(), "polynomial": 0.5 * Polynomial(3) + 0.5 * Polynomial(4)}
on_clouds = pytest.mark.parametrize("cloud", CLOUDS.values(), ids=CLOUDS.keys())
with_kernels = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())


@on_clouds
@with_kernels
def test_no_perturbation_is_nearer_in_mmd(cloud, kernel):
    log_particles = cloud()
    points = log_particles.exp()
    best = minimum_mmd(log_particles, kernel)
    value = biased_squared_mmd(best, points, kernel)
    slack = 1e-9 * sum(kernel.power_series())  # in units of the kernel's largest value
    centre = torch.cat([best.log_mean, best.log_precision.unsqueeze(-1)], -1)
    for scale in (1e-3, 3e-2, 0.3, 2.0):
        moved = centre + scale * torch.randn(30, centre.shape[-1], dtype=torch.float64)
        other = Dirichlet.from_logits(moved[:, :-1], moved[:, -1].clamp(-12, LARGEST_LOG_PRECISION))
        assert (biased_squared_mmd(other, points.expand(-1, 30, -1), kernel) > value - slack).all()


@on_clouds
@with_kernels
def test_minimum_mmd_is_at_least_as_near_as_maximum_likelihood(cloud, kernel):
    log_particles = cloud()
    by_mmd, by_likelihood = minimum_mmd(log_particles, kernel), maximum_likelihood(log_particles)
    points = log_particles.exp()
    nearer, farther = (biased_squared_mmd(q, points, kernel).item() for q in (by_mmd, by_likelihood))
    assert nearer <= farther + 1e-9


@pytest.mark.parametrize("alpha", [[2.0, 3.0, 5.0], [0.2, 0.1, 0.4], [30.0, 60.0]])
def test_minimum_mmd_recovers_the_truth_from_many_particles(alpha):
    got = minimum_mmd(draws(alpha, 10_000)).log_concentration()[0]
    torch.testing.assert_close(got, torch.tensor(alpha).double().log(), rtol=0, atol=0.1)


def test_minimum_mmd_takes_the_exponential_kernel_by_default():
    log_particles = two_lumps()
    default, named = minimum_mmd(log_particles), minimum_mmd(log_particles, Exponential())
    assert torch.equal(default.log_concentration(), named.log_concentration())


@pytest.mark.parametrize(
    "cloud", [CLOUDS["two lumps"], CLOUDS["flat"], CLOUDS["sparse"]], ids=["lumps", "flat", "sparse"]
)
def test_the_amortisation_gap_lies_within_the_papers_bound(cloud):
    # 0 <= MMD(q, p) - MMD(q*, p) <= MMD(q, q*), exact for distances of norms, so p is the cloud of particles itself.
    kernel, count = Exponential(), 200
    points = cloud().exp()
    best = minimum_mmd(points.log(), kernel)
    logits = best.log_mean + 2 * torch.randn(count, best.num_classes, dtype=torch.float64)
    q = Dirichlet.from_logits(logits, best.log_precision + 2 * torch.randn(count, dtype=torch.float64))
    to_student = biased_squared_mmd(q, points.expand(-1, count, -1), kernel).sqrt()
    to_best = biased_squared_mmd(best, points, kernel).sqrt()
    bound = squared_mmd_between(q, repeated(best, count), kernel).sqrt()
    gap = to_student - to_best
    assert to_best > 1e-3  # so that the roots lose no digits
    assert (gap > -1e-6).all()
    assert (gap < bound + 1e-6).all()
    assert gap.max() > 0.1  # students far away were among them


def test_the_exact_objective_orders_dirichlets_as_the_fit_does():
    # ExactMMD subtracts the particles' unbiased term instead: another constant, so the same optimum.
    log_particles = two_lumps()
    objective, kernel = ExactMMD(Exponential()), Exponential()
    best, other = minimum_mmd(log_particles), maximum_likelihood(log_particles)
    x = torch.zeros(1, 1)
    difference = objective(x, log_particles, other) - objective(x, log_particles, best)
    want = biased_squared_mmd(other, log_particles.exp(), kernel) - biased_squared_mmd(
        best, log_particles.exp(), kernel
    )
    torch.testing.assert_close(difference, want, rtol=1e-9, atol=1e-12)
    assert difference > 0.01


# The minimiser


def test_minimise_rows_solves_each_row_of_a_known_problem():
    # Rosenbrock's valley with its own bend for each row; the minimum of row b is at (a_b, a_b^2).
    a = torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0], dtype=torch.float64)

    def valley(x, rows):
        return (a[rows] - x[:, 0]) ** 2 + 20 * (x[:, 1] - x[:, 0] ** 2) ** 2

    got = minimise_rows(valley, torch.tensor([[-1.2, 1.0]], dtype=torch.float64).repeat(5, 1), 500, tolerance=1e-14)
    torch.testing.assert_close(got, torch.stack([a, a**2], -1), rtol=0, atol=1e-4)


def test_minimise_rows_never_climbs():
    start = torch.randn(20, 3, dtype=torch.float64)

    def bumpy(x, rows):
        return (x.square() + torch.sin(5 * x)).sum(-1)

    for steps in (1, 2, 5, 50):
        assert (bumpy(minimise_rows(bumpy, start, steps), None) <= bumpy(start, None)).all()
