"""Averages over the fixed points of logistic-normals: class probabilities, entropy, and the sum of all log-probabilities.

Each point of each input is a vector of logits. There are 64 to 256 times as many numbers as the networks have outputs, so
that this is where the time goes. They are read few times, in blocks that fit the cache, with the points as the last axis,
over which no reduction has to jump.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from opu.distributions.normal_rule import num_points_for, points_like

# Numbers in a block: half a megabyte in the cache of a CPU, and as much as memory allows on a GPU.
_NUMBERS_AT_ONCE = {"cpu": 2**17}
_NUMBERS_ON_GPU = 2**27
_NOT_THERE = -1e30  # a logit whose exponential is 0, and which may be multiplied by 0


@dataclass(frozen=True)
class PointAverages:
    """Averages over the fixed points, one row for each distribution.

    Attributes:
        mean: Class probabilities.
        entropy: Expected entropy of the class probabilities.
        log_sum: Expected sum of the logarithms of all class probabilities.
    """

    mean: Float[Tensor, "N K"]
    entropy: Float64[Tensor, " N"]
    log_sum: Float64[Tensor, " N"]


def point_averages(
    location: Float[Tensor, "N K"], log_scale: Float[Tensor, "N K"], factors: Float[Tensor, "N K R"]
) -> PointAverages:
    """The averages for Gaussian logits, in float32, or in float64 where the logits are.

    No average is a small difference of large terms: float32 keeps seven digits, also next to a corner.
    """
    kind = torch.promote_types(location.dtype, torch.float32)
    location, log_scale, factors = (each.to(kind) for each in (location, log_scale, factors))
    # The largest location is set aside: at nearly all points of a sure prediction it is the largest logit.
    largest = location.argmax(-1, keepdim=True)
    location = location - location.gather(-1, largest)
    points = _two_classes if location.shape[-1] == 2 else _many_classes
    own, shared, scale, basis = points(location, log_scale, factors)
    most = _NUMBERS_AT_ONCE.get(location.device.type, _NUMBERS_ON_GPU)
    rows = max(1, most // own.numel())
    blocks = zip(scale.split(rows), basis.split(rows), largest.split(rows), strict=True)
    parts = [_block(own, shared, *block) for block in blocks]
    mean, entropy, log_norm = (torch.cat(column) for column in zip(*parts, strict=True))
    # The points add up to 0, so that the average of each logit is its location.
    return PointAverages(mean, entropy, location.double().sum(-1) - location.shape[-1] * log_norm)


def _many_classes(location: Tensor, log_scale: Tensor, factors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points of the part that each class has of its own and of what classes share, and what they are multiplied with."""
    num_classes, rank = factors.shape[-2:]
    points = points_like(num_points_for(num_classes + rank), num_classes + rank, location).T
    own, shared = points[:num_classes], points[num_classes:]
    basis = torch.cat([location.unsqueeze(-1), factors], -1)
    return own, torch.cat([torch.ones_like(own[:1]), shared]), log_scale.exp(), basis


def _two_classes(location: Tensor, log_scale: Tensor, factors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For two classes the difference of the logits says all, and it takes points in one dimension."""
    points = points_like(num_points_for(1), 1, location).T
    variance = torch.exp(2 * log_scale).sum(-1) + factors.diff(dim=-2).square().sum((-2, -1))
    own = torch.cat([points, -points]) / 2
    return own, torch.ones_like(own[:1]), variance.sqrt().unsqueeze(-1).expand_as(location), location.unsqueeze(-1)


def _block(
    own: Float[Tensor, "K M"],
    shared: Float[Tensor, "J M"],
    scale: Float[Tensor, "N K"],
    basis: Float[Tensor, "N K J"],
    largest: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, entropy and log-normaliser of some rows."""
    column = largest.unsqueeze(-1)
    one = torch.zeros_like(scale).scatter(-1, largest, 1.0)  # which class is set aside
    aside = basis.gather(1, column.expand(-1, 1, basis.shape[-1])).squeeze(1) @ shared + (one * scale) @ own
    rest = torch.cat([basis[..., :1] + _NOT_THERE * one.unsqueeze(-1), basis[..., 1:] * (1 - one).unsqueeze(-1)], -1)
    below = (rest.flatten(0, 1) @ shared).unflatten(0, scale.shape).addcmul_((scale * (1 - one)).unsqueeze(-1), own)
    top = torch.maximum(below.detach().amax(1), aside.detach())
    below, aside = below.sub_(top.unsqueeze(1)), aside - top
    shares, share = below.exp(), aside.exp()
    # Where the class that is set aside is the largest, its share is 1 exactly, and the others keep their digits.
    others = shares.sum(1) + (share - 1)
    weight = 1 / (1 + others)
    log_norm = torch.log1p(others)
    spread = (shares * below).sum(1) + share * aside
    mean = (shares @ weight.unsqueeze(-1)).squeeze(-1) + one * (share * weight).sum(-1, keepdim=True)
    entropy = log_norm - spread * weight
    return mean / own.shape[-1], entropy.double().mean(-1), (top + log_norm).double().mean(-1)
