"""Quadrature, posterior and Laplace's approximation of Gaussian-process teachers, against numerical results."""

import math
from dataclasses import replace

import pytest
import torch
from scipy.integrate import quad

from opu.teachers.gp_kernel import inducing_points
from opu.teachers.gp_posterior import (
    SparsePosterior,
    evidence,
    expected_curvature,
    expected_log_likelihood,
    find_mode,
    laplace,
    laplace_at,
    nodes,
)

HYPER = torch.tensor([0.2, 0.7]).double()


def posterior(num_functions=1, num_rows=30, num_inducing=5):
    x = torch.randn(num_rows, 2).double()
    labels = torch.arange(num_rows) % max(2, num_functions)
    x[:, 0] += labels
    prior = torch.tensor([0.0, 1.0]).double(), torch.tensor([1.0, 1.5]).double()
    return SparsePosterior(x, labels, inducing_points(x, num_inducing), nodes(num_functions), *prior)


def test_quadrature_of_one_function_is_the_integral():
    mean, variance = torch.tensor([[0.0], [2.0], [-4.0]]).double(), torch.tensor([[0.3], [4.0], [9.0]]).double()
    labels = torch.tensor([1, 0, 1])

    def average(f, m, v):
        return quad(lambda t: f(m + math.sqrt(v) * t) * math.exp(-t * t / 2) / math.sqrt(2 * math.pi), -9, 9)[0]

    rows = list(zip(mean.flatten().tolist(), variance.flatten().tolist(), (2 * labels - 1).tolist(), strict=True))
    fits = [average(lambda f, s=s: -math.log1p(math.exp(-s * f)), m, v) for m, v, s in rows]
    bends = [average(lambda f: math.exp(-f) / (1 + math.exp(-f)) ** 2, m, v) for m, v, _ in rows]
    rule = nodes(1)
    torch.testing.assert_close(
        expected_log_likelihood(mean, variance, labels, rule), torch.tensor(fits).double(), rtol=0, atol=1e-4
    )
    torch.testing.assert_close(
        expected_curvature(mean, variance, rule).squeeze(1), torch.tensor(bends).double(), rtol=0, atol=1e-3
    )


@pytest.mark.parametrize("num_functions", [3, 10, 40])
def test_nodes_of_several_functions_average_cubics_exactly_and_softmax_closely(num_functions):
    rule = nodes(num_functions)
    torch.testing.assert_close(float(rule.weights.sum()), 1.0)
    covariance = torch.einsum("q,qc,qd->cd", rule.weights, rule.points, rule.points)
    torch.testing.assert_close(covariance, torch.eye(num_functions).double(), rtol=0, atol=1e-12)
    assert float(torch.einsum("q,qc,qd,qe->cde", rule.weights, *3 * [rule.points]).abs().max()) < 1e-12
    mean, variance = torch.randn(3, num_functions).double(), torch.tensor([[0.2], [1.0], [4.0]]).double()
    labels = torch.zeros(3, dtype=torch.int64)
    draws = mean + variance.sqrt() * torch.randn(40_000, 3, num_functions).double()
    errors = expected_log_likelihood(mean, variance, labels, rule) - (mean[:, 0] - draws.logsumexp(-1).mean(0))
    assert (errors.abs() < torch.tensor([0.01, 0.02, 0.06])).all()


def test_the_bound_is_symmetric_under_a_flip_of_labels():
    target = posterior()
    flipped = replace(target, labels=1 - target.labels)
    functions, whitened = target.given(HYPER), torch.randn(5, 1).double()
    torch.testing.assert_close(target.fit(functions, whitened), flipped.fit(functions, -whitened))


@pytest.mark.parametrize("num_functions", [1, 3])
def test_the_mode_has_no_slope(num_functions):
    target = posterior(num_functions)
    functions = target.given(HYPER)
    mode = find_mode(target, functions, target.zeros).requires_grad_()
    (slope,) = torch.autograd.grad(target.fit(functions, mode), mode)
    assert float(slope.abs().max()) < 1e-3
    torch.testing.assert_close(laplace_at(target, HYPER).mode, mode.detach())


def test_the_slope_of_the_evidence_is_its_change():
    target = posterior()
    _, slope, _ = evidence(target, HYPER, target.zeros)
    for direction, expected in zip(torch.eye(2).double(), slope.tolist(), strict=True):
        up, down = (evidence(target, HYPER + step * direction, target.zeros)[0] for step in (1e-4, -1e-4))
        assert (up - down) / 2e-4 == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_laplace_stands_at_the_maximum_and_knows_how_the_mode_moves():
    target = posterior()
    found = laplace(target)
    best, slope, _ = evidence(target, found.hyper, found.mode)
    assert float(slope.abs().max()) < 0.05
    for shift in 0.3 * torch.eye(2).double():
        assert evidence(target, found.hyper + shift, found.mode)[0] < best
        assert evidence(target, found.hyper - shift, found.mode)[0] < best
    shift = torch.tensor([0.05, -0.02]).double()
    _, _, mode = evidence(target, found.hyper + shift, found.mode)
    tangent = found.mode + torch.einsum("p,pmc->mc", shift, found.ridge)
    assert float((mode - tangent).norm()) < 0.1 * float((mode - found.mode).norm())
