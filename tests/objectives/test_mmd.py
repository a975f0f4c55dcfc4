"""The MMD, exact and sampled: a metric, unbiased, and equal to what brute force over pairs and draws gives."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath.ctx_mp import MPContext
from torch import Tensor

from opu.distributions.dirichlet import Dirichlet
from opu.distributions.kernels import RBF, Exponential, Kernel, Polynomial
from opu.distributions.moments import kernel_between, kernel_to_points
from opu.distributions.pointwise import minimum_mmd
from opu.objectives.exact_mmd import ExactMMD, squared_mmd_between, teacher_term
from opu.objectives.sampled_mmd import SampledMMD, squared_mmd

KERNELS = {
    "linear": Polynomial(1),
    "quadratic": Polynomial(2, offset=0.5),
    "cubic": Polynomial(3),
    "quartic": 0.5 * Polynomial(3) + 0.5 * Polynomial(4),
    "quintic": Polynomial(5, offset=0.0),
    "exponential": Exponential(0.5),
    "sharp exponential": Exponential(0.25),
    "flat exponential": Exponential(1.0),
}
kernels = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
SOME = ("quartic", "exponential")
some_kernels = pytest.mark.parametrize("kernel", [KERNELS[name] for name in SOME], ids=SOME)
laws = settings(deadline=None, max_examples=30, derandomize=True)
NO_INPUT = torch.zeros(1, 1)  # the MMD does not look at the inputs


@st.composite
def students(draw: st.DrawFn, count: int) -> Dirichlet:
    num_classes = draw(st.integers(2, 5))
    logits = st.lists(st.floats(-30, 0), min_size=num_classes, max_size=num_classes)
    rows = torch.tensor([draw(logits) for _ in range(count)], dtype=torch.float64)
    return Dirichlet.from_logits(rows, torch.tensor([draw(st.floats(-12, 20)) for _ in rows], dtype=torch.float64))


def dirichlet(*rows: list[float]) -> Dirichlet:
    return Dirichlet.from_concentration(torch.tensor(rows, dtype=torch.float64))


def particles_from(alpha: list[float], count: int, batch: int, seed: int = 0) -> Tensor:
    """Probabilities from NumPy's sampler, which shares nothing with ours."""
    return torch.from_numpy(np.random.default_rng(seed).dirichlet(alpha, size=(count, batch)))


