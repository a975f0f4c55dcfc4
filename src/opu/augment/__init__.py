"""The inputs a student is distilled on (the paper's D', features only), and how to make them wider."""

import torch
from torch import Tensor

from opu.augment import features, images
from opu.augment.transforms import Transform, chain, one_of
from opu.checks import check_inputs

__all__ = ["Transform", "augment", "chain", "default_transform", "features", "images", "one_of"]


def augment(x: Tensor, transform: Transform | None = None, *, seed: int | None = None) -> Tensor:
    """Inputs a little, or far, outside the batch ``x``, on its device: what the teacher should also be asked about.

    No labels and no out-of-domain data are used. A teacher can label such inputs itself; a student that has seen them
    does not extrapolate its precision blindly.

    Args:
        x: A batch of images ``(B, H, W)`` or ``(B, C, H, W)``, or of feature vectors ``(B, F)``.
        transform: By default one of six for images and one of four for feature vectors, chosen for each row.
        seed: For the same answer every time; torch's global random state is used, and moved, where it is left out.
    """
    check_inputs(x, "a batch to augment")
    generator = None if seed is None else torch.Generator(x.device).manual_seed(seed)
    return (transform or default_transform(x))(x, generator)


def default_transform(x: Tensor) -> Transform:
    """The transformation that suits a batch by its number of axes."""
    return images.default() if x.ndim >= 3 else features.default()
