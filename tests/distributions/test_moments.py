"""Exact moments against sums over all monomials in 60 digits: values, gradients, limits and chunks."""

import itertools
import math
from collections.abc import Iterator
from functools import cache

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath.ctx_mp import MPContext
from torch import Tensor

from opu.distributions.dirichlet import Dirichlet
from opu.distributions.kernels import Exponential, Polynomial
from opu.distributions.moments import _cumulant_coefficients, kernel_between, kernel_to_points, kernel_within

mp = MPContext()
mp.dps = 60

LOG_PRECISIONS = (-12.0, -4.0, 0.0, 7.0, 20.0)
SERIES = {
    "linear": (0.5, 2.0),
    "sparse": (0.0, 0.0, 1.5, 0.0, 0.7),
    "polynomial": (0.5 * Polynomial(3) + 0.5 * Polynomial(4)).power_series(),
    "exponential": Exponential(0.5).power_series(),
}
LOGITS = {"three": [0.0, -1.0, 0.5], "lopsided": [-60.0, 0.0, -12.0], "four": [0.3, -2.0, 0.0, 1.0]}
CASES = [("three", "linear"), ("four", "sparse"), ("four", "polynomial"), ("lopsided", "exponential")]
cases = pytest.mark.parametrize(
    ("logits", "coefficients"), [(LOGITS[a], SERIES[b]) for a, b in CASES], ids=map(str, CASES)
)
log_precisions = pytest.mark.parametrize("log_precision", LOG_PRECISIONS)
laws = settings(deadline=None, max_examples=25, derandomize=True)


def student(logits: list[float], log_precision: float) -> Dirichlet:
    return Dirichlet.from_logits(
        torch.tensor([logits], dtype=torch.float64), torch.tensor([log_precision], dtype=torch.float64)
    )


def cloud(count: int, batch: int, num_classes: int, seed: int = 0) -> Tensor:
    draws = np.random.default_rng(seed).dirichlet([0.5] * num_classes, size=(count, batch))
    return torch.from_numpy(draws)


def points_of_all_kinds(num_classes: int) -> Tensor:
    vertex = torch.zeros(1, 1, num_classes, dtype=torch.float64)
    vertex[..., 1] = 1
    centre = torch.full_like(vertex, 1 / num_classes)
    return torch.cat([cloud(2, 1, num_classes), vertex, centre])


# References: a sum over all monomials of a degree, with no generating function in sight.


@cache
def exponents(degree: int, num_classes: int) -> list[tuple[int, ...]]:
    def compositions(rest: int, parts: int) -> Iterator[tuple[int, ...]]:
        if parts == 1:
            yield (rest,)
            return
        for first in range(rest + 1):
            yield from ((first, *tail) for tail in compositions(rest - first, parts - 1))

    return list(compositions(degree, num_classes))


def multinomial(powers: tuple[int, ...]) -> int:
    return math.factorial(sum(powers)) // math.prod(map(math.factorial, powers))


def concentration(logits: list, log_precision) -> list:
    weights = [mp.exp(mp.mpf(value)) for value in logits]
    return [mp.exp(mp.mpf(log_precision)) * weight / mp.fsum(weights) for weight in weights]


def monomials(table: list[list], degree: int) -> list:
    """prod_k table[k][m_k] for every m of this degree."""
    return [mp.fprod(row[m] for row, m in zip(table, powers, strict=True)) for powers in exponents(degree, len(table))]


def means_of_monomials(alpha: list, coefficients: tuple[float, ...]) -> list[list]:
    """E prod_k pi_k^m_k = prod_k (alpha_k)_m_k / (alpha_0)_j, for every degree j."""
    degrees = range(len(coefficients))
    rising = [[mp.rf(a, m) for m in degrees] for a in alpha]
    totals = [mp.rf(mp.fsum(alpha), j) for j in degrees]
    return [[value / totals[j] for value in monomials(rising, j)] for j in degrees]


def monomials_of_points(points: Tensor, coefficients: tuple[float, ...]) -> list[list]:
    """Averages over the points of one input, for every degree."""
    degrees = range(len(coefficients))
    tables = [[[mp.mpf(v) ** m for m in degrees] for v in point] for point in points[:, 0].tolist()]
    return [[mp.fsum(v) / len(points) for v in zip(*(monomials(t, j) for t in tables), strict=True)] for j in degrees]


