"""Kernels: Gram matrices against NumPy and SciPy, power series against Gram matrices, and how they combine."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath.ctx_mp import MPContext
from scipy.spatial import distance
from torch import Tensor

from opu.distributions.kernels import (
    RBF,
    Exponential,
    Kernel,
    Polynomial,
    ScaledKernel,
    SumOfKernels,
    median_distance,
    squared_distances,
)

mp = MPContext()
mp.dps = 40

KERNELS = {
    "polynomial": (Polynomial(3), lambda inner: (inner + 1) ** 3),
    "homogeneous": (Polynomial(4, offset=0.0), lambda inner: inner**4),
    "linear": (Polynomial(1, offset=0.0), lambda inner: inner),
    "exponential": (Exponential(), lambda inner: np.exp(2 * (inner - 1))),
    "sharp exponential": (Exponential(0.05), lambda inner: np.exp(20 * (inner - 1))),
    "scaled": (0.25 * Exponential(1.0), lambda inner: 0.25 * np.exp(inner - 1)),
    "sum": (0.5 * Polynomial(3) + 0.5 * Polynomial(4), lambda inner: ((inner + 1) ** 3 + (inner + 1) ** 4) / 2),
    "mixed sum": (2 * Exponential(0.25) + Polynomial(2), lambda x: 2 * np.exp(4 * (x - 1)) + (x + 1) ** 2),
}
series_kernels = pytest.mark.parametrize(("kernel", "of_inner"), KERNELS.values(), ids=KERNELS.keys())
laws = settings(deadline=None, max_examples=25, derandomize=True)


def cloud(batch: int, count: int, num_classes: int, concentration: float = 0.5, seed: int = 0) -> Tensor:
    draws = np.random.default_rng(seed).dirichlet([concentration] * num_classes, size=(batch, count))
    return torch.from_numpy(draws)


# Values


@series_kernels
def test_gram_holds_the_kernel_of_every_pair(kernel, of_inner):
    left, right = cloud(2, 5, 4), cloud(2, 3, 4, seed=1)
    want = [[[of_inner(np.dot(x, y)) for y in right[b].numpy()] for x in left[b].numpy()] for b in range(2)]
    np.testing.assert_allclose(kernel.gram(left, right), want, rtol=1e-12)


def test_rbf_is_the_mean_of_gaussians():
    left, right = cloud(2, 5, 4), cloud(2, 3, 4, seed=1)
    got = RBF((0.1, 0.7)).gram(left, right)
    for b in range(2):
        squares = distance.cdist(left[b], right[b], "sqeuclidean")
        want = (np.exp(-squares / (2 * 0.1**2)) + np.exp(-squares / (2 * 0.7**2))) / 2
        np.testing.assert_allclose(got[b], want, rtol=1e-10)


@pytest.mark.parametrize("kernel", [Exponential(), Exponential(0.05), RBF(), RBF((0.2,))], ids=str)
def test_bounded_kernels_lie_between_0_and_1(kernel):
    points = torch.cat([cloud(1, 30, 5), torch.eye(5, dtype=torch.float64)[None]], 1)
    gram = kernel.gram(points, points)
    assert (gram > 0).all()
    assert (gram <= 1 + 1e-12).all()


@pytest.mark.parametrize("kernel", [RBF(), RBF((0.3, 1.0)), *[kernel for kernel, _ in KERNELS.values()]], ids=str)
def test_gram_matrices_are_symmetric_and_positive_semidefinite(kernel):
    points = torch.cat([cloud(3, 40, 4), cloud(3, 1, 4).expand(3, 2, 4)], 1)  # two points coincide
    gram = kernel.gram(points, points)
    np.testing.assert_allclose(gram, gram.mT, rtol=1e-12)
    eigenvalues = np.linalg.eigvalsh(gram.numpy())
    assert (eigenvalues > -1e-12 * eigenvalues.max(-1, keepdims=True)).all()


def test_squared_distances_agree_with_scipy_and_are_never_negative():
    left, right = cloud(2, 50, 10), cloud(2, 30, 10, seed=1)
    want = [distance.cdist(left[b], right[b], "sqeuclidean") for b in range(2)]
    np.testing.assert_allclose(squared_distances(left, right), want, atol=1e-14)
    single = left.float()
    assert (squared_distances(single, single) >= 0).all()
    np.testing.assert_allclose(squared_distances(single, single).diagonal(dim1=1, dim2=2), 0, atol=1e-6)


# Power series


@series_kernels
def test_the_power_series_is_the_kernel(kernel, of_inner):
    inner = np.linspace(0, 1, 101)
    np.testing.assert_allclose(
        np.polynomial.polynomial.polyval(inner, kernel.power_series()), of_inner(inner), rtol=1e-13, atol=2.5e-9
    )


@laws
@given(st.integers(1, 8), st.floats(0, 3), st.floats(0.05, 20), st.floats(1e-3, 1e3))
def test_power_series_agree_with_gram_matrices(degree, offset, temperature, weight):
    left, right = cloud(1, 6, 3), cloud(1, 4, 3, seed=1)
    inner = (left @ right.mT).numpy()
    total = Polynomial(degree, offset) + weight * Exponential(temperature)
    for kernel, tolerance in [(Polynomial(degree, offset), 0.0), (total, 1e-9 * weight)]:
        series = np.polynomial.polynomial.polyval(inner, kernel.power_series())
        np.testing.assert_allclose(kernel.gram(left, right), series, rtol=1e-11, atol=tolerance)


@laws
@given(st.floats(math.log(0.05), math.log(1e6)).map(math.exp).map(lambda t: min(max(t, 0.05), 1e6)))
def test_the_exponential_series_is_positive_and_leaves_out_1e_9_of_what_the_precision_is_learnt_from(temperature):
    coefficients = Exponential(temperature).power_series()
    rate = 1 / mp.mpf(temperature)
    exact = [mp.exp(-rate) * rate**j / mp.factorial(j) for j in range(200)]
    assert coefficients == pytest.approx([float(c) for c in exact[: len(coefficients)]], rel=1e-13)
    left_out, beyond_linear = mp.fsum(exact[len(coefficients) :]), mp.fsum(exact[2:])
    assert left_out <= 1.0001e-9 * beyond_linear
    assert left_out + exact[len(coefficients) - 1] > 0.9999e-9 * beyond_linear  # and not one term more than it needs


def test_power_series_of_polynomials_are_binomial():
    assert Polynomial(3).power_series() == (1, 3, 3, 1)
    assert Polynomial(2, offset=0.5).power_series() == (0.25, 1.0, 1.0)
    assert Polynomial(3, offset=0.0).power_series() == (0, 0, 0, 1)


def test_sums_and_scalings_act_on_coefficients():
    kernel = 0.5 * Polynomial(1) + 2.0 * (Polynomial(3) + Polynomial(1, offset=0.0))
    assert isinstance(kernel, SumOfKernels)
    assert kernel.power_series() == pytest.approx((0.5 + 2, 0.5 + 6 + 2, 6, 2))


@pytest.mark.parametrize("kernel", [RBF(), 0.5 * RBF((0.1,)), Polynomial(3) + RBF()], ids=str)
def test_a_kernel_without_a_power_series_says_what_to_use(kernel):
    with pytest.raises(ValueError, match=r"needs a kernel that is a power series.*got RBF\(.*Use the sampled MMD"):
        kernel.power_series()


# The median heuristic


def test_bandwidths_are_the_median_distance_of_the_teachers_particles():
    teacher, left, right = cloud(2, 7, 4, seed=5), cloud(2, 3, 4), cloud(2, 6, 4, seed=1)
    settled = RBF().settled(teacher).gram(left, right)
    for b in range(2):
        width = np.median(distance.pdist(teacher[b].numpy()))  # of 21 pairs: the median is one of them
        want = RBF((0.5 * width, width, 2 * width)).gram(left, right)[b]
        np.testing.assert_allclose(settled[b], want, rtol=1e-10)


def test_combined_kernels_settle_their_parts_and_leave_the_rest():
    teacher, left, right = cloud(1, 7, 4, seed=5), cloud(1, 3, 4), cloud(1, 6, 4, seed=1)
    kernel = 0.5 * RBF() + 3.0 * Polynomial(2)
    want = 0.5 * RBF().settled(teacher).gram(left, right) + 3 * (left @ right.mT + 1) ** 2
    torch.testing.assert_close(kernel.settled(teacher).gram(left, right), want)
    fixed = RBF((0.3,)) + Exponential()
    torch.testing.assert_close(fixed.settled(teacher).gram(left, right), fixed.gram(left, right))


def test_the_median_looks_at_64_particles():
    particles = cloud(2, 200, 4)
    torch.testing.assert_close(median_distance(particles), median_distance(particles[:, :64]))
    want = [np.sort(distance.pdist(points[:64]))[(64 * 63 // 2 - 1) // 2] for points in particles.numpy()]
    np.testing.assert_allclose(median_distance(particles), want, rtol=1e-10)


def test_a_cloud_in_one_point_still_has_a_kernel():
    point = torch.tensor([[[0.2, 0.8]]], dtype=torch.float64)
    moved = point + torch.tensor([0.01, -0.01], dtype=torch.float64)
    floor = RBF((0.005, 0.01, 0.02)).gram(point, moved)
    torch.testing.assert_close(RBF().settled(point.expand(1, 9, 2)).gram(point, moved), floor)


def test_a_cloud_of_one_particle_has_the_unit_scale():
    point = cloud(2, 1, 3)
    assert median_distance(point).tolist() == [1, 1]


def test_no_gradient_flows_through_the_bandwidths():
    teacher = cloud(1, 7, 3).requires_grad_()
    points = cloud(1, 5, 3, seed=1)
    assert not RBF().settled(teacher).gram(points, points).requires_grad


# Errors


@pytest.mark.parametrize(("degree", "offset"), [(0, 1.0), (-2, 1.0), (3, -0.5)])
def test_a_polynomial_that_is_not_positive_definite_is_refused(degree, offset):
    with pytest.raises(ValueError, match=f"degree of at least 1 .* got degree {degree} and offset {offset}"):
        Polynomial(degree, offset)


@pytest.mark.parametrize("temperature", [0.049, 0.0, -1.0, 1e7, float("nan")])
def test_a_temperature_whose_series_is_too_long_is_refused(temperature):
    with pytest.raises(ValueError, match=f"temperature from 0.05.* got {temperature}"):
        Exponential(temperature)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_the_weight_of_a_kernel_must_be_positive(weight):
    with pytest.raises(ValueError, match=f"weight of a kernel must be positive; got {weight}"):
        weight * Polynomial(2)
    with pytest.raises(ValueError, match="weight of a kernel must be positive"):
        ScaledKernel(weight, Polynomial(2))


def test_a_kernel_must_say_how_pairs_compare():
    with pytest.raises(TypeError, match="abstract method"):
        Kernel()
