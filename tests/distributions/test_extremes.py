"""The Dirichlet where float64 and float32 run out: precisions of e^-300 to e^800, means of e^-200, a thousand classes."""

import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath.ctx_mp import MPContext
from scipy import special
from torch import Tensor

from opu import measures
from opu.distributions.beta import BetaMarginals
from opu.distributions.dirichlet import Dirichlet, kl_divergence
from opu.distributions.gamma import (
    excess_and_rest,
    exponential_remainder,
    log_gamma_remainder,
    remainder_divergence,
    remainder_slope,
)
from opu.objectives.kl import CrossEntropy

mp = MPContext()
mp.dps = 450  # ln Gamma(e^800) has 350 digits before the point

LOG_PRECISIONS = (-300.0, -100.0, -30.0, -5.0, 0.0, 2.9, 3.1, 14.0, 20.0, 33.0, 40.0, 100.0, 700.0, 710.0, 750.0, 800.0)
LOGITS = {
    "even": [0.0, 0.0],
    "skewed": [0.3, -1.0, 0.0],
    "certain": [0.0, -46.0],  # 1 - 1e-20
    "vanishing": [0.0, -200.0, -3.0],
    "vertex": [-200.0, 0.0, -90.0, -150.0],
    "thousand": [-((k % 37) / 3.0) for k in range(1000)],
}
log_precisions = pytest.mark.parametrize("log_precision", LOG_PRECISIONS)
logits_of_all_kinds = pytest.mark.parametrize("name", LOGITS)
laws = settings(deadline=None, max_examples=60, derandomize=True)
NO_INPUT = torch.zeros(1, 1)


def dirichlet(logits: list[float], log_precision: float, dtype: torch.dtype = torch.float64) -> Dirichlet:
    return Dirichlet.from_logits(torch.tensor([logits], dtype=dtype), torch.tensor([log_precision], dtype=dtype))


@cache
def shares(name: str) -> tuple:
    weights = [mp.exp(mp.mpf(value)) for value in LOGITS[name]]
    total = mp.fsum(weights)
    return tuple(weight / total for weight in weights)


def each(function, values) -> list:
    """The function of every value, computed once for equal ones."""
    known = {value: function(value) for value in set(values)}
    return [known[value] for value in values]


def assert_close(got: Tensor, want, *, rtol: float, atol: float = 0.0) -> None:
    assert got.numel() == 1
    error = abs(mp.mpf(got.item()) - want)
    assert error <= atol + rtol * abs(want), f"got {got.item()!r}, want {float(want)!r}, off by {float(error):.2e}"


# Functions of one concentration


@pytest.mark.parametrize("u", [-600.0, -60.0, -1.0, 0.0, 2.99, 3.0, 5.0, 33.0, 300.0, 750.0])
def test_gamma_functions_agree_with_hundreds_of_digits(u):
    alpha = mp.exp(mp.mpf(u))
    point = torch.tensor([u], dtype=torch.float64)
    excess, rest = excess_and_rest(point)
    assert_close(excess, mp.digamma(alpha + 1) - u, rtol=1e-13, atol=1e-300)
    exact = mp.loggamma(alpha) - (alpha - 1) * mp.digamma(alpha) + 1 / alpha + alpha
    assert_close(rest, exact, rtol=1e-13, atol=1e-13)
    assert_close(log_gamma_remainder(point), mp.loggamma(alpha) - alpha * u + alpha, rtol=1e-13, atol=1e-14)
    assert_close(remainder_slope(point), alpha * (mp.digamma(alpha) - u), rtol=1e-13)


@pytest.mark.parametrize("u", [-300.0, -3.0, 0.0, 2.5, 3.5, 40.0, 700.0])
@pytest.mark.parametrize("step", [1e-12, -1e-7, 0.01, -0.99, 0.99, 1.01, -1.01, 30.0, -400.0])
def test_divergences_of_the_remainder_agree_with_hundreds_of_digits(u, step):
    a, b = mp.exp(mp.mpf(u)), mp.exp(mp.mpf(u) + mp.mpf(step))

    def s(x):
        return mp.loggamma(x) - x * mp.log(x) + x

    want = s(b) - s(a) - (b - a) * (mp.digamma(a) - mp.log(a))
    got = remainder_divergence(torch.tensor([u], dtype=torch.float64), torch.tensor([step], dtype=torch.float64))
    assert_close(got, want, rtol=2e-12)