def series_of_inner_products(left: list[list], right: list[list], coefficients: tuple[float, ...]):
    """sum_j c_j sum_m multinomial(m) left_m right_m."""
    num_classes = len(left[1])  # as many as there are monomials of degree one
    return mp.fsum(
        mp.mpf(c) * mp.fsum(multinomial(m) * x * y for m, x, y in zip(exponents(j, num_classes), a, b, strict=True))
        for j, (c, a, b) in enumerate(zip(coefficients, left, right, strict=True))
    )


def to_points_reference(logits: list, log_precision, moments_of_points: list[list], coefficients: tuple[float, ...]):
    means = means_of_monomials(concentration(logits, log_precision), coefficients)
    return series_of_inner_products(means, moments_of_points, coefficients)


def gradient_reference(function, logits: list[float], log_precision: float) -> list:
    """Derivatives in each logit and in the log-precision, by central differences of 1e-20 in 60 digits."""
    point = [mp.mpf(value) for value in (*logits, log_precision)]
    step = mp.mpf(10) ** -20
    result = []
    for k in range(len(point)):
        up, down = ([v + sign * step * (i == k) for i, v in enumerate(point)] for sign in (1, -1))
        result.append((function(up[:-1], up[-1]) - function(down[:-1], down[-1])) / (2 * step))
    return result


def assert_close(got: Tensor, want: list, *, rtol: float, atol: float) -> None:
    for value, reference in zip(got.flatten().tolist(), want, strict=True):
        error = abs(mp.mpf(value) - reference)
        assert error <= atol + rtol * abs(reference), f"got {value!r}, want {float(reference)!r}"


def value_and_gradient(function, logits: list[float], log_precision: float) -> tuple[Tensor, Tensor]:
    logits_ = torch.tensor([logits], dtype=torch.float64).requires_grad_()
    log_precision_ = torch.tensor([log_precision], dtype=torch.float64).requires_grad_()
    value = function(Dirichlet.from_logits(logits_, log_precision_))
    gradients = torch.autograd.grad(value.sum(), (logits_, log_precision_))
    return value.detach(), torch.cat([part.flatten() for part in gradients])


# Values and gradients


@cases
@log_precisions
def test_kernel_to_points_and_its_gradient_agree_with_sixty_digits(logits, log_precision, coefficients):
    points = points_of_all_kinds(len(logits))
    moments_of_points = monomials_of_points(points, coefficients)

    def reference(logits, log_precision):
        return to_points_reference(logits, log_precision, moments_of_points, coefficients)

    value, gradient = value_and_gradient(lambda q: kernel_to_points(q, points, coefficients), logits, log_precision)
    size = sum(coefficients)
    assert_close(value, [reference(logits, log_precision)], rtol=1e-13, atol=0)
    assert_close(gradient, gradient_reference(reference, logits, log_precision), rtol=1e-12, atol=4e-15 * size)


@cases
@log_precisions
def test_kernel_between_and_its_gradient_agree_with_sixty_digits(logits, log_precision, coefficients):
    size = sum(coefficients)
    for other_logits, other_precision in [(logits[::-1], 1.0), (logits[1:] + logits[:1], 18.0)]:
        p = student(other_logits, other_precision)
        means_of_p = means_of_monomials(concentration(other_logits, other_precision), coefficients)

        def reference(logits, log_precision, means_of_p=means_of_p):
            return to_points_reference(logits, log_precision, means_of_p, coefficients)

        value, gradient = value_and_gradient(lambda q, p=p: kernel_between(p, q, coefficients), logits, log_precision)
        assert_close(value, [reference(logits, log_precision)], rtol=1e-12, atol=0)
        assert_close(gradient, gradient_reference(reference, logits, log_precision), rtol=1e-11, atol=1e-14 * size)


def between_itself(q, coefficients):
    return kernel_between(q, q, coefficients)


