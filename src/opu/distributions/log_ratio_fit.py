"""The logistic-normal that fits each input's particles best: the Gaussian with the moments of their centred log-ratios."""

import torch
from jaxtyping import Float
from torch import Tensor

from opu.distributions.logistic_normal import LogisticNormal
from opu.distributions.simplex import normalised

_LOWEST_LOG = -1e3  # in place of minus infinity: a probability that was rounded to 0
_LEAST_VARIANCE = 1e-12
_LEAST_SHARE = 1e-6  # of the mean variance of a log-ratio, for the part that is independent between classes


def fit_logistic_normal(log_particles: Float[Tensor, "S B K"], rank: int | None = None) -> LogisticNormal:
    """The logistic-normal with the mean and covariance of the particles' log-ratios, the most likely one.

    With fewer factors than the covariance has, these are its largest principal components. What is left of each class's
    variance is independent between classes.

    Args:
        log_particles: At least two particles for each input.
        rank: Number of factors; by default as many as the covariance has.
    """
    if len(log_particles) < 2:
        raise ValueError(f"a logistic-normal is fitted to at least two particles per input; got {len(log_particles)}.")
    points = normalised(log_particles, lowest=_LOWEST_LOG)
    ratios = points - points.mean(-1, keepdim=True)
    location = ratios.mean(0)
    away = (ratios - location).movedim(0, -2) / (len(ratios) - 1) ** 0.5  # (B, S, K): away' away is the covariance
    most = min(len(ratios) - 1, ratios.shape[-1] - 1)
    rank = most if rank is None else rank
    if rank:
        _, sizes, directions = torch.linalg.svd(away, full_matrices=False)
        factors = (directions * sizes.unsqueeze(-1))[..., :rank, :].mT
        factors = torch.nn.functional.pad(factors, (0, rank - factors.shape[-1]))
    else:
        factors = away.new_zeros(*location.shape, 0)
    variance = away.square().sum(-2)
    least = (_LEAST_SHARE * variance.mean(-1, keepdim=True)).clamp(min=_LEAST_VARIANCE)
    own = torch.maximum(variance - factors.square().sum(-1), least)
    dtype = log_particles.dtype
    return LogisticNormal(location.to(dtype), (own.log() / 2).to(dtype), factors.to(dtype))
