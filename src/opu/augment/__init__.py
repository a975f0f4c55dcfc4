"""Augmentation of the inputs that a student is distilled on (the paper's D', features only)."""

import torch
from torch import Tensor

from opu.augment import features, images
from opu.augment.transforms import Transform, chain, one_of
from opu.checks import check_inputs

__all__ = ["Transform", "augment", "chain", "default_transform", "features", "images", "one_of"]


def augment(x: Tensor, transform: Transform | None = None, *, seed: int | None = None) -> Tensor:
    """Transform a batch into inputs that are near the data or far from it.

    The teacher gives particles for such inputs too, and a student that was trained on them has a sensible precision off
    the data. Neither labels nor out-of-distribution data are used.

    Args:
        x: Images ``(B, H, W)`` or ``(B, C, H, W)``, or feature vectors ``(B, F)``.
        transform: By default one of six transformations of images, or one of four of feature vectors, for each row.
        seed: Seed of the transformation; by default torch's global random state is used.
    """
    check_inputs(x, "a batch to augment")
    generator = None if seed is None else torch.Generator(x.device).manual_seed(seed)
    return (transform or default_transform(x))(x, generator)


def default_transform(x: Tensor) -> Transform:
    """The default transformation for a batch, by its number of axes."""
    return images.default() if x.ndim >= 3 else features.default()