@log_precisions
@pytest.mark.parametrize("coefficients", [SERIES["polynomial"], SERIES["exponential"]], ids=["poly", "exp"])
@pytest.mark.parametrize("function", [between_itself, kernel_within])
def test_kernel_of_a_law_with_itself_and_its_gradient_agree_with_sixty_digits(log_precision, coefficients, function):
    logits = LOGITS["lopsided"]

    def reference(logits, log_precision):
        means = means_of_monomials(concentration(logits, log_precision), coefficients)
        return series_of_inner_products(means, means, coefficients)

    value, gradient = value_and_gradient(lambda q: function(q, coefficients), logits, log_precision)
    assert_close(value, [reference(logits, log_precision)], rtol=1e-12, atol=0)
    want = gradient_reference(reference, logits, log_precision)
    assert_close(gradient, want, rtol=1e-11, atol=1e-14 * sum(coefficients))


@pytest.mark.parametrize("log_precision", [-3.0, 0.0, 4.0])
def test_gradients_pass_gradcheck(log_precision):
    logits = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    g = torch.full((2,), log_precision, dtype=torch.float64, requires_grad=True)
    points, p = cloud(5, 2, 4), Dirichlet.from_logits(torch.randn(2, 4).double(), torch.ones(2).double())
    coefficients = SERIES["exponential"]
    for function in (
        lambda q: kernel_to_points(q, points, coefficients),
        lambda q: kernel_between(p, q, coefficients),
        lambda q: kernel_between(q, q, coefficients),
        lambda q: kernel_within(q, coefficients),
    ):
        assert torch.autograd.gradcheck(lambda x, y, f=function: f(Dirichlet.from_logits(x, y)), (logits, g), atol=1e-8)


@pytest.mark.parametrize("temperature", [0.05, 0.25])
@log_precisions
def test_long_series_stay_finite_and_agree_with_few_classes(temperature, log_precision):
    # Two classes have few monomials, so even the longest series that a kernel may have can be summed.
    coefficients, logits = Exponential(temperature).power_series(), [0.0, -2.0]
    points = points_of_all_kinds(2)
    means = means_of_monomials(concentration(logits, log_precision), coefficients)
    q = student(logits, log_precision)
    to_points = series_of_inner_products(means, monomials_of_points(points, coefficients), coefficients)
    assert_close(kernel_to_points(q, points, coefficients), [to_points], rtol=1e-12, atol=0)
    within = series_of_inner_products(means, means, coefficients)
    assert_close(kernel_between(q, q, coefficients), [within], rtol=1e-12, atol=0)
    assert_close(kernel_within(q, coefficients), [within], rtol=1e-12, atol=0)


# Known answers


def test_cumulants_count_the_pairs_of_permutations_that_connect_all_points():
    for m in range(1, 5):
        counted = [0] * (m + 2)
        for one, other in itertools.product(itertools.permutations(range(m)), repeat=2):
            reached, edge = {0}, [0]
            while edge:
                edge = [step[i] for i in edge for step in (one, other) if step[i] not in reached]
                reached.update(edge)
            if len(reached) == m:
                counted[cycles(one) + cycles(other)] += 1
        row = np.array(_cumulant_coefficients(4)).reshape(4, 4)[m - 1] * math.factorial(m)
        assert row.round(9).tolist() == counted[2:] + [0] * (4 - m)


def cycles(permutation):
    left, found = set(range(len(permutation))), 0
    while left:
        i, found = left.pop(), found + 1
        while permutation[i] in left:
            i = permutation[i]
            left.remove(i)
    return found


@pytest.mark.parametrize("num_classes", [2, 9, 300])
def test_kernel_within_is_kernel_between_a_law_and_itself(num_classes):
    q = Dirichlet.from_logits(3 * torch.randn(40, num_classes).double(), torch.linspace(-13, 20, 40).double())
    for coefficients in SERIES.values():
        torch.testing.assert_close(
            kernel_within(q, coefficients), kernel_between(q, q, coefficients), rtol=1e-12, atol=0
        )


