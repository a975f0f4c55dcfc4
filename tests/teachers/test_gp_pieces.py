"""Kernel, quadrature, bound and Laplace's approximation of Gaussian-process teachers, against dense or numerical answers."""

import math

import gpytorch
import pytest
import torch
from opu.teachers.gp_laplace import SparsePosterior, evidence, find_mode, laplace
from opu.teachers.gp_likelihood import expected_curvature, expected_log_likelihood, nodes
from scipy.integrate import quad

from opu.teachers.gp_kernel import (
    check_hyper,
    check_table,
    class_log_probabilities,
    inducing_points,
    median_distance,
    rbf,
    whitened_features,
)

HYPER = torch.tensor([0.2, 0.7]).double()


def posterior(num_functions=1, num_rows=30, num_inducing=5):
    x = torch.randn(num_rows, 2).double()
    labels = torch.arange(num_rows) % max(2, num_functions)
    x[:, 0] += labels
    prior = torch.tensor([0.0, 1.0]).double(), torch.tensor([1.0, 1.5]).double()
    return SparsePosterior(x, labels, inducing_points(x, num_inducing), nodes(num_functions), *prior)


@pytest.mark.parametrize("num_lengthscales", [1, 3])
def test_the_kernel_is_the_textbooks(num_lengthscales):
    a, b = torch.randn(4, 3).double() + 50, torch.randn(5, 3).double() + 50
    hyper = torch.randn(2, num_lengthscales + 1).double()
    scale = hyper[:, :-1].exp().expand(2, 3)
    away = (a[None, :, None] - b[None, None]) / scale[:, None, None]
    expected = hyper[:, -1, None, None].exp() * (-0.5 * away.square().sum(-1)).exp()
    torch.testing.assert_close(rbf(a, b, hyper), expected, rtol=1e-9, atol=1e-12)


def test_whitened_features_give_the_conditional_of_a_dense_gaussian():
    x, inducing = torch.randn(6, 2).double(), torch.randn(4, 2).double()
    values = torch.randn(4, 1).double()
    features, variance = whitened_features(x, inducing, HYPER)
    across, square = rbf(x, inducing, HYPER), rbf(inducing, inducing, HYPER)
    square = square + 1e-6 * HYPER[1].exp() * torch.eye(4)
    mean = across @ torch.linalg.solve(square, torch.linalg.cholesky(square) @ values)
    torch.testing.assert_close(features @ values, mean, rtol=1e-8, atol=1e-8)
    rest = rbf(x, x, HYPER) - across @ torch.linalg.solve(square, across.T)
    torch.testing.assert_close(variance.squeeze(1), rest.diagonal(), rtol=1e-6, atol=1e-8)


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
    draws = mean + variance.sqrt() * torch.randn(100_000, 3, num_functions).double()
    errors = expected_log_likelihood(mean, variance, labels, rule) - (mean[:, 0] - draws.logsumexp(-1).mean(0))
    assert (errors.abs() < torch.tensor([0.01, 0.02, 0.06])).all()


def test_the_link_of_one_function_gives_two_classes_that_sum_to_one():
    latents = torch.tensor([[-800.0], [0.5], [800.0]])
    logs = class_log_probabilities(latents)
    torch.testing.assert_close(logs[1].exp(), torch.tensor([0.5]).neg().sigmoid().new_tensor([0.3775407, 0.6224593]))
    assert logs[0].tolist() == [0.0, -800.0]
    assert logs[2].tolist() == [-800.0, 0.0]
    assert class_log_probabilities(torch.randn(4, 3)).shape == (4, 3)


def test_the_bound_is_symmetric_under_a_flip_of_labels():
    target = posterior()
    flipped = SparsePosterior(
        target.x, 1 - target.labels, target.inducing, target.rule, target.prior_mean, target.prior_spread
    )
    whitened = torch.randn(5, 1).double()
    torch.testing.assert_close(target.log_density(HYPER, whitened), flipped.log_density(HYPER, -whitened))


@pytest.mark.parametrize("num_functions", [1, 3])
def test_the_mode_has_no_slope(num_functions):
    target = posterior(num_functions)
    features, variance = target.features(HYPER)
    mode = find_mode(target, features, variance, torch.zeros(5, num_functions).double()).requires_grad_()
    (slope,) = torch.autograd.grad(target.fit(features, variance, mode), mode)
    assert float(slope.abs().max()) < 1e-3


