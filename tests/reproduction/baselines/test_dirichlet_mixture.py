import torch

from opu.distributions import Dirichlet
from reproduction.baselines.dirichlet_mixture import draws_of_mixture


def test_a_mixture_fits_what_one_dirichlet_cannot():
    corners = 60 * torch.eye(4).double()[:2] + 1  # two sharp parts at two corners
    parts = Dirichlet.from_log_concentration(corners.log()).log_rsample(150)  # (150, 2, 4)
    particles = parts.transpose(0, 1).reshape(300, 1, 4)[torch.randperm(300)]
    draws = draws_of_mixture(particles)
    assert draws.shape == (1000, 1, 4)
    torch.testing.assert_close(draws.exp().sum(-1), torch.ones(1000, 1).double())
    for k in (0, 1):  # either corner has half of the draws, and nothing lies in between
        assert abs(float((draws[..., k].exp() > 0.8).double().mean()) - 0.5) < 0.08
    middle = (draws.exp() > 0.2) & (draws.exp() < 0.8)
    assert float(middle.double().mean()) < 0.01
