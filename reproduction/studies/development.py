"""Strangers that no table of ours has, made from held-out digits or from nothing, for choosing a recipe by."""

import math

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor


def strangers(ordinary: Tensor, *, digits: bool, seed: int) -> dict[str, Tensor]:
    """By name, images of 28 x 28 in [-1, 1].

    Args:
        ordinary: Held-out inputs, some of which are turned and cut.
        digits: Whether other people's digits, coarser ones, are strangers here too.
        seed: Of cuts and gratings.
    """
    source = torch.Generator().manual_seed(seed)
    sets = {
        "turned": torch.rot90(ordinary, 1, (-2, -1)),
        "halves": halves(ordinary, source),
        "inverted": -ordinary,
        "gratings": gratings(len(ordinary), source),
    }
    return {"coarse digits": coarse_digits(), **sets} if digits else sets


def halves(x: Tensor, source: torch.Generator) -> Tensor:
    """The upper half of one image over the lower half of another."""
    other = x[torch.randperm(len(x), generator=source)]
    middle = x.shape[-2] // 2
    return torch.cat([x[..., :middle, :], other[..., middle:, :]], -2)


def gratings(count: int, source: torch.Generator) -> Tensor:
    """Plane random_features of any direction, 1 to 7 periods across the image."""
    angle, phase = (2 * math.pi * torch.rand(2, count, 1, 1, generator=source)).unbind(0)
    periods = 1 + 6 * torch.rand(count, 1, 1, generator=source)
    place = torch.linspace(0, 1, 28)
    along = angle.cos() * place.view(1, 1, 28) + angle.sin() * place.view(1, 28, 1)
    return torch.sin(2 * math.pi * periods * along + phase)


def coarse_digits() -> Tensor:
    """Scikit-learn's digits of 8 x 8, stretched into the box of 20 x 20 in which MNIST's sit."""
    small = torch.as_tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    large = F.interpolate(small, size=(20, 20), mode="bilinear", align_corners=False)
    return F.pad(large, (4, 4, 4, 4), value=-1.0).squeeze(1)
