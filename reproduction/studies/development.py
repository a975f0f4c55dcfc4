"""What recipes and baselines are chosen by: held-out digits, and OOD sets that no table has."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor

from reproduction.paper import domains
from reproduction.paper.models import Models
from reproduction.paper.reproduce import FULL, QUICK, QUICK_SIZES


@dataclass(frozen=True)
class Development:
    """MNIST for choosing by. Of the held-out digits one half calibrates, and the other, ``fresh``, is judged by."""

    models: Models
    calibration: Tensor
    fresh: Tensor
    labels: Tensor
    ood: dict[str, Tensor]


def development(seed: int, folder: Path, device: str, small: bool) -> Development:
    """The same for every process.

    Args:
        seed: Seed of the models and of the OOD sets.
        folder: Folder in which trained teachers are kept.
        device: ``cpu`` or ``cuda``.
        small: A small version that takes minutes.
    """
    domain, scale = domains.mnist(), FULL["mnist"]
    if small:
        domain, scale = domain.small(*QUICK_SIZES["mnist"]), QUICK["mnist"]
    half, where = len(domain.held_out) // 2, torch.device(device)
    ood = {name: x.to(where) for name, x in ood_sets(domain.held_out[half:], seed=seed).items()}
    domain = domain.to(where)
    models = Models(domain, scale, seed, folder, where, progress=False)
    labels = domain.held_out_labels[half:].cpu()
    return Development(models, domain.held_out[:half], domain.held_out[half:], labels, ood)


def ood_sets(x: Tensor, *, seed: int) -> dict[str, Tensor]:
    """OOD sets by name, images of 28 x 28 in [-1, 1].

    Args:
        x: In-distribution digits, which are turned, cut and inverted.
        seed: Seed of cuts and gratings.
    """
    generator = torch.Generator().manual_seed(seed)
    return {
        "coarse digits": coarse_digits(),
        "turned": torch.rot90(x, 1, (-2, -1)),
        "halves": halves(x, generator),
        "inverted": -x,
        "gratings": gratings(len(x), generator),
    }


def halves(x: Tensor, generator: torch.Generator) -> Tensor:
    """The upper half of one image over the lower half of another."""
    other = x[torch.randperm(len(x), generator=generator)]
    middle = x.shape[-2] // 2
    return torch.cat([x[..., :middle, :], other[..., middle:, :]], -2)


def gratings(count: int, generator: torch.Generator) -> Tensor:
    """Sine gratings of any direction, 1 to 7 periods across the image."""
    angle, phase = (2 * math.pi * torch.rand(2, count, 1, 1, generator=generator)).unbind(0)
    periods = 1 + 6 * torch.rand(count, 1, 1, generator=generator)
    place = torch.linspace(0, 1, 28)
    along = angle.cos() * place.view(1, 1, 28) + angle.sin() * place.view(1, 28, 1)
    return torch.sin(2 * math.pi * periods * along + phase)


def coarse_digits() -> Tensor:
    """Scikit-learn's digits of 8 x 8, stretched into the box of 20 x 20 in which MNIST's sit."""
    small = torch.as_tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    large = F.interpolate(small, size=(20, 20), mode="bilinear", align_corners=False)
    return F.pad(large, (4, 4, 4, 4), value=-1.0).squeeze(1)
