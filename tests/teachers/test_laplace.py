"""Laplace's approximation in the last layer against a posterior in closed form, and the law of its particles."""

import sys

import pytest
import torch
from torch import nn

from opu.teachers import LaplaceLastLayer, laplace

K, WIDTH = 3, 5


def features() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh())


def fitted(last: nn.Linear, num_rows: int = 40):
    net, x = nn.Sequential(*features(), last), torch.randn(num_rows, 4)
    return laplace(net, x, torch.arange(num_rows) % K, batch_size=16), net, x


def test_logits_have_the_gaussian_posterior_in_closed_form():
    # With weights of 0 every row has the class probabilities 1/K, so that the curvature is a Kronecker product exactly:
    # the precision of the weights is (sum of f f') x (I/K - 1/K^2) + prior.
    last = nn.Linear(WIDTH, K, bias=False)
    nn.init.zeros_(last.weight)
    teacher, net, x = fitted(last)
    f = net[:2](x).detach().double()
    curvature = torch.eye(K).double() / K - 1 / K**2
    prior = teacher.posterior.prior_precision.double() * torch.eye(K * WIDTH).double()
    covariance = torch.linalg.inv(torch.kron(curvature, f.T @ f) + prior).reshape(K, WIDTH, K, WIDTH)
    new = torch.randn(6, 4)
    g = net[:2](new).detach().double()
    mean, found = teacher.logits(new)
    torch.testing.assert_close(mean, torch.zeros(6, K).double())
    torch.testing.assert_close(found, torch.einsum("bi,kilj,bj->bkl", g, covariance, g), rtol=1e-3, atol=1e-6)


def test_the_prior_maximises_the_marginal_likelihood():
    posterior = fitted(nn.Linear(WIDTH, K))[0].posterior
    best = posterior.prior_precision
    evidence = [float(posterior.log_marginal_likelihood(factor * best)) for factor in (0.5, 1.0, 2.0)]
    assert max(evidence) == evidence[1]


class Known:
    """In place of a fitted posterior: Gaussian logits with given moments."""

    def __init__(self, mean, covariance):
        self.moments = mean, covariance

    def _glm_predictive_distribution(self, x):
        return self.moments


def test_log_odds_of_particles_have_the_moments_of_the_logits():
    roots, count = torch.randn(4, K, K).double() * torch.tensor([2.0, 1.0, 0.3]), 4000
    mean, covariance = torch.randn(4, K).double(), roots @ roots.mT
    teacher, new = LaplaceLastLayer(features(), Known(mean, covariance)), torch.zeros(4, 4)
    contrast = torch.tensor([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]]).double()
    expected = mean @ contrast.T
    odds = teacher(new, count).double() @ contrast.T
    assert ((odds.mean(0) - expected).abs() < 5 * odds.std(0) / count**0.5).all()
    products = torch.einsum("sbi,sbj->sbij", odds - expected, odds - expected)
    error = products.std(0) / count**0.5
    assert ((products.mean(0) - contrast @ covariance @ contrast.T).abs() < 5 * error).all()


def test_the_network_is_left_alone_and_is_the_mean():
    teacher, net, x = fitted(nn.Linear(WIDTH, K))
    assert teacher.network() is net
    assert net.training
    assert not any(child._forward_hooks for child in net.modules())
    torch.testing.assert_close(teacher.logits(x)[0], net(x).detach().double())


def test_all_that_must_be_kept_is_counted():
    teacher, net, _ = fitted(nn.Linear(WIDTH, K))
    # Two factors for the weight and one for the bias, each as eigenvectors and eigenvalues.
    sides = [WIDTH, K, K]
    weights = sum(w.numel() for w in net.parameters())
    assert teacher.num_parameters == weights + sum(side**2 + side for side in sides)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "laplace", None)
    with pytest.raises(ImportError, match=r'pip install "one-pass-uncertainty\[laplace\]"'):
        laplace(features(), torch.zeros(2, 4), torch.tensor([0, 1]))
