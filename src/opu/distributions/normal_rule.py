"""A fixed set of points that stands for a standard normal distribution: expectations without random numbers.

Points are quasi-random (Sobol), come in pairs of opposite signs, and are scaled so that their second moments are those of
the normal distribution exactly, where there are enough of them. Expectations of polynomials up to the third degree are
then exact. The numbers are the same in every process.
"""

import functools

import torch
from jaxtyping import Float, Float64
from torch import Tensor

FEWEST_POINTS, MOST_POINTS = 64, 256
MOST_DIMENSIONS = 21_201  # of Sobol's sequence


def num_points_for(num_dimensions: int) -> int:
    """How many points are used by default: two for each dimension and more, 64 at least and 256 at most."""
    count = FEWEST_POINTS
    while count < min(2 * num_dimensions + 2, MOST_POINTS):
        count *= 2
    return count


# What is kept must not be a tensor of an inference mode that a caller is in, which no later gradient could go through.
@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)
def _on(num_points: int, num_dimensions: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "M D"]:
    return normal_points(num_points, num_dimensions).to(device, dtype)


def points_like(num_points: int, num_dimensions: int, like: Tensor) -> Float[Tensor, "M D"]:
    """The points of :func:`normal_points` with the type and on the device of a tensor, copied there once."""
    return _on(num_points, num_dimensions, like.dtype, like.device)


@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)
def normal_points(num_points: int, num_dimensions: int) -> Float64[Tensor, "M D"]:
    """So many points, an even number, in so many dimensions, each with the same weight."""
    half = num_points // 2
    assert half * 2 == num_points, "points come in pairs"
    if num_dimensions == 1:  # evenly spaced quantiles of the upper half
        uniform = 0.5 + (torch.arange(half, dtype=torch.float64).unsqueeze(-1) + 0.5) / num_points
    else:  # seeded by itself: this neither reads nor changes the random state of anyone else
        uniform = torch.quasirandom.SobolEngine(num_dimensions, scramble=True, seed=0).draw(half, dtype=torch.float64)
    points = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
    if half > num_dimensions:
        root = torch.linalg.cholesky(points.mT @ points / half)
        points = torch.linalg.solve_triangular(root, points.mT, upper=False).mT
    else:
        points = points / points.square().mean(0).sqrt()
    return torch.cat([points, -points]).contiguous()
