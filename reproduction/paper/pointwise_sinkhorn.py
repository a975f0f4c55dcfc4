"""The best Dirichlet for each input's particles in the earth mover's distance, by Sinkhorn."""

import torch
from jaxtyping import Float
from torch import Tensor

from opu.distributions.dirichlet import Dirichlet
from opu.distributions.pointwise import LARGEST_LOG_PRECISION, maximum_likelihood
from opu.objectives.sinkhorn import sinkhorn_divergence

# Transport hardly feels a class below this, so its logarithm would drift for as long as one goes on.
_LOWEST = -12.0


def minimum_sinkhorn(
    log_particles: Float[Tensor, "S B K"], *, num_steps: int = 80, num_points: int = 64, blur: float = 0.05
) -> Dirichlet:
    """The Dirichlet nearest to each input's particles in Sinkhorn divergence, by Adam from the likelihood's optimum.

    Each step compares ``num_points`` of the particles, chosen anew, with as many draws. Transport between small clouds
    prefers Dirichlets that are a little too sharp.
    """
    start = maximum_likelihood(log_particles)
    with torch.enable_grad():
        logits = start.log_mean.float().clamp(min=_LOWEST).requires_grad_()
        log_precision = start.log_precision.float().clamp(-6.0, 10.0).requires_grad_()
        optimizer = torch.optim.Adam([logits, log_precision], 0.1)
        for step in range(num_steps):
            optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / num_steps)
            some = torch.randint(len(log_particles), (num_points,), device=log_particles.device)
            q = _bounded(logits, log_precision)
            particles = log_particles[some].float().exp()
            distance = sinkhorn_divergence(particles, q.rsample(num_points), blur, max_last_steps=10)
            optimizer.zero_grad()
            distance.sum().backward()
            optimizer.step()
    return _bounded(logits.detach(), log_precision.detach()).to(log_particles.dtype)


def _bounded(logits: Float[Tensor, "B K"], log_precision: Float[Tensor, " B"]) -> Dirichlet:
    log_mean = logits.log_softmax(-1).clamp(min=_LOWEST)
    return Dirichlet.from_logits(log_mean, log_precision.clamp(-12.0, LARGEST_LOG_PRECISION))
