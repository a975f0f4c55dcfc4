"""Transformations of images ``(B, H, W)`` or ``(B, C, H, W)``.

Values stay within the range of the batch, and its smallest value is taken as background.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from opu.augment.transforms import Transform, mixup, normal_like, one_of, uniform

__all__ = ["affine", "default", "intensity", "mixup", "of_bytes", "pixel_noise", "shuffled_patches", "smooth_noise"]


def default() -> Transform:
    """For each row one of mixup, affine, shuffled patches, pixel noise, intensity and smooth noise."""
    return one_of(mixup, affine, shuffled_patches, pixel_noise, intensity, smooth_noise)


def of_bytes(transform: Transform) -> Transform:
    """The same transformation of images whose pixels are bytes: computed in float32 and rounded."""

    def rounded(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        changed: Tensor = transform(x.float(), generator)
        return changed.round().clamp(0, 255).to(x.dtype)

    return rounded


def affine(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Rotate by up to 90 degrees, scale by 0.5 to 1.6, shear and shift, all at random."""
    planes, rows = _planes(x), len(x)
    angle = uniform(x, -math.pi / 2, math.pi / 2, generator, rows)
    log_scale = uniform(x, math.log(1 / 1.6), math.log(2.0), generator, rows)
    shear = uniform(x, -0.5, 0.5, generator, rows)
    shift = uniform(x, -0.4, 0.4, generator, rows, 2)
    cosine, sine = angle.cos() * log_scale.exp(), angle.sin() * log_scale.exp()
    first = torch.stack([cosine, -sine + shear, shift[:, 0]], -1)
    second = torch.stack([sine, cosine, shift[:, 1]], -1)
    grid = F.affine_grid(torch.stack([first, second], 1), list(planes.shape), align_corners=False)
    background = planes.amin()
    moved = F.grid_sample(planes - background, grid, align_corners=False) + background
    return moved.reshape(x.shape)


def shuffled_patches(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Shuffle the patches of a 2 x 2 or 4 x 4 grid; pixels at the border that fit into no patch stay."""
    planes = _planes(x)
    fine = torch.rand(len(x), 1, 1, 1, generator=generator, device=x.device) < 0.5
    return torch.where(fine, _shuffled(planes, 4, generator), _shuffled(planes, 2, generator)).reshape(x.shape)


def _shuffled(planes: Tensor, grid: int, generator: torch.Generator | None) -> Tensor:
    height, width = planes.shape[-2] // grid * grid, planes.shape[-1] // grid * grid
    if height == 0 or width == 0:
        return planes
    count, channels = planes.shape[:2]
    cut = planes[..., :height, :width].reshape(count, channels, grid, height // grid, grid, width // grid)
    cut = cut.permute(0, 2, 4, 1, 3, 5).reshape(count, grid * grid, -1)
    order = torch.rand(count, grid * grid, generator=generator, device=planes.device).argsort(-1)
    cut = cut.gather(1, order.unsqueeze(-1).expand_as(cut))
    cut = cut.reshape(count, grid, grid, channels, height // grid, width // grid).permute(0, 3, 1, 4, 2, 5)
    whole = planes.clone()
    whole[..., :height, :width] = cut.reshape(count, channels, height, width)
    return whole


def pixel_noise(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Add independent noise with a standard deviation of up to half the range, clipped to the range."""
    low, high = x.amin(), x.amax()
    strength = uniform(x, 0.0, 0.5, generator) * (high - low)
    return (x + strength * normal_like(x, generator)).clamp(min=low, max=high)


def intensity(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Change the contrast by a factor of 0.2 to 1.5 and shift by up to half the range, clipped to the range."""
    low, high = x.amin(), x.amax()
    contrast = uniform(x, 0.2, 1.5, generator)
    shift = uniform(x, -0.25, 0.5, generator) * (high - low)
    return (low + contrast * (x - low) + shift).clamp(min=low, max=high)


def smooth_noise(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Blend the image with a smooth random field, whose weight is between 1/3 and 1."""
    planes = _planes(x)
    low, high = planes.amin(), planes.amax()
    coarse = uniform(planes, 0.0, 1.0, generator, *planes.shape[:2], 4, 4)
    field = low + (high - low) * F.interpolate(coarse, size=planes.shape[-2:], mode="bilinear", align_corners=True)
    weight = uniform(planes, 1 / 3, 1.0, generator)
    return (weight * field + (1 - weight) * planes).reshape(x.shape)


def _planes(x: Tensor) -> Tensor:
    if x.ndim not in (3, 4):
        raise ValueError(
            f"transformations of images need a batch of shape (B, H, W) or (B, C, H, W); got {tuple(x.shape)}. For feature "
            "vectors use opu.augment.features."
        )
    return x if x.ndim == 4 else x.unsqueeze(1)
