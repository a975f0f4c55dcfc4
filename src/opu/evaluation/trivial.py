"""Detectors that know nothing of the classes. What they solve is no evidence for anything cleverer.

Each statistic is read two-sided: the score of an input is how far its statistic lies from the median of ordinary inputs.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


def mean_intensity(x: Tensor) -> Float[Tensor, " B"]:
    """Mean of all features."""
    return x.flatten(1).mean(-1)


def border_ink(x: Tensor) -> Float[Tensor, " B"]:
    """Mean of the pixels near the border of an image: a seventh of each side, 4 pixels of 28."""
    planes = x if x.ndim == 4 else x.unsqueeze(1)
    height, width = planes.shape[-2:]
    top, left = max(1, height // 7), max(1, width // 7)
    border = torch.ones(height, width, dtype=torch.bool, device=x.device)
    border[top : height - top, left : width - left] = False
    return planes[..., border].flatten(1).mean(-1)


def norm(x: Tensor) -> Float[Tensor, " B"]:
    """Euclidean length."""
    length: Tensor = x.flatten(1).norm(dim=-1)
    return length


def negative_part(x: Tensor) -> Float[Tensor, " B"]:
    """Sum of the features below 0."""
    return -x.flatten(1).clamp(max=0).sum(-1)


def detectors(x: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """The statistics that make sense for inputs of this shape."""
    everywhere: dict[str, Callable[[Tensor], Tensor]] = {
        "mean_intensity": mean_intensity,
        "norm": norm,
        "negative_part": negative_part,
    }
    return everywhere if x.ndim == 2 else {**everywhere, "border_ink": border_ink}


def trivial_scores(x: Tensor, ordinary: Tensor) -> dict[str, Float[Tensor, " B"]]:
    """The score of every detector, by name."""
    return {name: (f(x) - f(ordinary).median()).abs() for name, f in detectors(x).items()}