def test_the_slope_of_the_evidence_is_its_change():
    target, start = posterior(), torch.zeros(5, 1).double()
    _, slope, _ = evidence(target, HYPER, start)
    for direction, expected in zip(torch.eye(2).double(), slope.tolist(), strict=True):
        up, down = (evidence(target, HYPER + step * direction, start)[0] for step in (1e-4, -1e-4))
        assert (up - down) / 2e-4 == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_laplace_stands_at_the_maximum_and_knows_how_the_mode_moves():
    target = posterior()
    found = laplace(target, 1)
    best, slope, _ = evidence(target, found.hyper, found.mode)
    assert float(slope.abs().max()) < 0.05
    for shift in 0.3 * torch.eye(2).double():
        assert evidence(target, found.hyper + shift, found.mode)[0] < best
        assert evidence(target, found.hyper - shift, found.mode)[0] < best
    shift = torch.tensor([0.05, -0.02]).double()
    _, _, mode = evidence(target, found.hyper + shift, found.mode)
    tangent = found.mode + torch.einsum("p,pmc->mc", shift, found.ridge)
    assert float((mode - tangent).norm()) < 0.1 * float((mode - found.mode).norm())


def test_inducing_points_are_centres_or_the_inputs_themselves():
    x = torch.cat([torch.randn(20, 2), torch.randn(20, 2) + 40]).double()
    centres = inducing_points(x, 2)
    expected = torch.stack([x[:20].mean(0), x[20:].mean(0)])
    torch.testing.assert_close(centres[centres[:, 0].argsort()], expected)
    assert torch.equal(inducing_points(x.repeat(3, 1), 60), x.unique(dim=0))


def test_the_median_distance_leaves_out_repetitions():
    x = torch.tensor([[0.0], [0.0], [0.0], [3.0]]).double()
    assert median_distance(x) == 3.0
    assert median_distance(torch.zeros(4, 2).double()) == 1.0


@pytest.mark.parametrize(
    ("x", "labels", "message"),
    [
        (torch.zeros(4), torch.tensor([0, 1, 0, 1]), "two axes"),
        (torch.zeros(2, 3, 3), torch.tensor([0, 1]), r"x.flatten\(1\)"),
        (torch.tensor([[0.0], [torch.nan]]), torch.tensor([0, 1]), "must be finite"),
        (torch.zeros(2, 3), torch.tensor([0, 1, 1]), "one class for each of the 2 inputs"),
        (torch.zeros(2, 3), torch.tensor([[0], [1]]), "one class for each of the 2 inputs"),
        (torch.zeros(2, 3), torch.tensor([0.5, 1.0]), r"integers 0 \.\. K - 1"),
        (torch.zeros(3, 3), torch.tensor([0, 2, 2]), "class 1 has none"),
        (torch.zeros(2, 3), torch.tensor([0, 0]), "class 1 has none"),
        (torch.zeros(2, 3), torch.tensor([-1, 1]), "Number the classes from 0"),
    ],
)
def test_tables_that_cannot_be_learnt_from_are_refused(x, labels, message):
    with pytest.raises(ValueError, match=message):
        check_table(x, labels)


@pytest.mark.parametrize("hyper", [torch.zeros(3), torch.tensor([0.0, torch.inf])])
def test_hyperparameters_must_fit_the_features(hyper):
    with pytest.raises(ValueError, match="2 or 6 finite numbers"):
        check_hyper(hyper, 5)


def test_labels_of_any_integer_type_are_taken():
    _, labels, num_functions = check_table(torch.zeros(3, 1), torch.tensor([0, 1, 2], dtype=torch.int32))
    assert labels.dtype == torch.int64
    assert num_functions == 3
    assert check_table(torch.zeros(2, 1), torch.tensor([False, True]))[2] == 1


def test_the_kernel_agrees_with_gpytorch():
    x = torch.randn(5, 3).double()
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=3)).double()
    hyper = torch.randn(4).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = hyper[:3].exp(), hyper[3].exp()
    torch.testing.assert_close(kernel(x).to_dense().detach(), rbf(x, x, hyper), rtol=1e-6, atol=1e-9)
