"""Forward KL, maximum likelihood of the particles, amortised: plain, with a bound on each input's pull, or of means alone."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from opu.distributions.dirichlet import Dirichlet
from opu.objectives.base import BaseObjective


class ForwardKL(BaseObjective):
    r"""Cross-entropy :math:`-E_{p_x} \ln q_x`: the forward KL without the teacher's entropy, which is constant.

    The particles enter through the mean of their log-probabilities alone, so the cost does not grow with their number
    beyond one average, and even a few particles a step give an unbiased gradient.
    """

    def __call__(self, x: Tensor, log_particles: Float[Tensor, "S B K"], q: Dirichlet) -> Float[Tensor, " B"]:
        """One value per input; it may be negative, as densities may exceed 1."""
        return -q.log_prob(log_particles.double().mean(0))


class ClippedKL(BaseObjective):
    r"""The forward KL, with the gradient of each input, in the coordinates :math:`\ln\alpha`, no longer than a bound.

    Where a teacher's members are sure and disagree, as far outside its data, log-probabilities of minus fifty meet a
    student that is still sharp, and the gradient of that one input is thousands of times that of any other. A few of them
    drive the precision of all inputs to its lower bound, where little or nothing lets it come back.

    Without noise the optimum of each input stays where it is, since there it has no gradient. The noise of a few particles
    is cut as well, which moves it a little: use 32 or more. Values, by which epochs are chosen too, are those of the KL.

    Args:
        strongest: The longest gradient of one input.
    """

    def __init__(self, strongest: float | int = 3.0) -> None:
        if not 0 < strongest < math.inf:
            raise ValueError(f"the strongest pull of one input must be positive and finite; got {strongest}. Use 3.")
        self.strongest = strongest

    def __call__(self, x: Tensor, log_particles: Float[Tensor, "S B K"], q: Dirichlet) -> Float[Tensor, " B"]:
        """One value per input, that of the forward KL; only its gradient differs."""
        value = ForwardKL()(x, log_particles, q.detach())
        if not torch.is_grad_enabled():
            return value
        log_concentration = q.log_concentration()
        alpha = log_concentration.detach().exp()
        expected = torch.digamma(alpha) - torch.digamma(alpha.sum(-1, keepdim=True))
        pull = alpha * (expected - log_particles.double().mean(0))
        pull = pull * (self.strongest / pull.norm(dim=-1, keepdim=True).clamp(min=self.strongest))
        # A sum that is 0 and has the shortened gradient.
        move: Tensor = (pull * (log_concentration - log_concentration.detach())).sum(-1)
        return value + move.to(value)

    def __repr__(self) -> str:
        return f"ClippedKL({self.strongest:g})"


class CrossEntropy(BaseObjective):
    r""":math:`-E_{p_x}\sum_k \pi_k \ln h_k`: the forward KL between the average particle and the mean, up to a constant.

    Bayesian dark knowledge by itself, since it leaves the precision alone. Beside another objective it holds the mean
    where a Dirichlet that follows hundreds of classes would pull it away.
    """

    def __call__(self, x: Tensor, log_particles: Float[Tensor, "S B K"], q: Dirichlet) -> Float[Tensor, " B"]:
        """One value per input."""
        return -(log_particles.exp().mean(0).to(q.log_mean) * q.log_mean).sum(-1)
