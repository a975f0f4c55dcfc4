import math

import mpmath as mp
import pytest
import torch

from opu.distributions import LogisticNormal
from opu.distributions.log_ratio_gaussian import orthonormal, spanning_vectors


def exact_log_density(location, log_scale, factors, point):
    """The log-density of centred log-ratios in 80 digits, from the covariance of differences to the last class."""
    with mp.workdps(80):
        number = len(location)
        scale, u = [mp.exp(mp.mpf(float(each))) for each in log_scale], factors.tolist()
        products = [
            [mp.fsum(mp.mpf(a) * mp.mpf(b) for a, b in zip(u[i], u[j], strict=True)) for j in range(number)]
            for i in range(number)
        ]
        full = mp.matrix(number, number)
        for i in range(number):
            for j in range(number):
                full[i, j] = products[i][j] + (scale[i] ** 2 if i == j else 0)
        last, few = number - 1, range(number - 1)
        covariance = mp.matrix(number - 1, number - 1)
        away = mp.matrix(number - 1, 1)
        for i in few:
            away[i] = mp.mpf(float(point[i] - point[last])) - mp.mpf(float(location[i])) + mp.mpf(float(location[last]))
            for j in few:
                covariance[i, j] = full[i, j] - full[i, last] - full[last, j] + full[last, last]
        square = (away.T * mp.lu_solve(covariance, away))[0]
        # Differences to one class are log-ratios in other units: their volume is larger by the root of K.
        value = -(mp.log(mp.det(covariance)) + square + (number - 1) * mp.log(2 * mp.pi)) / 2 + mp.log(number) / 2
        return float(value)


@pytest.mark.parametrize(("log_scale", "size"), [(0.0, 1.0), (-6.0, 30.0), (-8.0, 100.0), (-10.0, 1e3), (5.0, 1e-3)])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_densities_agree_with_eighty_digits_however_large_the_factors(log_scale, size, rank):
    location, scales = torch.randn(4, 5).double(), log_scale + 0.3 * torch.randn(4, 5).double()
    factors = size * torch.randn(4, 5, rank).double()
    q = LogisticNormal(location, scales, factors)
    points = q.log_rsample(1)[0]
    got = q.log_ratio_log_prob(points)
    centred = points - points.mean(-1, keepdim=True)
    for i in range(4):
        exact = exact_log_density(location[i], scales[i], factors[i], centred[i])
        assert float(got[i]) == pytest.approx(exact, rel=1e-6, abs=1e-6)


def test_densities_hold_for_probabilities_below_every_number():
    q = LogisticNormal(
        torch.zeros(1, 2).double(), torch.zeros(1, 2).double(), torch.tensor([[[1500.0], [-1500.0]]]).double()
    )
    # The log-odds has variance 2 + 3000^2; the density of the first probability divides by both probabilities.
    gap, variance = 3000.0, 2 + 3000.0**2
    exact = -0.5 * math.log(2 * math.pi * variance) - gap**2 / (2 * variance) + gap
    assert float(q.log_prob(torch.tensor([[0.0, -gap]]).double())) == pytest.approx(exact, rel=1e-12)
    assert float(q.log_prob(torch.tensor([[0.0, -math.inf]]).double())) < -1e40


def test_equal_factors_far_above_the_scales_have_the_volume_of_one():
    factors = 1e3 * torch.randn(2, 100, 1).sign().double()
    log_scale = torch.full((2, 100), -10.0).double()
    _, of_two = orthonormal(spanning_vectors(log_scale, factors.expand(-1, -1, 2)))
    _, of_one = orthonormal(spanning_vectors(log_scale, factors * 2**0.5))  # the same covariance
    torch.testing.assert_close(of_two, of_one, rtol=1e-9, atol=1e-6)


def test_a_basis_is_orthonormal_and_has_the_volume_of_the_vectors():
    vectors = torch.randn(6, 4, 9).double()
    basis, log_volume = orthonormal(vectors)
    torch.testing.assert_close(basis @ basis.mT, torch.eye(4).double().expand(6, 4, 4), rtol=0, atol=1e-12)
    torch.testing.assert_close(log_volume, torch.logdet(vectors @ vectors.mT) / 2)


def test_densities_have_the_gradients_of_finite_differences():
    location, scales, factors = torch.randn(2, 3).double(), torch.randn(2, 3).double(), torch.randn(2, 3, 2).double()
    points = torch.randn(5, 2, 3).double().log_softmax(-1)
    parameters = [each.requires_grad_() for each in (location, scales, factors)]
    assert torch.autograd.gradcheck(lambda *given: LogisticNormal(*given).log_ratio_log_prob(points), parameters)
