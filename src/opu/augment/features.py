"""Transformations of feature vectors ``(B, F)``, each column with its own centre and scale, taken from the batch."""

import math

import torch
from torch import Tensor

from opu.augment.transforms import Transform, mixup, normal_like, one_of, uniform

__all__ = ["default", "mixup", "noise", "permuted_columns", "scaled_about_centre"]


def default() -> Transform:
    """For each row one of noise, mixup, permuted columns, scaling about the centre."""
    return one_of(noise, mixup, permuted_columns, scaled_about_centre)


def noise(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Normal noise of up to two standard deviations of each column."""
    strength = uniform(x, 0.0, 2.0, generator) * x.std(0, correction=0)
    return x + strength * normal_like(x, generator)


def permuted_columns(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """In each row, some columns take the value of another row: the margins stay, the dependence between them goes."""
    donors = torch.rand(x.shape, generator=generator, device=x.device).argsort(0)  # each column in an order of its own
    exchanged = torch.rand(x.shape, generator=generator, device=x.device) < uniform(x, 0.2, 1.0, generator)
    return torch.where(exchanged, x.gather(0, donors), x)


def scaled_about_centre(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Each row moved away from the mean, by a factor from 1 to 5."""
    factor = uniform(x, 0.0, math.log(5.0), generator).exp()
    centre = x.mean(0)
    return centre + factor * (x - centre)
