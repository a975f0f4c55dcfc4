"""The best Dirichlet in the earth mover's distance."""

import torch

from opu import Dirichlet, maximum_likelihood
from opu.objectives.sinkhorn import sinkhorn_divergence
from reproduction.paper.pointwise_sinkhorn import minimum_sinkhorn


def distance(q, log_particles):
    torch.manual_seed(1)
    return sinkhorn_divergence(log_particles.exp()[:200], q.rsample(200), 0.05)


def test_a_dirichlet_is_found_again():
    truth = Dirichlet.from_concentration(torch.tensor([[6.0, 3.0, 1.0], [20.0, 20.0, 20.0], [1.0, 1.0, 8.0]]))
    fitted = minimum_sinkhorn(truth.log_rsample(400))
    torch.testing.assert_close(fitted.mean, truth.mean, rtol=0.0, atol=0.05)
    # Transport between small clouds prefers Dirichlets that are a little too sharp.
    assert ((fitted.log_precision - truth.log_precision).abs() < 0.8).all()


def test_it_is_nearer_in_transport_than_the_likeliest_where_the_two_disagree():
    # Two far clusters: a Dirichlet fits neither, and likelihood cares for tails where transport cares for the bulk.
    first = Dirichlet.from_concentration(torch.tensor([[60.0, 5.0, 5.0]])).log_rsample(200)
    second = Dirichlet.from_concentration(torch.tensor([[0.01, 0.01, 0.5]])).log_rsample(200)
    log_particles = torch.cat([first, second])[torch.randperm(400)].clamp(min=-60)
    ours, likeliest = minimum_sinkhorn(log_particles, num_steps=120), maximum_likelihood(log_particles)
    assert float(distance(ours, log_particles)) < float(distance(likeliest, log_particles))


def test_a_class_that_transport_cannot_feel_does_not_drift_with_the_number_of_steps():
    log_particles = torch.tensor([0.0, -30.0, -31.0]).log_softmax(-1).expand(100, 1, 3) + 0.0
    entropies = [float(minimum_sinkhorn(log_particles, num_steps=steps).entropy()) for steps in (20, 60)]
    lowest = minimum_sinkhorn(log_particles, num_steps=60).log_mean.min()
    assert float(lowest) > -12.5
    assert all(torch.isfinite(torch.tensor(entropies)))