def kernel_of(kernel: Kernel, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The kernel between matching rows of two arrays of points, from its power series."""
    return np.polynomial.polynomial.polyval((left * right).sum(-1), kernel.power_series())


def assert_zero_within_error(values: Tensor, num_errors: float = 5.0) -> None:
    error = values.std(0) / math.sqrt(len(values))
    assert (values.mean(0).abs() < num_errors * error + 1e-15).all(), values.mean(0) / error


# Between two Dirichlets: a metric


@laws
@given(students(3))
@some_kernels
def test_it_is_the_square_of_a_metric(kernel, triple):
    series = kernel.power_series()
    tolerance = 1e-14 * sum(series)
    p, q = triple[[0, 0, 0, 1, 1, 1, 2, 2, 2]], triple[[0, 1, 2] * 3]
    raw = kernel_between(p, p, series) + kernel_between(q, q, series) - 2 * kernel_between(p, q, series)
    assert (raw >= -tolerance).all()  # before it is clamped
    squares = squared_mmd_between(p, q, kernel).view(3, 3)
    torch.testing.assert_close(squares, raw.clamp(min=0).view(3, 3), rtol=0, atol=tolerance)
    torch.testing.assert_close(squares, squares.T, rtol=0, atol=tolerance)
    assert (squares.diagonal() <= tolerance).all()
    for i, j, k in permutations(range(3)):
        assert squares[i, k].sqrt() <= squares[i, j].sqrt() + squares[j, k].sqrt() + math.sqrt(tolerance)


def test_the_linear_kernel_compares_means():
    p, q = dirichlet([1.0, 2.0, 3.0], [0.1, 5.0, 0.2]), dirichlet([9.0, 1.0, 1.0], [1e4, 1.0, 1.0])
    want = ((p.mean - q.mean) ** 2).sum(-1)
    np.testing.assert_allclose(squared_mmd_between(p, q, Polynomial(1)), want, rtol=1e-12)


@kernels
def test_sharp_laws_are_points(kernel):
    x, y = np.array([0.2, 0.3, 0.5]), np.array([0.7, 0.1, 0.2])
    sharp = torch.full((1,), 30.0, dtype=torch.float64)
    p, q = (Dirichlet(torch.tensor(mean)[None], sharp) for mean in (x, y))
    want = kernel_of(kernel, x, x) + kernel_of(kernel, y, y) - 2 * kernel_of(kernel, x, y)
    np.testing.assert_allclose(squared_mmd_between(p, q, kernel), want, rtol=1e-9)


def test_universal_kernels_tell_apart_what_polynomials_cannot():
    # Equal means and precisions 1 and 2 differ in the second moment; a linear kernel does not see that.
    p, q = dirichlet([0.5, 0.5]), dirichlet([1.0, 1.0])
    assert squared_mmd_between(p, q, Polynomial(1)).item() < 1e-14
    assert squared_mmd_between(p, q, Exponential()).item() > 1e-5


@some_kernels
def test_the_gradient_vanishes_where_the_laws_are_equal(kernel):
    logits = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    g = torch.linspace(-6, 10, 5, dtype=torch.float64).requires_grad_()
    q = Dirichlet.from_logits(logits, g)
    series = kernel.power_series()
    value = kernel_between(q, q, series) - 2 * kernel_between(q.detach(), q, series)
    for gradient in torch.autograd.grad(value.sum(), (logits, g)):
        np.testing.assert_allclose(gradient, 0, atol=1e-13 * sum(series))


# Exact against draws

SCALES = {"1e-4": 1e-4, "1e-2": 1e-2, "1": 1.0, "1e2": 1e2, "1e4": 1e4}
CONCENTRATIONS = {name: [scale * share for share in (0.5, 1.0, 1.0, 2.0)] for name, scale in SCALES.items()}
CONCENTRATIONS["all at once"] = [1e-4, 1e-2, 1e4, 1.0, 1e2]
CLOSED_FORMS = {
    "quartic": lambda inner: (inner + 1) ** 3 * (inner + 2) / 2,
    "exponential": lambda inner: np.exp(2 * (inner - 1)),
    "sharp exponential": lambda inner: np.exp(4 * (inner - 1)),
    "flat exponential": lambda inner: np.exp(inner - 1),
}


@pytest.mark.parametrize("alpha", CONCENTRATIONS.values(), ids=CONCENTRATIONS.keys())
def test_the_exact_mmd_equals_an_estimate_from_many_draws(alpha):
    half = 150_000
    particles = particles_from([0.7] * len(alpha), 5, 1, seed=1)
    draws = np.random.default_rng(2).dirichlet(alpha, size=2 * half)
    within_draws = (draws[:half] * draws[half:]).sum(-1)  # independent pairs, so that the error is known
    points = particles[:, 0].numpy()
    to_points, between_points = draws @ points.T, (points @ points.T)[~np.eye(5, dtype=bool)]
    for name, closed_form in CLOSED_FORMS.items():
        cross = closed_form(to_points).mean(-1)
        per_pair = closed_form(within_draws) - cross[:half] - cross[half:]
        estimate, error = closed_form(between_points).mean() + per_pair.mean(), per_pair.std() / math.sqrt(half)
        exact = ExactMMD(KERNELS[name])(NO_INPUT, particles.log(), dirichlet(alpha)).item()
        assert abs(exact - estimate) < 5 * error + 3e-9, name  # the series of an exponential leaves out 1e-9


@some_kernels
def test_particles_of_a_dirichlet_stand_for_it(kernel):
    alpha, others = [0.4, 2.0, 1.0], [[1.0, 1.0, 1.0], [0.4, 2.0, 1.0], [1e-3, 1e-3, 5e-3], [50.0, 300.0, 20.0]]
    repetitions = 400
    particles = particles_from(alpha, 200, repetitions)
    for other in others:
        q = dirichlet(*[other] * repetitions)
        estimates = ExactMMD(kernel)(NO_INPUT, particles.log(), q)
        assert_zero_within_error(estimates - squared_mmd_between(dirichlet(alpha), dirichlet(other), kernel))


def test_exact_mmd_is_the_sum_of_its_three_terms():
    particles = particles_from([1.0, 1.0, 1.0], 20, 3)
    q = dirichlet([1.0, 2.0, 3.0], [0.1, 0.1, 0.1], [90.0, 1.0, 1.0])
    series = Exponential().power_series()
    want = (
        teacher_term(Exponential(), particles)
        - 2 * kernel_to_points(q, particles, series)
        + kernel_between(q, q, series)
    )
    torch.testing.assert_close(ExactMMD()(NO_INPUT, particles.log(), q), want, rtol=0, atol=1e-14)


def test_exact_mmd_in_float32_keeps_what_its_particles_have():
    particles = particles_from([1.0, 1.0, 1.0], 50, 6)
    logits, g = torch.randn(6, 3), torch.linspace(-12, 20, 6)
    single = ExactMMD()(NO_INPUT, particles.log().float(), Dirichlet.from_logits(logits, g))
    double = ExactMMD()(NO_INPUT, particles.log(), Dirichlet.from_logits(logits.double(), g.double()))
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-6)


@kernels
def test_the_order_of_particles_and_classes_does_not_matter(kernel):
    particles, q = particles_from([0.5] * 4, 30, 2), dirichlet([1.0, 2.0, 3.0, 0.1], [1e-3, 5.0, 1.0, 1.0])
    value = ExactMMD(kernel)(NO_INPUT, particles.log(), q)
    shuffled = particles[torch.randperm(30)].log()
    torch.testing.assert_close(ExactMMD(kernel)(NO_INPUT, shuffled, q), value, rtol=0, atol=1e-13)
    order = [2, 0, 3, 1]
    swapped = Dirichlet(q.mean[:, order], q.log_precision)
    torch.testing.assert_close(
        ExactMMD(kernel)(NO_INPUT, particles[..., order].log(), swapped), value, atol=1e-13, rtol=0
    )


def test_gradients_of_the_exact_mmd_are_finite_over_the_whole_range():
    logits = torch.tensor([0.0, -69.0, -2.0]).repeat(9, 1).requires_grad_()
    g = torch.linspace(-12, 20, 9).requires_grad_()
    sharp = torch.tensor([0.0, -1e4, -1e4]).expand(5, 9, 3)
    value = ExactMMD()(NO_INPUT, sharp, Dirichlet.from_logits(logits, g))
    for gradient in torch.autograd.grad(value.sum(), (logits, g)):
        assert gradient.isfinite().all()


def test_the_exact_mmd_refuses_kernels_without_a_power_series():
    with pytest.raises(ValueError, match="the exact MMD needs a kernel that is a power series"):
        ExactMMD(Polynomial(3) + RBF())


# Every temperature that is accepted

TEMPERATURES = (0.05, 0.5, 3.0, 40.0, 1e3, 3e4, 1e6)


def two_class_mmd(points: np.ndarray, log_share, log_precision, temperature: float):
    """The squared MMD between points and a Beta law in 40 digits, by Kummer's function and an integral; no power series."""
    mp = MPContext()
    mp.dps = 40
    rate, total = 1 / mp.mpf(temperature), mp.exp(log_precision)
    a = total * mp.exp(log_share)
    b = total - a

    def kernel(inner):
        return mp.exp((inner - 1) * rate)

    def to_point(x, y):  # E exp(((x - y) p + y - 1) / T) with p from Beta(a, b)
        return kernel(y) * mp.hyp1f1(a, total, (x - y) * rate)

    rows = [[mp.mpf(v) for v in row] for row in points.tolist()]
    pairs = [kernel(mp.fdot(u, v)) for u, v in permutations(rows, 2)]
    density = mp.gamma(total) / mp.gamma(a) / mp.gamma(b)
    within = mp.quad(lambda x: density * x ** (a - 1) * (1 - x) ** (b - 1) * to_point(x, 1 - x), [0, 0.1, 0.5, 0.9, 1])
    among = mp.fsum(pairs) / len(pairs)
    return among - 2 * mp.fsum(to_point(*row) for row in rows) / len(rows) + within


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_exact_mmd_and_its_slope_in_the_precision_agree_with_forty_digits_at_every_temperature(temperature):
    # With the series cut at 1e-9, the slope was 0 from a temperature of 3e4 on.
    mp = MPContext()
    mp.dps = 40
    points = np.array([[0.3, 0.7], [0.55, 0.45], [0.1, 0.9], [0.45, 0.55]])
    logits, log_precision = torch.tensor([[0.0, 0.4]], dtype=torch.float64), 1.2
    g = torch.tensor([log_precision], dtype=torch.float64, requires_grad=True)
    log_particles = torch.from_numpy(points).log().unsqueeze(1)
    got = ExactMMD(Exponential(temperature))(NO_INPUT, log_particles, Dirichlet.from_logits(logits, g))
    (slope,) = torch.autograd.grad(got.sum(), g)
    exact_points = np.array([[mp.exp(mp.mpf(v)) for v in row] for row in log_particles[:, 0].tolist()])
    log_share = -mp.log(1 + mp.exp(mp.mpf(0.4)))
    step = mp.mpf(10) ** -10
    low, high = (two_class_mmd(exact_points, log_share, mp.mpf(log_precision) + s, temperature) for s in (-step, step))
    want, want_slope = (low + high) / 2, (high - low) / (2 * step)
    # The terms beyond the linear one are c_2 and more; errors are measured by them, and by the series' 1e-9.
    size = 1 / temperature**2 if temperature > 1 else 1.0
    assert abs(got.item() - want) < 3e-9 * size + 1e-15 / temperature
    assert abs(slope.item() - want_slope) < 1e-8 * abs(want_slope)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_exact_mmd_agrees_with_gram_matrices_of_draws_at_every_temperature(temperature):
    kernel, count = Exponential(temperature), 1500
    q, p = dirichlet([1.0, 2.0, 3.0]), dirichlet([8.0, 3.0, 1.0])
    draws, particles = q.rsample(count), p.rsample(6)
    left, right = particles.permute(1, 0, 2), draws.permute(1, 0, 2)
    among, across, within = kernel.gram(left, left)[0], kernel.gram(left, right)[0], kernel.gram(right, right)[0]
    # By how much each draw moves the estimate, which gives its error.
    alone = (within.sum(1) - 1 * within.diagonal()) / (count - 1) - across.mean(0)
    estimate = (
        (among.sum() - among.trace()) / 30 - 2 * across.mean() + (within.sum() - within.trace()) / (count**2 - count)
    )
    error = 2 * alone.std() / math.sqrt(count)
    exact = ExactMMD(kernel)(NO_INPUT, particles.log(), q)
    assert abs(exact.item() - estimate.item()) < 5 * error.item() + 1e-14


@pytest.mark.parametrize("temperature", [100.0, 1e3, 1e5])
def test_the_nearest_dirichlet_has_a_precision_at_every_temperature(temperature):
    # Two lumps, whose most likely Dirichlet has a log-precision that is 1.3 higher; the fit used to stay there.
    log_particles = torch.cat(
        [dirichlet([20.0, 1.0, 1.0]).log_rsample(600), dirichlet([1.0, 20.0, 1.0]).log_rsample(300)]
    )
    want, got = (minimum_mmd(log_particles, Exponential(t)) for t in (10.0, temperature))
    torch.testing.assert_close(got.log_precision, want.log_precision, rtol=0, atol=0.02)
    torch.testing.assert_close(got.mean, want.mean, rtol=0, atol=0.002)


@kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_exact_mmd_and_its_gradient_are_numbers_whatever_the_precision(kernel, dtype):
    precisions = [-800.0, -300.0, -101.0, -99.0, 50.0, 100.0, 300.0, 710.0, 800.0]
    logits = torch.tensor([0.0, -200.0, -2.0], dtype=dtype).repeat(len(precisions), 1).requires_grad_()
    g = torch.tensor(precisions, dtype=dtype, requires_grad=True)
    particles = particles_from([1.0, 1.0, 1.0], 5, 1).expand(-1, len(precisions), -1).to(dtype)
    q = Dirichlet.from_logits(logits, g)
    value = ExactMMD(kernel)(NO_INPUT, particles.log(), q)
    assert value.isfinite().all()
    for gradient in torch.autograd.grad(value.sum(), (logits, g), retain_graph=True):
        assert gradient.isfinite().all()
    # A choice of a vertex below, a point above.
    torch.testing.assert_close(value[:4], value[:1].expand(4), rtol=1e-6, atol=0)
    torch.testing.assert_close(value[4:], value[-1:].expand(5), rtol=1e-6, atol=0)
    other = squared_mmd_between(q, q.detach()[list(range(len(precisions)))[::-1]], kernel)
    assert other.isfinite().all()
    for gradient in torch.autograd.grad(other.sum(), (logits, g)):
        assert gradient.isfinite().all()


# The teacher's term


def mean_of_pairs(kernel: Kernel, particles: Tensor, block: int) -> list[float]:
    """The mean over pairs of different particles within blocks, one pair at a time."""
    result = []
    for cloud in particles.permute(1, 0, 2).numpy():
        blocks = [cloud[start : start + block] for start in range(0, len(cloud), block)]
        pairs = [kernel_of(kernel, x, y) for part in blocks for x, y in permutations(part, 2)]
        result.append(math.fsum(pairs) / len(pairs))
    return result


@kernels
@pytest.mark.parametrize("count", [2, 3, 25])
def test_the_teachers_term_is_the_mean_over_all_pairs(kernel, count):
    particles = particles_from([0.3] * 4, count, 3)
    got = teacher_term(kernel, particles)
    np.testing.assert_allclose(got, mean_of_pairs(kernel, particles, block=count), rtol=1e-9)


@pytest.mark.parametrize("block", [2, 6, 8, 25, 1000])
def test_long_series_compare_particles_within_blocks(block):
    particles = particles_from([0.3] * 4, 25, 3)  # blocks of 6 and 8 leave one particle alone, which has no pair
    got = teacher_term(Exponential(), particles, block=block)
    np.testing.assert_allclose(got, mean_of_pairs(Exponential(), particles, block), rtol=1e-9)


def test_the_teachers_term_of_one_particle_is_a_constant():
    particles = particles_from([0.3] * 4, 1, 3)
    for kernel in (Polynomial(3), Exponential()):
        want = kernel_of(kernel, particles[0].numpy(), particles[0].numpy())
        np.testing.assert_allclose(teacher_term(kernel, particles), want, rtol=1e-9)


def test_the_teachers_term_carries_no_gradient():
    particles = particles_from([0.3] * 4, 5, 3).requires_grad_()
    assert not teacher_term(Exponential(), particles).requires_grad


# From samples on both sides


def test_the_sampled_mmd_sums_over_different_pairs():
    left, right = particles_from([0.5, 1.0, 2.0], 4, 2), particles_from([1.0, 1.0, 1.0], 6, 2, seed=1)
    for kernel in (Polynomial(3), Exponential()):
        got = squared_mmd(left, right, kernel)
        for b in range(2):
            x, y = left[:, b].numpy(), right[:, b].numpy()
            within = [np.mean([kernel_of(kernel, u, v) for u, v in permutations(cloud, 2)]) for cloud in (x, y)]
            between = np.mean([kernel_of(kernel, u, v) for u in x for v in y])  # divided by S T, not by S (S - 1)
            assert got[b].item() == pytest.approx(sum(within) - 2 * between, abs=2e-9)


@pytest.mark.parametrize("kernel", [RBF((0.2, 1.0)), Polynomial(3), Exponential()], ids=["rbf", "cubic", "exponential"])
@pytest.mark.parametrize(("count", "other"), [(2, 2), (5, 3), (12, 12)])
def test_two_clouds_from_one_law_score_0_in_expectation(kernel, count, other):
    alpha, repetitions = [0.4, 2.0, 1.0], 20_000
    left, right = particles_from(alpha, count, repetitions), particles_from(alpha, other, repetitions, seed=1)
    values = squared_mmd(left, right, kernel)
    assert (values < 0).any()  # unbiased, so it must be negative at times
    assert_zero_within_error(values)


@some_kernels
@pytest.mark.parametrize("alpha", [[0.02, 0.01, 0.05], [1.0, 2.0, 3.0], [100.0, 300.0, 50.0]], ids=str)
def test_sampled_and_exact_agree_in_value_and_gradient(kernel, alpha):
    repetitions = 20_000
    log_particles = particles_from([0.4, 2.0, 1.0], 10, 1).log().expand(10, repetitions, 3)

    def rows(objective, count):
        log_alpha = torch.tensor(alpha, dtype=torch.float64).log().repeat(count, 1).requires_grad_()
        value = objective(NO_INPUT, log_particles[:, :count], Dirichlet.from_log_concentration(log_alpha))
        return value.detach(), torch.autograd.grad(value.sum(), log_alpha)[0]

    exact, exact_gradient = rows(ExactMMD(kernel), 1)
    sampled, sampled_gradient = rows(SampledMMD(kernel, num_samples=8), repetitions)
    assert_zero_within_error(sampled - exact)
    assert_zero_within_error(sampled_gradient - exact_gradient)


def test_one_particle_is_enough_for_either():
    repetitions, kernel = 20_000, Exponential()
    particle = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    log_particles = particle.log().expand(1, repetitions, 3)
    q = dirichlet(*[[1.0, 2.0, 3.0]] * repetitions)
    exact = ExactMMD(kernel)(NO_INPUT, log_particles, q)
    series = kernel.power_series()
    law = q[:1]
    want = kernel_of(kernel, particle.numpy(), particle.numpy()) + kernel_between(law, law, series).item()
    want -= 2 * kernel_to_points(law, particle.view(1, 1, 3), series).item()
    np.testing.assert_allclose(exact, want, rtol=1e-8)
    assert_zero_within_error(SampledMMD(kernel)(NO_INPUT, log_particles, q) - exact)


class Counting(Polynomial):
    """A kernel that remembers how many points it was asked about."""

    seen: list = []  # noqa: RUF012 - shared on purpose

    def gram(self, left: Tensor, right: Tensor) -> Tensor:
        self.seen.append((left.shape[1], right.shape[1]))
        return super().gram(left, right)


@pytest.mark.parametrize(("num_samples", "expected"), [(None, 5), (7, 7)])
def test_as_many_samples_as_particles_unless_told(num_samples, expected):
    Counting.seen.clear()
    log_particles = particles_from([1.0, 1.0], 5, 3).log()
    SampledMMD(Counting(2), num_samples)(NO_INPUT, log_particles, dirichlet(*[[1.0, 2.0]] * 3))
    assert (5, expected) in Counting.seen
    assert (expected, expected) in Counting.seen


def test_the_default_bandwidths_come_from_both_clouds_in_all_three_terms():
    left, right = particles_from([5.0, 5.0, 5.0], 7, 1), particles_from([0.2, 0.2, 0.2], 9, 1, seed=1)
    both = torch.cat([left, right]).permute(1, 0, 2)
    torch.testing.assert_close(squared_mmd(left, right, RBF()), squared_mmd(left, right, RBF().settled(both)))
    for one in (left, right):
        wrong = RBF().settled(one.permute(1, 0, 2))
        assert (squared_mmd(left, right, RBF()) - squared_mmd(left, right, wrong)).abs().item() > 1e-3
    torch.testing.assert_close(squared_mmd(left, right, RBF()), squared_mmd(right, left, RBF()))


@pytest.mark.parametrize("alpha", [[0.4, 2.0, 1.0], [20.0, 10.0, 5.0], [0.05, 0.05, 0.05]], ids=str)
@pytest.mark.parametrize(("count", "samples"), [(2, 2), (4, 4), (4, 9)])
def test_the_default_bandwidths_leave_no_bias_with_few_particles(alpha, count, samples):
    # Taken from the particles alone, they gave z-scores of 5 to 30 in the value and of -10 to -20 in the gradient.
    repetitions = 30_000
    particles = particles_from(alpha, count, repetitions)
    log_mean = torch.tensor(alpha, dtype=torch.float64).log().log_softmax(-1).expand(repetitions, -1)
    g = torch.full((repetitions,), math.log(sum(alpha)), dtype=torch.float64, requires_grad=True)
    objective = SampledMMD(RBF(), num_samples=samples)
    value = objective(NO_INPUT, particles.clamp(min=1e-300).log(), Dirichlet.from_logits(log_mean, g))
    (gradient,) = torch.autograd.grad(value.sum(), g)
    assert_zero_within_error(value.detach())
    assert_zero_within_error(gradient)


def test_the_sampled_mmd_of_the_paper_tells_a_near_law_from_a_far_one():
    log_particles = particles_from([8.0, 3.0, 1.0], 200, 2).log()
    near, far = SampledMMD()(NO_INPUT, log_particles, dirichlet([8.0, 3.0, 1.0], [1.0, 3.0, 8.0])).tolist()
    assert abs(near) < 0.1 < far


def test_names_say_which_kernel_is_compared():
    assert repr(ExactMMD()) == "ExactMMD(Exponential(temperature=0.5))"
    assert repr(SampledMMD(Polynomial(2))) == "SampledMMD(Polynomial(degree=2, offset=1.0))"
