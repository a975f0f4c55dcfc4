"""Augmentation of the inputs that a student is distilled on (the paper's D', features only)."""

import torch
from torch import Tensor

from opu.augment import features, images, tokens
from opu.augment.transforms import Transform, chain, one_of, part
from opu.batches import Batch, check_batch, first_tensor, rebuild, tensors

__all__ = ["Transform", "augment", "chain", "default_transform", "features", "images", "one_of", "part", "tokens"]


def augment(x: Batch, transform: Transform | None = None, *, seed: int | None = None) -> Batch:
    """Transform a batch into inputs that are near the data or far from it.

    The teacher gives particles for such inputs too, and a student that was trained on them has a sensible precision off
    the data. Neither labels nor out-of-distribution data are used.

    Args:
        x: Images ``(B, H, W)`` or ``(B, C, H, W)``, feature vectors ``(B, F)``, or a dict, tuple or dataclass of these.
        transform: By default one of six transformations of images, or one of four of feature vectors, for each row.
        seed: Seed of the transformation; by default torch's global random state is used.
    """
    check_batch(x, "a batch to augment")
    generator = None if seed is None else torch.Generator(first_tensor(x).device).manual_seed(seed)
    chosen = transform or default_transform(x)
    return x if chosen is None else chosen(x, generator)


def default_transform(x: Batch) -> Transform | None:
    """The default transformation for a batch, by its number of axes; None if all of it stays as it is.

    Integers may be tokens or categories, of which no average makes sense, so they stay as they are; so do masks. Only bytes
    with the axes of an image are pixels. The parts of a dict, tuple or dataclass are transformed one by one.
    """
    chosen = {name: _for_tensor(t) for name, t in tensors(x).items() if "mask" not in name}
    if all(each is None for each in chosen.values()):
        return None
    if isinstance(x, Tensor):
        return chosen[""]

    def transform(batch: Batch, generator: torch.Generator | None = None) -> Batch:
        parts = []
        for name, t in tensors(batch).items():
            own = chosen.get(name)
            parts.append(t if own is None else own(t, generator))
        return rebuild(batch, parts)

    return transform


def _for_tensor(x: Tensor) -> Transform | None:
    if x.dtype == torch.uint8 and x.ndim in (3, 4):
        return images.of_bytes(images.default())
    if not x.is_floating_point() or x.ndim not in (2, 3, 4):
        return None
    return images.default() if x.ndim >= 3 else features.default()