def test_first_and_second_moments_have_their_textbook_form():
    logits, points = torch.randn(6, 5).double(), cloud(1, 6, 5)
    q = Dirichlet.from_logits(logits, torch.linspace(-3, 5, 6).double())
    alpha, total, v = q.concentration.numpy(), q.precision.numpy(), points[0].numpy()
    first = (alpha * v).sum(-1) / total
    second = ((alpha * v**2).sum(-1) + (alpha * v).sum(-1) ** 2) / (total * (total + 1))
    np.testing.assert_allclose(kernel_to_points(q, points, (0.0, 1.0)), first, rtol=1e-13)
    np.testing.assert_allclose(kernel_to_points(q, points, (0.0, 0.0, 1.0)), second, rtol=1e-13)
    np.testing.assert_allclose(kernel_between(q, q, (0.0, 1.0)), (q.mean.numpy() ** 2).sum(-1), rtol=1e-13)


def test_moments_at_a_vertex_are_those_of_a_beta():
    q = Dirichlet.from_concentration(torch.tensor([[1e-3, 2.0, 500.0]], dtype=torch.float64))
    for k, a in enumerate([1e-3, 2.0, 500.0]):
        vertex = torch.eye(3, dtype=torch.float64)[k].view(1, 1, 3)
        for j in range(1, 9):
            monomial = (0.0,) * j + (1.0,)
            want = mp.rf(mp.mpf(a), j) / mp.rf(mp.mpf(a) + mp.mpf(502.001 - a), j)
            assert_close(kernel_to_points(q, vertex, monomial), [want], rtol=1e-12, atol=0)


@pytest.mark.parametrize("j", [1, 2, 5, 16])
def test_limits_are_a_choice_of_vertex_and_a_point(j):
    monomial, logits, points = (0.0,) * j + (1.0,), LOGITS["four"], cloud(3, 1, 4)
    mean, v = torch.tensor(logits, dtype=torch.float64).softmax(-1).numpy(), points[:, 0].numpy()
    flat, sharp = student(logits, -40.0), student(logits, 40.0)
    np.testing.assert_allclose(kernel_to_points(flat, points, monomial), (v**j @ mean).mean(), rtol=1e-12)
    np.testing.assert_allclose(kernel_to_points(sharp, points, monomial), ((v @ mean) ** j).mean(), rtol=1e-12)
    np.testing.assert_allclose(kernel_between(sharp, sharp, monomial), (mean @ mean) ** j, rtol=1e-6)
    np.testing.assert_allclose(kernel_within(sharp, monomial), (mean @ mean) ** j, rtol=1e-12)
    np.testing.assert_allclose(kernel_within(flat, monomial), mean @ mean, rtol=1e-12)
    np.testing.assert_allclose(
        kernel_between(student(logits, -12.0), student(logits, -12.0), monomial), mean @ mean, rtol=1e-3
    )


def test_a_constant_kernel_has_a_constant_expectation():
    q = student(LOGITS["three"], 1.0)
    for got in (kernel_to_points(q, cloud(4, 1, 3), (2.5,)), kernel_between(q, q, (2.5,)), kernel_within(q, (2.5,))):
        assert got.tolist() == [2.5]


# Laws


@laws
@given(
    st.lists(st.floats(-30, 0), min_size=4, max_size=4),
    st.floats(-12, 20),
    st.floats(0.1, 4),
    st.integers(1, 12),
)
def test_moments_fall_with_the_precision_between_their_limits(logits, log_precision, step, j):
    monomial, points = (0.0,) * j + (1.0,), cloud(3, 1, 4)
    flat, sharp = (
        kernel_to_points(student(logits, g), points, monomial) for g in (log_precision, log_precision + step)
    )
    mean, v = student(logits, 0.0).mean[0].numpy(), points[:, 0].numpy()
    lowest, highest = ((v @ mean) ** j).mean(), (v**j @ mean).mean()  # Jensen, on either side
    assert lowest * (1 - 1e-12) <= sharp.item() <= flat.item() * (1 + 1e-12)
    assert flat.item() <= highest * (1 + 1e-12)


