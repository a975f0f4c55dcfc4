"""Kernel, conditionals, link and checks of Gaussian-process teachers, against dense or textbook results."""

import gpytorch
import pytest
import torch

from opu.teachers.gp_kernel import (
    check_hyper,
    check_table,
    class_log_probabilities,
    conditional,
    inducing_points,
    median_distance,
    rbf,
)

HYPER = torch.tensor([0.2, 0.7]).double()


@pytest.mark.parametrize("num_lengthscales", [1, 3])
def test_the_kernel_is_the_textbooks(num_lengthscales):
    a, b = torch.randn(4, 3).double() + 50, torch.randn(5, 3).double() + 50
    hyper = torch.randn(2, num_lengthscales + 1).double()
    scale = hyper[:, :-1].exp().expand(2, 3)
    away = (a[None, :, None] - b[None, None]) / scale[:, None, None]
    expected = hyper[:, -1, None, None].exp() * (-0.5 * away.square().sum(-1)).exp()
    torch.testing.assert_close(rbf(a, b, hyper), expected, rtol=1e-9, atol=1e-12)


def test_the_conditional_is_that_of_a_dense_gaussian():
    x, inducing = torch.randn(6, 2).double(), torch.randn(4, 2).double()
    values = torch.randn(4, 1).double()
    features, variance = conditional(x, inducing, HYPER)
    across, square = rbf(x, inducing, HYPER), rbf(inducing, inducing, HYPER)
    square = square + 1e-6 * HYPER[1].exp() * torch.eye(4)
    mean = across @ torch.linalg.solve(square, torch.linalg.cholesky(square) @ values)
    torch.testing.assert_close(features @ values, mean, rtol=1e-8, atol=1e-8)
    rest = rbf(x, x, HYPER) - across @ torch.linalg.solve(square, across.T)
    torch.testing.assert_close(variance.squeeze(1), rest.diagonal(), rtol=1e-6, atol=1e-8)


def test_the_kernel_agrees_with_gpytorch():
    x = torch.randn(5, 3).double()
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=3)).double()
    hyper = torch.randn(4).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = hyper[:3].exp(), hyper[3].exp()
    torch.testing.assert_close(kernel(x).to_dense().detach(), rbf(x, x, hyper), rtol=1e-6, atol=1e-9)


def test_the_link_of_one_function_gives_two_classes_that_sum_to_one():
    latents = torch.tensor([[-800.0], [0.5], [800.0]])
    logs = class_log_probabilities(latents)
    torch.testing.assert_close(logs[1].exp(), torch.tensor([0.3775407, 0.6224593]))
    assert logs[0].tolist() == [0.0, -800.0]
    assert logs[2].tolist() == [-800.0, 0.0]
    assert class_log_probabilities(torch.randn(4, 3)).shape == (4, 3)


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
