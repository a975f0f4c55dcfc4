"""Log-odds of the predicted class: known moments, and no heed of classes that are next to impossible."""

import pytest
import torch

import opu
from opu.fidelity.log_odds import log_odds


def particles_of(middle, deviation, count=4001):
    """Particles of two classes whose log-odds are evenly spread quantiles of a Gaussian."""
    z = torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)
    odds = middle + deviation * z.unsqueeze(-1)
    return torch.stack([odds, torch.zeros_like(odds)], -1).log_softmax(-1)


def gaussian(middle, deviation):
    """The logistic-normal of two classes with these log-odds."""
    location = torch.stack([middle, torch.zeros_like(middle)], -1)
    scale = (deviation / 2**0.5).log().unsqueeze(-1).expand(-1, 2)
    return opu.LogisticNormal(location, scale, location.new_zeros(len(middle), 2, 0))


def test_means_and_deviations_are_those_of_gaussian_log_odds():
    middle = torch.tensor([3.0, 12.0, 1.0]).double()
    ones = torch.ones(3).double()
    found = log_odds(gaussian(middle + torch.tensor([0.0, 2.0, -1.0]), 3 * ones), particles_of(middle, 2 * ones))
    torch.testing.assert_close(found.shift, torch.tensor([0.0, 1.0, 0.5]).double(), atol=0.01, rtol=0)
    torch.testing.assert_close(found.spread, 1.5 * ones, atol=0.02, rtol=0)
    assert found.medians() == {"shift": pytest.approx(0.5, abs=0.01), "spread": pytest.approx(1.5, abs=0.02)}


def test_a_dirichlet_has_the_log_odds_of_its_draws():
    q = opu.Dirichlet.from_logits(torch.randn(30, 4).double(), 1 + torch.rand(30).double())
    found = log_odds(q, q.log_rsample(4000))
    assert float(found.shift.max()) < 0.1
    torch.testing.assert_close(found.spread, torch.ones(30).double(), atol=0.12, rtol=0)


def test_a_class_next_to_impossible_changes_nothing():
    q = opu.LogisticNormal(torch.randn(9, 3).double(), torch.zeros(9, 3).double(), torch.randn(9, 3, 2).double())
    particles = opu.LogisticNormal(q.location + 1, q.log_scale, q.factors).log_rsample(300)
    wild = torch.cat([particles, -150 + 20 * torch.randn(300, 9, 1).double()], -1).log_softmax(-1)
    more = opu.LogisticNormal(
        torch.cat([q.location, torch.full((9, 1), -90.0).double()], -1),
        torch.cat([q.log_scale, torch.full((9, 1), 1.0).double()], -1),
        torch.cat([q.factors, torch.zeros(9, 1, 2).double()], -2),
    )
    before, after = log_odds(q, particles), log_odds(more, wild)
    torch.testing.assert_close(before.shift, after.shift, atol=0.02, rtol=0.02)
    torch.testing.assert_close(before.spread, after.spread, atol=0.02, rtol=0.03)


def test_particles_that_agree_leave_finite_numbers():
    same = torch.tensor([[[3.0, 0.0, 0.0]]]).log_softmax(-1).expand(10, 4, 3)
    q = opu.Dirichlet.from_logits(torch.zeros(4, 3), torch.zeros(4))
    found = log_odds(q, same)
    assert bool(torch.isfinite(found.shift).all())
    assert bool(torch.isfinite(found.spread).all())
