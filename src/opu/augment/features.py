"""Transformations of feature vectors ``(B, F)``; the centre and scale of each column are those of the batch."""

import math

import torch
from torch import Tensor

from opu.augment.transforms import Transform, mixup, normal_like, one_of, uniform

__all__ = ["default", "mixup", "noise", "permuted_columns", "scaled_about_centre"]


def default() -> Transform:
    """For each row one of noise, mixup, permuted columns and scaling about the centre."""
    return one_of(noise, mixup, permuted_columns, scaled_about_centre)


def noise(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Add normal noise of up to two standard deviations of each column."""
    strength = uniform(x, 0.0, 2.0, generator) * x.std(0, correction=0)
    return x + strength * normal_like(x, generator)


def permuted_columns(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Replace a fifth to all of a row's values by those of other rows: the marginals stay, the dependence is lost."""
    donors = torch.rand(x.shape, generator=generator, device=x.device).argsort(0)  # an own order for each column
    exchanged = torch.rand(x.shape, generator=generator, device=x.device) < uniform(x, 0.2, 1.0, generator)
    return torch.where(exchanged, x.gather(0, donors), x)


def scaled_about_centre(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Move each row away from the mean, by a factor from 1 to 5."""
    factor = uniform(x, 0.0, math.log(5.0), generator).exp()
    centre = x.mean(0)
    return centre + factor * (x - centre)