@pytest.mark.parametrize("x", [1e-300, 1e-9, -1e-9, 0.3, -0.7, 1.0, -1.0])
def test_the_remainder_of_the_exponential_keeps_its_digits(x):
    want = mp.expm1(mp.mpf(x)) - mp.mpf(x)
    assert_close(exponential_remainder(torch.tensor([x], dtype=torch.float64)), want, rtol=1e-15, atol=1e-320)


# Entropies


@logits_of_all_kinds
@log_precisions
def test_entropies_agree_with_hundreds_of_digits(name, log_precision):
    h, total = shares(name), mp.exp(mp.mpf(log_precision))
    alpha = [total * share for share in h]
    q = dirichlet(LOGITS[name], log_precision)
    digammas = each(mp.digamma, alpha)
    of_total = mp.digamma(total)
    log_beta = mp.fsum(each(mp.loggamma, alpha)) - mp.loggamma(total)
    entropy = (
        log_beta + (total - len(h)) * of_total - mp.fsum((a - 1) * d for a, d in zip(alpha, digammas, strict=True))
    )
    size = mp.fsum(abs(mp.log(a)) + 1 / a for a in alpha)  # rounding of log alpha, as the docstring says
    assert_close(q.entropy(), entropy, rtol=0, atol=5e-14 * size)
    expected = of_total + 1 / total - mp.fsum(s * d for s, d in zip(h, digammas, strict=True)) - len(h) / total
    of_mean = -mp.fsum(s * mp.log(s) for s in h)
    assert_close(q.expected_entropy(), expected, rtol=2e-13, atol=1e-300)
    assert_close(q.mutual_information(), of_mean - expected, rtol=2e-12, atol=1e-300)
    assert_close(measures.predictive_entropy(q), of_mean, rtol=1e-13)


