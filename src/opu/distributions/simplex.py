"""Points on the simplex in logarithms, normalised so that even a class of probability 1 - 1e-20 keeps its digits."""

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from opu.distributions.gamma import exponential_remainder

LOG_OF_NOTHING = -2000.0  # exp of it is 0, and it is still a number that can be multiplied by 0


def normalised(scores: Float[Tensor, "*B K"], lowest: float = LOG_OF_NOTHING) -> Float64[Tensor, "*B K"]:
    """Log-probabilities from logarithms up to a constant, in float64.

    ``log_softmax`` gives 0 for the logarithm of 1 - 1e-9 in float32, and of 1 - 1e-17 in float64; entropies are then some
    percent off. Here the others are added up without the largest. What is below ``lowest``
    is raised to it.
    """
    return _parts(scores, lowest)[0]


def log_shares(scores: Float[Tensor, "*B K"]) -> tuple[Float64[Tensor, "*B K"], Float64[Tensor, "*B K"]]:
    """Logarithms of each class's probability as in :func:`normalised`, and of the sum of the others' probabilities."""
    log_mean, largest, others = _parts(scores, LOG_OF_NOTHING)
    # No other probability is above 1/2, so that nothing cancels; the largest is set aside since it may be 1.
    rest = log_mean.scatter(-1, largest, -torch.inf)
    return log_mean, torch.log1p(-rest.exp()).scatter(-1, largest, others)


def entropy(log_mean: Float64[Tensor, "*B K"]) -> Float64[Tensor, "*B"]:
    """Entropy of each row of normalised log-probabilities."""
    return -(log_mean.exp() * log_mean).sum(-1)


def divergence(left: Float64[Tensor, "*#B K"], right: Float64[Tensor, "*#B K"]) -> Float64[Tensor, "*B"]:
    """KL(left || right) between rows of normalised log-probabilities, right relative to its own size."""
    away, share = right - left, left.exp()
    # p (e^x - 1 - x) with x = ln q - ln p: no term is negative, and the first two sum to 0 over the classes.
    near, far = share * exponential_remainder(away.clamp(-1, 1)), right.exp() - share - share * away
    return torch.where(away.abs() < 1, near, far).sum(-1)


def _parts(scores: Tensor, lowest: float) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised logarithms, the place of the largest, and the logarithm of the sum of the others' probabilities."""
    top, largest = scores.double().max(-1, keepdim=True)
    below = (scores - top).clamp(min=lowest)
    others = below.exp().scatter(-1, largest, 0.0).sum(-1, keepdim=True)  # in units of the largest
    log_norm = torch.log1p(others)
    return below - log_norm, largest, others.clamp(min=1e-300).log() - log_norm
