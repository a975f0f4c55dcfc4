"""Forward KL: plain, with the gradient of each input clipped, or of the mean alone (cross-entropy)."""

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from opu.batches import Batch
from opu.checks import check_positive
from opu.distributions import Dirichlet, SimplexDistribution
from opu.distributions.gamma import remainder_slope
from opu.distributions.logistic_normal import LogisticNormal
from opu.distributions.simplex import normalised
from opu.objectives.base import BaseObjective

_LARGEST_FOR_NORM = 300.0


class ForwardKL(BaseObjective):
    r"""Cross-entropy :math:`-E_{p_x} \ln q_x`: the forward KL without the teacher's entropy, which is constant.

    The particles enter through the mean of their log-probabilities alone, so that even a few particles per step give an
    unbiased gradient.

    Rounding of the particles counts :math:`\alpha_0` times. Particles in float32 are therefore normalised again in float64;
    otherwise value and gradient in the log-precision would be off by 0.2 at log-precision 20 and by 3e5 at 33. Those in
    float64 are taken as they are: value and gradient have errors of about 1e-7 at log-precision 20 and a few hundredths at
    33. Where particles contradict a student of log-precision 88 or more, the value or its gradient is infinite in float32,
    and a run stops with a message; :class:`ClippedKL` goes on.
    """

    def __call__(self, x: Batch, log_particles: Float[Tensor, "S B K"], q: SimplexDistribution) -> Float[Tensor, " B"]:
        """One value per input; it may be negative, as densities may exceed 1."""
        if isinstance(q, LogisticNormal):
            return _log_ratio_kl(log_particles, q)
        return -q.mean_log_prob(_mean_log(log_particles)).to(q.mean.dtype)


class ClippedKL(BaseObjective):
    r"""The forward KL, with the gradient of each input with respect to :math:`\ln\alpha` clipped to a largest norm.

    Far from the training data, the particles of an input may be certain and contradict one another. Their
    log-probabilities of -50 meet a student that is still sharp, and the gradient of this input is thousands of times
    larger than that of any other. A few such inputs would drive the precision of all inputs to its lower bound.

    Clipping does not move an input's optimum, since the gradient vanishes there. With few particles it also clips noise,
    which moves the optimum a little: use 32 or more. The value, by which epochs are compared, is that of the plain KL, or
    the largest number of its dtype where that is infinite.

    Args:
        max_norm: Largest norm of one input's gradient.
    """

    def __init__(self, max_norm: float | int = 3.0) -> None:
        check_positive(max_norm=float(max_norm))
        self.max_norm = max_norm

    def __call__(self, x: Batch, log_particles: Float[Tensor, "S B K"], q: SimplexDistribution) -> Float[Tensor, " B"]:
        """One value per input, that of the forward KL; the gradient is clipped."""
        if isinstance(q, LogisticNormal):
            return _log_ratio_kl(log_particles, q)
        mean_log, limits = _mean_log(log_particles), torch.finfo(q.mean.dtype)
        value = (-q.detach().mean_log_prob(mean_log)).clamp(limits.min, limits.max).to(q.mean.dtype)
        if not torch.is_grad_enabled():
            return value
        log_concentration = q.log_concentration()
        gradient = _gradient(q.detach(), mean_log)
        gradient = gradient * (self.max_norm / gradient.norm(dim=-1, keepdim=True).clamp(min=self.max_norm))
        # This term has value 0 and the clipped gradient.
        carrier: Tensor = (gradient * (log_concentration - log_concentration.detach())).sum(-1)
        return value + carrier.to(value)

    def __repr__(self) -> str:
        return f"ClippedKL({self.max_norm:g})"


def _log_ratio_kl(log_particles: Float[Tensor, "S B K"], q: LogisticNormal) -> Float[Tensor, " B"]:
    """Minus the mean log-density of the particles' centred log-ratios, which a Gaussian bounds by itself."""
    return -q.log_ratio_log_prob(log_particles).mean(0).to(q.location.dtype)


def _mean_log(log_particles: Float[Tensor, "S B K"]) -> Float64[Tensor, "B K"]:
    """Mean log-probabilities of the particles, which are normalised again if they were rounded to less than float64."""
    mean_log = log_particles.double().mean(0)
    if log_particles.dtype == torch.float64:
        return mean_log
    return mean_log - log_particles.double().exp().sum(-1, keepdim=True).log().mean(0)


def _gradient(q: Dirichlet, mean_log: Float64[Tensor, "B K"]) -> Float64[Tensor, "B K"]:
    r"""Gradient in :math:`\ln\alpha`, which is :math:`\alpha_k\,(\psi(\alpha_k) - \psi(\alpha_0) - \overline{\ln\pi_k})`."""
    log_mean, g = normalised(q.log_mean), q.log_precision.double().unsqueeze(-1)
    # Above this precision, the direction alone counts, and the square of the norm must be a number.
    alpha = torch.exp(log_mean + g.clamp(max=_LARGEST_FOR_NORM))
    slopes = remainder_slope(log_mean + g) - log_mean.exp() * remainder_slope(g)
    return alpha * (log_mean - mean_log) + slopes


class CrossEntropy(BaseObjective):
    r""":math:`-E_{p_x}\sum_k \pi_k \ln h_k`: the forward KL between the average particle and the mean, up to a constant.

    By itself this is Bayesian dark knowledge, and the precision is not trained. In a sum it keeps the mean close to the
    teacher's if there are hundreds of classes.
    """

    def __call__(self, x: Batch, log_particles: Float[Tensor, "S B K"], q: SimplexDistribution) -> Float[Tensor, " B"]:
        """One value per input."""
        # Normalised again in float64: in float32 the logarithm of a mean of 1 - 1e-9 is 0.
        return -(log_particles.exp().mean(0) * normalised(q.log_mean)).sum(-1).to(log_particles.dtype)