@logits_of_all_kinds
def test_from_log_precision_20_on_entropy_and_information_fall_and_never_tie(name):
    g = torch.tensor([20.0, 24.0, 33.0, 33.5, 40.0, 100.0, 690.0, 709.0, 710.0, 750.0, 800.0], dtype=torch.float64)
    logits = torch.tensor(LOGITS[name], dtype=torch.float64)
    if name in ("certain", "vanishing", "vertex"):  # there it rises with the precision until all concentrations reach 1
        logits = logits / 40
    q = Dirichlet.from_logits(logits.expand(len(g), -1), g)
    assert (q.entropy().diff() < 0).all()
    assert (q.mutual_information()[g < 740].diff() < 0).all()
    assert (q.expected_entropy() <= measures.predictive_entropy(q)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@logits_of_all_kinds
@log_precisions
def test_values_and_gradients_are_numbers_everywhere(name, log_precision, dtype):
    logits = torch.tensor([LOGITS[name]], dtype=dtype, requires_grad=True)
    g = torch.tensor([log_precision], dtype=dtype, requires_grad=True)
    q = Dirichlet.from_logits(logits, g)
    for value in (q.entropy(), q.expected_entropy(), q.mutual_information(), measures.predictive_entropy(q)):
        assert value.isfinite().all()
        for gradient in torch.autograd.grad(value.sum(), (logits, g), allow_unused=True, retain_graph=True):
            assert gradient is None or gradient.isfinite().all()
    draws = q.log_rsample(20)
    assert draws.isfinite().all()
    assert q.log_prob(draws.detach()).isfinite().all()
    for gradient in torch.autograd.grad(draws.exp()[..., 0].sum(), (logits, g)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("log_precision", [-20.0, -1.0, 3.0, 8.0, 33.0])
def test_gradients_of_entropies_are_their_slopes_in_the_log_precision(log_precision):
    step = mp.mpf(10) ** -60
    h = shares("skewed")

    def reference(kind, g):
        total = mp.exp(g)
        alpha = [total * share for share in h]
        digammas = [mp.digamma(a) for a in alpha]
        if kind == "entropy":
            log_beta = mp.fsum(map(mp.loggamma, alpha)) - mp.loggamma(total)
            tail = mp.fsum((a - 1) * d for a, d in zip(alpha, digammas, strict=True))
            return log_beta + (total - len(h)) * mp.digamma(total) - tail
        mean = mp.fsum(s * mp.digamma(a + 1) for s, a in zip(h, alpha, strict=True))
        return mp.digamma(total + 1) - mean

    for kind, sign in (("entropy", 1), ("expected_entropy", 1), ("mutual_information", -1)):
        g = torch.tensor([log_precision], dtype=torch.float64, requires_grad=True)
        q = Dirichlet.from_logits(torch.tensor([LOGITS["skewed"]], dtype=torch.float64), g)
        (got,) = torch.autograd.grad(getattr(q, kind)().sum(), g)
        point = mp.mpf(log_precision)
        want = sign * (reference(kind, point + step) - reference(kind, point - step)) / (2 * step)
        assert_close(got, want, rtol=1e-9)  # torch's trigamma has nine digits


def test_a_tiny_precision_leaves_the_mean_as_it_is():
    # All concentrations used to be raised to one smallest number, which made the mean even.
    for log_precision in (-300.0, -400.0, -700.0):
        q = dirichlet([0.0, -3.0, -5.0], log_precision)
        assert_close(q.mutual_information(), measures.predictive_entropy(q).item(), rtol=1e-12)
        assert q.expected_entropy().item() < 1e-100


# Near certainty


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rest", [1e-3, 1e-9, 1e-20, 1e-35])
@pytest.mark.parametrize("made", ["from logits", "by hand"])
def test_entropy_and_confidence_near_certainty(made, rest, dtype):
    # The logarithm of the largest probability rounds to 0 in float32: the entropy at 1 - 1e-9 was 4.6 % off.
    small = torch.tensor(rest, dtype=dtype)
    if made == "by hand":
        q = Dirichlet(torch.stack([1 - small, small])[None], torch.zeros(1, dtype=dtype))
    else:
        q = Dirichlet.from_logits(
            torch.stack([torch.zeros_like(small), small.log()])[None], torch.zeros(1, dtype=dtype)
        )
    other = mp.exp(mp.mpf(q.log_mean[0, 1].item()) - mp.mpf(q.log_mean[0, 0].item()))
    h = [1 / (1 + other), other / (1 + other)]
    tolerance = 3e-7 if dtype == torch.float32 else 1e-13
    entropy = -mp.fsum(share * mp.log(share) for share in h)
    assert_close(measures.predictive_entropy(q), entropy, rtol=tolerance)
    assert_close(measures.least_confidence(q), h[1], rtol=tolerance)
    target = q.log_mean.detach()[None]
    assert_close(CrossEntropy()(NO_INPUT, target, q), entropy, rtol=10 * tolerance)
    particles = q.log_mean.expand(3, -1, -1)
    assert_close(measures.predictive_entropy(particles), entropy, rtol=tolerance)
    assert_close(measures.expected_entropy(particles), entropy, rtol=tolerance)
    assert measures.mutual_information(particles).item() <= 1e-13 * entropy


# Densities


@logits_of_all_kinds
@pytest.mark.parametrize("log_precision", [-300.0, -5.0, 3.0, 20.0, 33.0, 40.0, 100.0])
def test_log_density_agrees_with_hundreds_of_digits_at_points_of_all_kinds(name, log_precision):
    h, total = shares(name), mp.exp(mp.mpf(log_precision))
    alpha = [total * share for share in h]
    log_beta = mp.fsum(each(mp.loggamma, alpha)) - mp.loggamma(total)
    q = dirichlet(LOGITS[name], log_precision)
    tilt = torch.linspace(-1, 1, len(h), dtype=torch.float64)
    width = math.exp(-max(log_precision, 0.0) / 2)  # how far draws are from the mean
    for logits in (q.log_mean, q.log_mean + width * tilt, 0 * tilt.expand(1, -1)):
        point = [mp.mpf(value) for value in logits[0].tolist()]
        norm = mp.log(mp.fsum(map(mp.exp, point)))
        log_point = [value - norm for value in point]
        want = mp.fsum((a - 1) * p for a, p in zip(alpha, log_point, strict=True)) - log_beta
        apart = max(abs(p - mp.log(s)) for p, s in zip(log_point, h, strict=True))
        rounding = 2e-14 * len(h) * (1 + abs(mp.log(total)) + 200) + 3e-16 * total * apart * 200
        assert_close(q.log_prob(logits), want, rtol=1e-12, atol=rounding)


def test_a_float32_point_is_a_point_on_the_simplex():
    # Unnormalised by 1e-8, its density at log-precision 20 was 5 nats off.
    torch.manual_seed(0)
    logits = torch.randn(50, 4)
    q = Dirichlet.from_logits(logits.double(), torch.full((50,), 20.0, dtype=torch.float64))
    point = logits.log_softmax(-1)
    peak = q.log_prob(logits.double().log_softmax(-1))
    torch.testing.assert_close(q.log_prob(point), peak, rtol=0, atol=1e-3)


def test_the_density_at_a_vertex_is_nothing_or_infinite():
    vertex = torch.tensor([[0.0, -math.inf, -math.inf]], dtype=torch.float64)
    sharp, sparse = (Dirichlet.from_concentration(torch.full((1, 3), a, dtype=torch.float64)) for a in (2.0, 0.5))
    assert sharp.log_prob(vertex).item() == -math.inf or sharp.log_prob(vertex).item() == torch.finfo(torch.float64).min
    assert sparse.log_prob(vertex).item() >= torch.finfo(torch.float64).max


# Intervals


def normal_or_gamma_quantile(a: float, b: float, level: float):
    """A quantile of Beta(a, b) where one shape or both are huge, by Newton's method on the density in many digits."""
    mp = MPContext()
    mp.dps = 60
    a, b = mp.mpf(a), mp.mpf(b)
    mean = a / (a + b)
    width = mp.sqrt(mean * (b / (a + b)) / (a + b + 1))
    log_norm = mp.loggamma(a + b) - mp.loggamma(a) - mp.loggamma(b)
    mp.dps = 40

    def density(t):  # of t = (x - mean) / width, times exp of a constant that Stirling's formula makes stable
        x = mean + width * t
        return mp.exp(log_norm + (a - 1) * mp.log(x) + (b - 1) * mp.log1p(-x)) * width

    low = max(mp.mpf(-12), -mean / width * (1 - mp.mpf(10) ** -12))
    z = mp.mpf(MPContext.erfinv(mp, 2 * mp.mpf(level) - 1)) * mp.sqrt(2)
    for _ in range(4):
        mass = mp.quad(density, [low, -4, -2, 0, z])
        z -= (mass - level) / density(z)
    return mean, width, z


@pytest.mark.parametrize(("a", "b"), [(1.1e8, 1.1e8), (2e8, 1e12), (1e12, 1e12), (3e9, 1e13), (1e12, 2e8)])
@pytest.mark.parametrize("level", [0.05, 0.5, 0.95])
def test_quantiles_of_large_shapes_agree_with_integrals(a, b, level):
    law = BetaMarginals(torch.tensor([[a]], dtype=torch.float64), torch.tensor([[b]], dtype=torch.float64))
    mean, width, z = normal_or_gamma_quantile(a, b, level)
    got = (mp.mpf(law.quantile(level).item()) - mean) / width
    rounding = float(2e-16 * mean / width)
    assert abs(got - z) < 1e-9 + rounding
    assert law.cdf(float(mean + width * z)).item() == pytest.approx(level, abs=1e-9 + rounding)


@pytest.mark.parametrize("big", [1e15, 1e21, 1e100, 1e300])
@pytest.mark.parametrize("small", [1e-30, 0.3, 1.0, 40.0, 1e6])
def test_a_huge_shape_leaves_the_gamma_law_of_the_other(small, big):
    law = BetaMarginals(*torch.tensor([[[small, big]], [[big, small]]], dtype=torch.float64))
    for level in (0.05, 0.5, 0.95):
        want = special.gammaincinv(small, level) / big
        want = 0.0 if want < 2.3e-308 else want
        got = law.quantile(level)[0]
        assert got[0].item() == pytest.approx(want, rel=1e-9 + 2 * max(small, 10) / big, abs=1e-307)
        assert law.quantile(1 - level)[0, 1].item() == pytest.approx(1 - want, rel=1e-15)
        if want > 1e-290:
            assert law.cdf(want)[0, 0].item() == pytest.approx(level, rel=1e-8 + 20 * small**1.5 / big)


@logits_of_all_kinds
@log_precisions
def test_intervals_are_in_order_and_hold_the_mean_of_a_sharp_prediction(name, log_precision):
    q = dirichlet(LOGITS[name][:40], log_precision)
    low, high = q.interval(0.9)
    assert (low >= 0).all()
    assert (low <= high).all()
    assert (high <= 1).all()
    marginals = q.marginals()
    torch.testing.assert_close(marginals.mean, q.mean, rtol=1e-12, atol=1e-200)
    assert marginals.variance.isfinite().all()
    held = q.concentration > 100  # nearly normal: the mean lies inside, at most two standard deviations from either end
    mean, width = marginals.mean, marginals.variance.sqrt()
    assert ((low <= mean) & (mean <= high))[held].all()
    reach = 2 * width + 1e-15
    assert ((mean - low <= reach) & (high - mean <= reach))[held].all()


# Divergences


def kl_reference(p: list, g_p, q: list, g_q):
    a, b = ([mp.exp(g) * share for share in h] for h, g in ((p, g_p), (q, g_q)))
    total, other = mp.exp(g_p), mp.exp(g_q)
    digamma = mp.digamma(total)
    normaliser = mp.fsum(mp.loggamma(y) - mp.loggamma(x) for x, y in zip(a, b, strict=True))
    normaliser -= mp.loggamma(other) - mp.loggamma(total)
    return normaliser + mp.fsum((x - y) * (mp.digamma(x) - digamma) for x, y in zip(a, b, strict=True))


def softmax(logits: list[float]) -> list:
    weights = [mp.exp(mp.mpf(value)) for value in logits]
    return [weight / mp.fsum(weights) for weight in weights]


@pytest.mark.parametrize("log_precision", [-100.0, -5.0, 0.0, 3.0, 8.0, 20.0, 33.0, 100.0, 600.0])
@pytest.mark.parametrize("size", [1e-9, 1e-6, 1e-3, 0.5, 3.0])
@pytest.mark.parametrize("name", ["even", "skewed", "certain", "vanishing"])
def test_kl_divergence_is_right_relative_to_its_own_size(name, size, log_precision):
    logits = LOGITS[name]
    tilt = [size * (-1) ** k * (k + 1) / len(logits) for k in range(len(logits))]
    for move_mean, move_precision in ((1, 0), (0, 1), (1, -1)):
        moved = [value + move_mean * t for value, t in zip(logits, tilt, strict=True)]
        p, q = dirichlet(logits, log_precision), dirichlet(moved, log_precision + move_precision * size)
        g_p, g_q = mp.mpf(p.log_precision.item()), mp.mpf(q.log_precision.item())
        # Logits of 200 are rounded by 3e-14 when they are normalised, which is the size of the error that remains.
        rounding = 1e-11 + 4e-14 / size
        assert_close(kl_divergence(p, q), kl_reference(softmax(logits), g_p, softmax(moved), g_q), rtol=rounding)
        assert_close(kl_divergence(q, p), kl_reference(softmax(moved), g_q, softmax(logits), g_p), rtol=rounding)


@laws
@given(st.floats(-300, 800), st.lists(st.floats(-200, 0), min_size=2, max_size=6))
def test_kl_divergence_of_equals_is_0_and_of_others_a_number(log_precision, logits):
    p = dirichlet(logits, log_precision)
    assert kl_divergence(p, p).item() == 0
    for g in (-300.0, 0.0, 800.0):
        g_other = torch.tensor([g], dtype=torch.float64, requires_grad=True)
        mean = torch.tensor([logits[::-1]], dtype=torch.float64, requires_grad=True)
        for value in (kl_divergence(p, Dirichlet.from_logits(mean, g_other)), kl_divergence(dirichlet(logits, g), p)):
            assert value.isfinite().all()
            assert value.item() >= 0
        value = kl_divergence(Dirichlet.from_logits(mean, g_other), p)
        for gradient in torch.autograd.grad(value.sum(), (mean, g_other)):
            assert gradient.isfinite().all()


def test_kl_divergence_has_the_gradient_of_its_formula():
    torch.manual_seed(0)
    p = Dirichlet.from_logits(torch.randn(6, 4).double(), torch.linspace(-4, 8, 6).double())
    logits = (p.log_mean + 0.3 * torch.randn(6, 4)).requires_grad_()
    g = (p.log_precision + torch.tensor([0.1, -0.5, 2.0, -2.0, 0.9, 1e-3])).requires_grad_()
    for function in (kl_divergence, lambda a, b: kl_divergence(b, a)):
        assert torch.autograd.gradcheck(
            lambda x, y, f=function: f(p, Dirichlet.from_logits(x, y)), (logits, g), atol=1e-6
        )
