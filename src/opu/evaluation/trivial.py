"""Trivial detectors, which know nothing of the classes. An OOD set that they solve is no evidence for any method.

Each detector is two-sided: an input's score is the distance of its statistic from the median over calibration inputs.
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
    """Euclidean norm."""
    length: Tensor = x.flatten(1).norm(dim=-1)
    return length


def negative_part(x: Tensor) -> Float[Tensor, " B"]:
    """Sum of the features below 0."""
    return -x.flatten(1).clamp(max=0).sum(-1)


def detectors(x: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """The statistics that make sense for inputs of this shape."""
    found: dict[str, Callable[[Tensor], Tensor]]
    found = {"mean_intensity": mean_intensity, "norm": norm, "negative_part": negative_part}
    return found if x.ndim == 2 else {**found, "border_ink": border_ink}


def trivial_scores(x: Tensor, calibration: Tensor) -> dict[str, Float[Tensor, " B"]]:
    """The scores of every trivial detector, by name.

    Args:
        x: Inputs to score.
        calibration: In-distribution inputs.
    """
    return {name: (f(x) - f(calibration).median()).abs() for name, f in detectors(x).items()}
