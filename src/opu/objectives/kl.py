"""Forward KL: plain, with the gradient of each input clipped, or of the mean alone (cross-entropy)."""

import torch
from jaxtyping import Float
from torch import Tensor

from opu.batches import Batch
from opu.checks import check_positive
from opu.distributions.dirichlet import Dirichlet
from opu.objectives.base import BaseObjective


class ForwardKL(BaseObjective):
    r"""Cross-entropy :math:`-E_{p_x} \ln q_x`: the forward KL without the teacher's entropy, which is constant.

    The particles enter through the mean of their log-probabilities alone, so that even a few particles per step give an
    unbiased gradient.
    """

    def __call__(self, x: Batch, log_particles: Float[Tensor, "S B K"], q: Dirichlet) -> Float[Tensor, " B"]:
        """One value per input; it may be negative, as densities may exceed 1."""
        return -q.log_prob(log_particles.double().mean(0))


class ClippedKL(BaseObjective):
    r"""The forward KL, with the gradient of each input with respect to :math:`\ln\alpha` clipped to a largest norm.

    Far from the training data, the particles of an input may be certain and contradict one another. Their
    log-probabilities of -50 meet a student that is still sharp, and the gradient of this input is thousands of times
    larger than that of any other. A few such inputs would drive the precision of all inputs to its lower bound.

    Clipping does not move an input's optimum, since the gradient vanishes there. With few particles it also clips noise,
    which moves the optimum a little: use 32 or more. The value, by which epochs are compared, is that of the plain KL.

    Args:
        max_norm: Largest norm of one input's gradient.
    """

    def __init__(self, max_norm: float | int = 3.0) -> None:
        check_positive(max_norm=float(max_norm))
        self.max_norm = max_norm

    def __call__(self, x: Batch, log_particles: Float[Tensor, "S B K"], q: Dirichlet) -> Float[Tensor, " B"]:
        """One value per input, that of the forward KL; the gradient is clipped."""
        value = ForwardKL()(x, log_particles, q.detach())
        if not torch.is_grad_enabled():
            return value
        log_concentration = q.log_concentration()
        alpha = log_concentration.detach().exp()
        expected = torch.digamma(alpha) - torch.digamma(alpha.sum(-1, keepdim=True))
        gradient = alpha * (expected - log_particles.double().mean(0))
        gradient = gradient * (self.max_norm / gradient.norm(dim=-1, keepdim=True).clamp(min=self.max_norm))
        # This term has value 0 and the clipped gradient.
        carrier: Tensor = (gradient * (log_concentration - log_concentration.detach())).sum(-1)
        return value + carrier.to(value)

    def __repr__(self) -> str:
        return f"ClippedKL({self.max_norm:g})"


class CrossEntropy(BaseObjective):
    r""":math:`-E_{p_x}\sum_k \pi_k \ln h_k`: the forward KL between the average particle and the mean, up to a constant.

    By itself this is Bayesian dark knowledge, and the precision is not trained. In a sum it keeps the mean close to the
    teacher's if there are hundreds of classes.
    """

    def __call__(self, x: Batch, log_particles: Float[Tensor, "S B K"], q: Dirichlet) -> Float[Tensor, " B"]:
        """One value per input."""
        return -(log_particles.exp().mean(0).to(q.log_mean) * q.log_mean).sum(-1)
