"""Weighted rows: a row of weight 2 counts as two rows, and any other weight raises its likelihood to that power."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from opu.teachers import GibbsSettings, SGPMCSettings, polya_gamma, sgpmc
from opu.teachers.gp_kernel import rbf
from opu.teachers.logistic import polya_gamma_source

GIBBS = GibbsSettings(burn_in=50, thinning=2, num_samples=4000, intercept=False)
X = torch.tensor([[-2.0], [-1.4], [-0.3], [0.1], [0.8], [1.3], [1.9]]).double()
LABELS = torch.tensor([0, 0, 1, 0, 1, 1, 1])
WEIGHTS = torch.tensor([0.3, 2.5, 1.0, 4.0, 0.6, 1.5, 12.0]).double()


@pytest.mark.parametrize("z", [0.0, -0.5, 3.0, 19.0, -37.0, 500.0])
@pytest.mark.parametrize("shape", [0.4, 1.7, 3.0, 30.0])
def test_polya_gamma_variables_of_any_shape_have_their_moments(shape, z):
    count, size = 40_000, abs(z)
    omega = polya_gamma_source(np.random.default_rng(1), np.full(count, shape))(np.full((1, count), z))
    mean = shape / 4 if z == 0 else shape * np.tanh(size / 2) / (2 * size)
    damped = 2 * (1 - np.exp(-2 * size) - 2 * size * np.exp(-size)) / (1 + np.exp(-size)) ** 2
    variance = shape * (1 / 24 if z == 0 else damped / (4 * size**3))
    assert abs(omega.mean() - mean) < 4.5 * np.sqrt(variance / count)
    fourth = np.mean((omega - mean) ** 4)
    assert abs(omega.var() - variance) < 4.5 * np.sqrt((fourth - variance**2) / count)


def test_near_the_border_both_ways_of_drawing_a_shape_give_one_law():
    draw = polya_gamma_source(np.random.default_rng(2), np.full(20_000, 2.3))
    below, above = draw(np.full(20_000, 19.999)), draw(np.full(20_000, 20.001))
    assert ks_2samp(below, above).pvalue > 1e-3


def test_a_weighted_logistic_regression_has_the_posterior_of_quadrature():
    draws = polya_gamma(X, LABELS, GIBBS, weights=WEIGHTS).coefficients[:, 0, 0].numpy()
    theta = np.linspace(-9, 9, 4001)
    sign = 2 * LABELS.numpy() - 1.0
    log_density = -0.5 * theta**2 - WEIGHTS.numpy() @ np.logaddexp(0, -sign[:, None] * X.numpy() * theta)
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    mean = weight @ theta
    spread = np.sqrt(weight @ (theta - mean) ** 2)
    assert abs(draws.mean() - mean) < 0.12 * spread
    assert abs(draws.std() / spread - 1) < 0.08


def test_weights_of_one_change_nothing_and_weights_matter():
    torch.manual_seed(3)
    plain = polya_gamma(X, LABELS, GIBBS).coefficients
    torch.manual_seed(3)
    assert torch.equal(polya_gamma(X, LABELS, GIBBS, weights=np.ones(7)).coefficients, plain)
    torch.manual_seed(3)
    assert not torch.equal(polya_gamma(X, LABELS, GIBBS, weights=WEIGHTS).coefficients, plain)


def test_a_weighted_gaussian_process_has_the_weighted_posterior():
    hyper = torch.tensor([math.log(0.8), math.log(6.0)]).double()
    teacher = sgpmc(X, LABELS, SGPMCSettings(inducing_fraction=1.0, num_samples=400), hyper=hyper, weights=WEIGHTS / 3)
    covariance = rbf(X, X, hyper) + 6e-6 * torch.eye(7)
    draws = (torch.linalg.cholesky(covariance) @ torch.randn(200_000, 7, 1).double()).squeeze(-1)
    logs = torch.nn.functional.logsigmoid((2 * LABELS - 1) * draws)
    posterior, unweighted = (logs @ WEIGHTS / 3).softmax(0), logs.sum(1).softmax(0)
    mean = posterior @ draws
    spread = (posterior @ (draws - mean).square()).sqrt()
    found = teacher(X, 400).double()
    found = found[..., 1] - found[..., 0]
    assert ((found.mean(0) - mean).abs() < 0.3 * spread).all()
    assert float(((unweighted @ draws - mean).abs() / spread).max()) > 0.5  # the weights make a difference


@pytest.mark.parametrize("fit", [polya_gamma, sgpmc])
def test_weights_that_cannot_be_are_refused(fit):
    with pytest.raises(ValueError, match=r"one number for each of the 7 inputs; got shape \(3,\)"):
        fit(X, LABELS, weights=torch.ones(3))
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(
            ValueError, match=r"weights must be positive and finite; got others\. Leave rows of weight 0 out"
        ):
            fit(X, LABELS, weights=torch.tensor([1.0] * 6 + [bad]))
