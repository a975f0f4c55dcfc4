"""A mixture of three Dirichlets for each input, by maximum likelihood: a richer family than one Dirichlet."""

import torch
from jaxtyping import Float
from torch import Tensor

from opu.distributions import Dirichlet
from opu.distributions.pointwise import maximum_likelihood
from opu.measures import mean

NUM_PARTS, NUM_STEPS, NUM_DRAWS = 3, 300, 1000


def draws_of_mixture(log_particles: Float[Tensor, "S B K"]) -> Float[Tensor, "D B K"]:
    """Draws from the most likely mixture of each input, since a mixture has no interval in closed form.

    The parts begin at thirds of the particles, in the order of the predicted class's probability.
    """
    log_concentration = torch.stack([maximum_likelihood(third).log_concentration() for third in _thirds(log_particles)])
    weights = torch.zeros(NUM_PARTS, log_particles.shape[1], dtype=torch.float64)
    with torch.enable_grad():
        given = [each.double().requires_grad_() for each in (log_concentration, weights)]
        optimizer = torch.optim.Adam(given, 0.03)
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            (-_log_likelihood(log_particles.double(), *given)).sum().backward()
            optimizer.step()
    log_concentration, weights = (each.detach() for each in given)
    part = torch.distributions.Categorical(logits=weights.T).sample((NUM_DRAWS,)).unsqueeze(-1)
    draws = torch.stack([Dirichlet.from_log_concentration(each).log_rsample(NUM_DRAWS) for each in log_concentration])
    return torch.stack([torch.where(part == number, draws[number], 0.0) for number in range(NUM_PARTS)]).sum(0)


def _thirds(log_particles: Tensor) -> list[Tensor]:
    predicted = mean(log_particles).argmax(-1)
    rank = log_particles.gather(-1, predicted.expand(len(log_particles), -1).unsqueeze(-1)).argsort(0)
    return list(log_particles.gather(0, rank.expand_as(log_particles)).tensor_split(NUM_PARTS))


def _log_likelihood(log_particles: Tensor, log_concentration: Tensor, weights: Tensor) -> Float[Tensor, " B"]:
    """Mean log-likelihood of each input's particles."""
    alpha = log_concentration.clamp(-10, 15).exp()  # (parts, B, K)
    norm = torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1)
    each = norm.unsqueeze(0) + torch.einsum("pbk,sbk->spb", alpha - 1, log_particles)
    return (each + weights.log_softmax(0)).logsumexp(1).mean(0)
