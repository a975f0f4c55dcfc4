"""A distribution on three groups of classes, as pictures need it: its mean, draws from it, and its density.

A merged Dirichlet is a Dirichlet again. The density of a merged logistic-normal has no closed form. It comes from the fixed
points of the logistic-normal, by a smoothed histogram of their log-ratios, in which they are nearly Gaussian: no random
numbers, and no point is lost at an edge of the triangle.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.interpolate import RegularGridInterpolator
from scipy.ndimage import gaussian_filter
from torch import Tensor

from opu.distributions import SimplexDistribution
from opu.distributions.dirichlet import Dirichlet
from opu.distributions.logistic_normal import LogisticNormal

NUM_DRAWS = 4000
_NUM_POINTS = 2**14
_NUM_BINS = 96
_SMOOTHING = 0.25  # standard deviations of the log-ratios
_REACH = 5.0  # standard deviations on either side
_LOWEST = -700.0


@dataclass(frozen=True)
class Merged:
    """The distribution of one input on three groups of classes.

    Attributes:
        mean: The probability of each group.
        log_draws: Points of equal weight, as log-probabilities.
        log_density: Log-density of points given as log-probabilities, up to a constant.
    """

    mean: NDArray[np.float64]
    log_draws: NDArray[np.float64]
    log_density: Callable[[NDArray[np.float64]], NDArray[np.float64]]


def merged(q: SimplexDistribution, first: int, second: int) -> Merged:
    """All other classes, one class, and another one.

    Args:
        q: A batch of one.
        first: A class.
        second: Another class.
    """
    if isinstance(q, Dirichlet):
        return _merged_dirichlet(Dirichlet.from_concentration(merge(q.log_concentration().exp(), first, second)))
    return _merged_logistic_normal(q.cpu().to(torch.float64), first, second)


def merge(values: Float[Tensor, "*B K"], first: int, second: int) -> Float[Tensor, "*B 3"]:
    """The sum of all other values, and two of them."""
    rest = values.sum(-1) - values[..., first] - values[..., second]
    return torch.stack([rest.clamp(min=1e-30), values[..., first], values[..., second]], -1)


def _merged_dirichlet(q: Dirichlet) -> Merged:
    def log_density(log_points: NDArray[np.float64]) -> NDArray[np.float64]:
        density: NDArray[np.float64] = q.log_prob(torch.from_numpy(log_points).unsqueeze(1)).squeeze(-1).numpy()
        return density

    generator_state = torch.get_rng_state()  # draws leave the random state as it was
    drawn = q.log_rsample(NUM_DRAWS)[:, 0]
    torch.set_rng_state(generator_state)
    return Merged(q.mean[0].double().numpy(), drawn.double().numpy(), log_density)


def _merged_logistic_normal(q: LogisticNormal, first: int, second: int) -> Merged:
    log_points = q.log_points(_NUM_POINTS)[:, 0]
    others = [each for each in range(q.num_classes) if each not in (first, second)]
    three = torch.stack([log_points[:, others].logsumexp(-1), log_points[:, first], log_points[:, second]], -1).numpy()
    return Merged(merge(q.mean[0].double(), first, second).numpy(), three, _histogram_density(three))


def _histogram_density(log_points: NDArray[np.float64]) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Log-density on the simplex by a smoothed histogram of two log-ratios, turned so that they are uncorrelated."""
    ratios = _ratios(log_points)
    middle = ratios.mean(0)
    sizes, directions = np.linalg.eigh(np.cov(ratios.T))
    turned = directions / np.sqrt(np.maximum(sizes, 1e-12))  # columns: units of one standard deviation
    side = np.linspace(-_REACH, _REACH, _NUM_BINS + 1)
    counts, _ = np.histogramdd((ratios - middle) @ turned, bins=(side, side))
    smooth = gaussian_filter(counts, _SMOOTHING * _NUM_BINS / (2 * _REACH), mode="constant")
    centres = (side[1:] + side[:-1]) / 2
    logs = np.log(np.maximum(smooth, 1e-300))
    heights = RegularGridInterpolator((centres, centres), logs, bounds_error=False, fill_value=_LOWEST)

    def log_density(points: NDArray[np.float64]) -> NDArray[np.float64]:
        # The last term is the Jacobian of the log-ratios.
        density: NDArray[np.float64] = heights((_ratios(points) - middle) @ turned) - points.sum(-1)
        return density

    return log_density


def _ratios(log_points: NDArray[np.float64]) -> NDArray[np.float64]:
    return log_points[:, 1:] - log_points[:, :1]