@laws
@given(
    st.lists(st.floats(-30, 0), min_size=5, max_size=5),
    st.lists(st.floats(-30, 0), min_size=5, max_size=5),
    st.floats(-12, 20),
    st.floats(-12, 20),
    st.permutations(range(5)),
)
def test_order_of_laws_and_classes_does_not_matter(logits, others, g, h, order):
    coefficients, points = SERIES["exponential"], cloud(3, 1, 5)
    p, q = student(logits, g), student(others, h)
    between = kernel_between(p, q, coefficients)
    torch.testing.assert_close(kernel_between(q, p, coefficients), between, rtol=1e-12, atol=0)
    p_, q_ = student([logits[k] for k in order], g), student([others[k] for k in order], h)
    torch.testing.assert_close(kernel_between(p_, q_, coefficients), between, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        kernel_to_points(p_, points[..., list(order)], coefficients),
        kernel_to_points(p, points, coefficients),
        rtol=1e-12,
        atol=0,
    )


def test_a_sharp_law_is_a_point():
    logits, coefficients = torch.randn(4, 3).double(), SERIES["polynomial"]
    p = Dirichlet.from_logits(logits, torch.full((4,), 35.0).double())
    q = Dirichlet.from_logits(torch.randn(4, 3).double(), torch.linspace(-8, 8, 4).double())
    np.testing.assert_allclose(
        kernel_between(p, q, coefficients), kernel_to_points(q, p.mean[None], coefficients), rtol=1e-12
    )


def test_many_inputs_at_once_are_many_inputs_one_at_a_time():
    batch, count, num_classes, coefficients = 40, 400, 10, Exponential(0.25).power_series()
    assert batch * count * num_classes * len(coefficients) > 3 * 2**20  # several chunks
    points = cloud(count, batch, num_classes)
    logits = torch.randn(batch, num_classes, dtype=torch.float64, requires_grad=True)
    g = torch.linspace(-12, 20, batch, dtype=torch.float64).requires_grad_()
    weights = torch.rand(batch, dtype=torch.float64)  # a different gradient arrives at each input

    def sweep(rows):
        value = kernel_to_points(Dirichlet.from_logits(logits[rows], g[rows]), points[:, rows], coefficients)
        return value.detach(), *torch.autograd.grad((weights[rows] * value).sum(), (logits, g))

    together = sweep(slice(None))
    alone = [sweep(slice(i, i + 1)) for i in range(batch)]
    torch.testing.assert_close(together[0], torch.cat([one[0] for one in alone]), rtol=1e-13, atol=0)
    for all_at_once, parts in zip(together[1:], list(zip(*alone, strict=True))[1:], strict=True):
        torch.testing.assert_close(all_at_once, torch.stack(parts).sum(0), rtol=1e-10, atol=1e-15)


def test_points_in_float32_cost_only_their_own_rounding():
    logits, points, coefficients = torch.randn(8, 10).double(), cloud(50, 8, 10), SERIES["exponential"]
    q = Dirichlet.from_logits(logits, torch.linspace(-12, 20, 8).double())
    value = kernel_to_points(q, points.float(), coefficients)
    assert value.dtype == torch.float64
    torch.testing.assert_close(value, kernel_to_points(q, points, coefficients), rtol=1e-6, atol=0)


def test_float32_students_get_float64_moments():
    logits, coefficients = torch.randn(4, 6), SERIES["exponential"]
    q = Dirichlet.from_logits(logits, torch.tensor([-12.0, 0.0, 7.0, 20.0]))
    exact = Dirichlet.from_logits(logits.double(), q.log_precision.double())
    points = cloud(20, 4, 6)
    for single, double in [
        (kernel_to_points(q, points, coefficients), kernel_to_points(exact, points, coefficients)),
        (kernel_between(q, q, coefficients), kernel_between(exact, exact, coefficients)),
    ]:
        assert single.dtype == torch.float64
        torch.testing.assert_close(single, double, rtol=1e-6, atol=0)


def test_points_get_no_gradient():
    points = cloud(4, 1, 3).requires_grad_()
    logits = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    value = kernel_to_points(Dirichlet.from_logits(logits, torch.zeros(1).double()), points, SERIES["polynomial"])
    value.sum().backward()
    assert points.grad is None
    assert logits.grad is not None


def test_points_need_an_axis_for_particles():
    with pytest.raises(jaxtyping.TypeCheckError, match="points"):
        kernel_to_points(student(LOGITS["three"], 0.0), cloud(4, 1, 3)[0], SERIES["linear"])
