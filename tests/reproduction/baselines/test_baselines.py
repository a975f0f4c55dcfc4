"""The baselines, against what their formulas say."""

import pytest
import torch
from torch import nn

from opu import Dirichlet, Recipe, distill, kl_divergence, measures
from opu.objectives import CrossEntropy
from reproduction.baselines import CategoricalStudent, ConcentrationStudent, FactorNoise, prior_network_loss


def test_a_categorical_student_is_its_softmax_and_sits_in_a_point():
    net = nn.Linear(4, 3)
    x = torch.randn(6, 4)
    q = CategoricalStudent(net)(x).detach()
    torch.testing.assert_close(q.mean, net(x).softmax(-1))
    # A point on the simplex: draws are the mean, and there is nothing to learn about the model from them.
    torch.testing.assert_close(q.rsample(1)[0], q.mean, rtol=0.0, atol=1e-3)
    assert float(measures.mutual_information(q).max()) < 1e-6


def test_bayesian_dark_knowledge_learns_the_average_of_the_particles():
    truth = torch.distributions.Dirichlet(torch.tensor([6.0, 3.0, 1.0]))
    student = CategoricalStudent(nn.Linear(2, 3))

    def teacher(x, num_particles):
        return truth.sample((num_particles, len(x))).log()

    recipe = Recipe(objective=CrossEntropy(), epochs=60, learning_rate=0.05, augment=None)
    distill(teacher, student, torch.randn(256, 2), recipe=recipe, progress=False)
    mean = student(torch.zeros(1, 2)).mean[0]
    torch.testing.assert_close(mean, torch.tensor([0.6, 0.3, 0.1]), rtol=0.0, atol=0.03)


def test_one_network_gives_log_concentrations_within_bounds():
    net = nn.Linear(4, 3)
    x = torch.randn(6, 4)
    torch.testing.assert_close(ConcentrationStudent(net)(x).concentration, net(x).exp())
    far = ConcentrationStudent(net)(1e6 * x).detach()
    assert torch.isfinite(far.log_precision).all()
    assert float(far.log_precision.max()) < 15 + 1.2  # e^15, three times


def test_the_prior_network_loss_is_zero_at_its_targets_and_nowhere_else():
    labels = torch.tensor([0, 2, 1])
    mean = torch.full((3, 4), 0.01).scatter(1, labels.unsqueeze(-1), 0.97)
    inside = Dirichlet.from_concentration(1000 * mean)
    outside = Dirichlet.from_concentration(torch.ones(3, 4))
    assert float(prior_network_loss(inside, labels, outside)) == pytest.approx(0.0, abs=1e-4)
    other = Dirichlet.from_concentration(torch.tensor([[5.0, 1.0, 1.0, 1.0]]).expand(3, 4))
    assert float(prior_network_loss(other, labels, outside)) > 1
    assert float(prior_network_loss(inside, labels, other)) > 0.1


def test_the_prior_network_loss_is_the_sum_of_two_divergences():
    labels = torch.tensor([1, 0])
    inside = Dirichlet.from_log_concentration(torch.randn(2, 3))
    outside = Dirichlet.from_log_concentration(torch.randn(5, 3))
    mean = torch.full((2, 3), 0.05).scatter(1, labels.unsqueeze(-1), 0.9)
    sharp, flat = (torch.distributions.Dirichlet(a.double()) for a in (50 * mean, torch.ones(5, 3)))
    ours = (torch.distributions.Dirichlet(q.concentration.double()) for q in (inside, outside))
    parts = [torch.distributions.kl_divergence(p, q).mean() for p, q in zip((sharp, flat), ours, strict=True)]
    value = prior_network_loss(inside, labels, outside, precision=50.0, smoothing=0.05)
    torch.testing.assert_close(value.double(), parts[0] + parts[1], rtol=1e-4, atol=1e-4)
    with_labels = prior_network_loss(inside, labels, outside, precision=50.0, smoothing=0.05, cross_entropy=3.0)
    torch.testing.assert_close(with_labels - value, 3 * torch.nn.functional.nll_loss(inside.log_mean, labels))
    assert float(kl_divergence(outside, outside).max()) == 0.0


def test_factor_noise_is_the_data_s_own_law_made_wider():
    # Two factors in five pixels: all of the covariance, so draws have it too, times the square of the spread.
    loadings = torch.tensor([[1.0, 0.5, 0.0, 0.0, 0.2], [0.0, 0.3, 1.0, -0.4, 0.0]])
    x = torch.randn(4000, 2) @ loadings + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    noise = FactorNoise.fit(x, num_factors=2, spread=1.0)
    wide = FactorNoise(noise.mean, noise.factors, torch.tensor(-1e3), torch.tensor(1e3), spread=2.0)
    draws = wide.like(torch.zeros(40_000, 5))
    torch.testing.assert_close(draws.mean(0), x.mean(0), rtol=0.0, atol=0.1)
    torch.testing.assert_close(torch.cov(draws.T), 4 * torch.cov(x.T), rtol=0.05, atol=0.15)


def test_factor_noise_has_the_shape_and_range_of_the_inputs():
    x = torch.rand(200, 1, 6, 6) * 2 - 1
    draws = FactorNoise.fit(x, num_factors=10, spread=50.0).like(x[:7])
    assert draws.shape == (7, 1, 6, 6)
    assert float(draws.min()) >= float(x.min())
    assert float(draws.max()) <= float(x.max())
    assert float(draws.std()) > float(x.std())
