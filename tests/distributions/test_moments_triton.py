"""Kernels for moments and their gradients: on a GPU the numbers of the CPU, whatever the sizes and the layout."""

import sys

import pytest
import torch

from opu.cuda_graph import WARM_UP, CudaGraph
from opu.distributions import moments
from opu.distributions.dirichlet import Dirichlet
from opu.distributions.kernels import Exponential, Polynomial
from opu.distributions.moments import MAX_TRITON_ORDER, _use_triton, kernel_to_points, kernel_within
from opu.objectives import ExactMMD

LONG, TOO_LONG = Polynomial(MAX_TRITON_ORDER, 0.5).power_series(), Polynomial(MAX_TRITON_ORDER + 1, 0.5).power_series()


def both(logits, log_precision, points, coefficients):
    """Values and gradients of both expectations."""
    leaves = logits.clone().requires_grad_(), log_precision.clone().requires_grad_()
    found = []
    for expectation in (lambda q: kernel_to_points(q, points, coefficients), lambda q: kernel_within(q, coefficients)):
        value = expectation(Dirichlet.from_logits(*leaves))
        found += [value.detach(), *torch.autograd.grad(value.sum(), leaves)]
    return [each.cpu() for each in found]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "coefficients",
    [(0.5, 2.0), (0.0, 0.0, 1.5, 0.0, 0.7), Polynomial(3).power_series(), Exponential().power_series(), LONG, TOO_LONG],
    ids=["linear", "sparse", "polynomial", "exponential", "long", "too long"],
)
def test_the_numbers_are_those_of_the_cpu(dtype, coefficients):
    torch.manual_seed(0)
    for sizes in ((1, 1, 2), (64, 9, 10), (500, 3, 47), (5, 4, 1000), (33, 2, 2500)):
        agree(*sizes, dtype, coefficients)


def agree(count, batch, num_classes, dtype, coefficients):
    points = (2 * torch.randn(batch, count, num_classes, dtype=dtype)).softmax(-1).transpose(0, 1)
    points[0, 0] = torch.nn.functional.one_hot(torch.tensor(1), num_classes)
    logits = 3 * torch.randn(batch, num_classes, dtype=torch.float64)
    log_precision = torch.linspace(-8, 15, batch, dtype=torch.float64)
    # Relative to the value's size: a gradient that is a difference of two close numbers is no more exact than that.
    rtol, atol = (1e-10, 1e-13) if dtype == torch.float64 else (1e-4, 1e-6)
    layouts = (points, points.contiguous(), points.mT.contiguous().mT) if num_classes == 10 else (points,)
    for layout in layouts:
        want = both(logits, log_precision, layout, coefficients)
        got = both(logits.cuda(), log_precision.cuda(), layout.cuda(), coefficients)
        for ours, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol * sum(coefficients))


@pytest.mark.gpu
def test_a_cuda_graph_of_them_takes_other_inputs():
    def gradient(logits, log_precision, log_particles):
        leaves = logits.detach().requires_grad_(), log_precision.detach().requires_grad_()
        value = ExactMMD()(logits, log_particles, Dirichlet.from_logits(*leaves))
        return torch.cat([value.detach(), *(each.flatten() for each in torch.autograd.grad(value.sum(), leaves))])

    graph = CudaGraph(gradient)
    for _ in range(WARM_UP + 3):
        inputs = torch.randn(7, 10), torch.randn(7), torch.randn(20, 7, 10).log_softmax(-1)
        found = graph(*(each.cuda() for each in inputs)).cpu()
        torch.testing.assert_close(found, gradient(*inputs), rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
def test_what_they_are_for():
    points = torch.rand(3, 2, 4, device="cuda")
    assert _use_triton(points, len(LONG) - 1)
    assert not _use_triton(points, len(TOO_LONG) - 1)
    assert not _use_triton(points.half(), 4)
    assert not _use_triton(points[:, :0], 4)


def test_a_cpu_has_none():
    assert not _use_triton(torch.rand(3, 2, 4), 4)


def test_a_triton_that_does_not_work_costs_a_warning(monkeypatch):
    monkeypatch.setattr(moments, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setitem(sys.modules, "opu.distributions.moments_triton", None)  # its import fails, as its launch may
    moments._triton_works_on.cache_clear()
    with pytest.warns(UserWarning, match="Triton does not work here .* uses PyTorch"):
        assert not moments._triton_works_on(torch.device("cpu"))
    moments._triton_works_on.cache_clear()
