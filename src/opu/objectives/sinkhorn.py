"""Sinkhorn divergence: a smooth form of the earth mover's distance that needs no critic."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from opu.batches import Batch
from opu.checks import check_positive
from opu.cuda_graph import being_captured
from opu.distributions import SimplexDistribution
from opu.distributions.kernels import squared_distances
from opu.objectives.base import BaseObjective

_TOLERANCE = 2e-3  # times the blur: the potentials have converged once they change by less


class Sinkhorn(BaseObjective):
    r"""Debiased entropic transport :math:`OT_\epsilon(p, q) - \frac12 OT_\epsilon(p, p) - \frac12 OT_\epsilon(q, q)`.

    The cost is the Euclidean distance, so that the divergence tends to the earth mover's distance as ``blur`` falls.

    Args:
        blur: Entropic temperature, in units of distance on the simplex (whose diameter is 1.41).
        num_samples: Number of draws from the student per input; by default the number of particles.
        max_last_steps: Largest number of steps at the final temperature, which is ``blur``.
    """

    def __init__(self, blur: float = 0.05, num_samples: int | None = None, max_last_steps: int = 500) -> None:
        check_positive(blur=blur)
        self.blur, self.num_samples, self.max_last_steps = blur, num_samples, max_last_steps

    def __call__(self, x: Batch, log_particles: Float[Tensor, "S B K"], q: SimplexDistribution) -> Float[Tensor, " B"]:
        """One value per input; differentiable in the Dirichlet through its samples."""
        samples = q.rsample(self.num_samples or len(log_particles))
        return sinkhorn_divergence(log_particles.detach().exp().to(samples), samples, self.blur, self.max_last_steps)

    def __repr__(self) -> str:
        return f"Sinkhorn(blur={self.blur:g})"


def sinkhorn_divergence(
    particles: Float[Tensor, "S B K"], samples: Float[Tensor, "T B K"], blur: float, max_last_steps: int = 500
) -> Float[Tensor, " B"]:
    """Sinkhorn divergence between two clouds, per input; differentiable in ``samples``.

    The potentials are found without gradients, at temperatures that fall from the diameter to ``blur``, where steps are
    taken until the potentials converge, at most ``max_last_steps``. By the envelope theorem, one more step that is
    differentiable in the samples gives the gradient.
    """
    left, right = particles.permute(1, 0, 2), samples.permute(1, 0, 2)
    with torch.no_grad():
        across, within_left, within_right = _costs(left, right), _costs(left, left), _costs(right, right)
        f, g = torch.zeros_like(across[:, :, 0]), torch.zeros_like(across[:, 0])
        f_own, g_own = torch.zeros_like(f), torch.zeros_like(g)
        for temperature in _temperatures(blur, max_last_steps):
            f_next, g_next = _soft_minimum(across, g, temperature), _soft_minimum(across.mT, f, temperature)
            converged = temperature == blur and _converged(f_next - f, g_next - g, blur)
            f, g = (f + f_next) / 2, (g + g_next) / 2
            f_own = (f_own + _soft_minimum(within_left, f_own, temperature)) / 2
            g_own = (g_own + _soft_minimum(within_right, g_own, temperature)) / 2
            if converged:
                break
        teacher_side = (_soft_minimum(across, g, blur) - _soft_minimum(within_left, f_own, blur)).mean(-1)
    g_last = _soft_minimum(_costs(right, left), f, blur)
    g_own_last = _soft_minimum(_costs(right, right.detach()), g_own, blur)
    return teacher_side + (g_last - g_own_last).mean(-1)


def _converged(f_step: Tensor, g_step: Tensor, blur: float) -> bool:
    if not f_step.numel():
        return True
    if being_captured(f_step):  # a CUDA graph cannot read values, so all steps are taken
        return False
    return float(torch.maximum(f_step.abs().max(), g_step.abs().max())) < _TOLERANCE * blur


def _costs(left: Float[Tensor, "B S K"], right: Float[Tensor, "B T K"]) -> Float[Tensor, "B S T"]:
    # The offset keeps the gradient of the root finite if two points coincide.
    return (squared_distances(left, right) + 1e-10).sqrt()


def _soft_minimum(costs: Float[Tensor, "B S T"], potential: Float[Tensor, "B T"], temperature: float) -> Tensor:
    scores = (potential.unsqueeze(1) - costs) / temperature
    return -temperature * (scores.logsumexp(-1) - math.log(costs.shape[-1]))


def _temperatures(blur: float, max_last_steps: int) -> list[float]:
    diameter, ratio = math.sqrt(2.0), 0.8
    falling = max(0, math.ceil(math.log(blur / diameter) / math.log(ratio)))
    return [diameter * ratio**i for i in range(falling)] + [blur] * max_last_steps
