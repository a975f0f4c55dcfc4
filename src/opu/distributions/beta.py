"""Beta marginals of a Dirichlet: the distribution of the probability of one class."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

# SciPy's functions are right up to shapes of 1e8. With two shapes of 1e12 its quantiles are 4e-5 standard deviations off,
# with 1e30 they are in the wrong order, and with 1e10 and 1e300 they are NaN.
_LARGE = 1e8
_HUGE = 1e20


@dataclass(frozen=True)
class BetaMarginals:
    """Beta(a, b) for each input and class, without gradients.

    If both shapes are above 1e8, values come from the normal distribution with its corrections for skewness and kurtosis; if
    one is above 1e20, from the Gamma distribution of the other. Quantiles are then right to 1e-11 standard deviations.
    """

    a: Float[Tensor, "*B K"]
    b: Float[Tensor, "*B K"]

    @property
    def mean(self) -> Float[Tensor, "*B K"]:
        """a / (a + b)."""
        return self.a / (self.a + self.b)

    @property
    def variance(self) -> Float[Tensor, "*B K"]:
        """Variance of each class probability."""
        total = self.a + self.b
        return self.mean * (self.b / total) / (total + 1)

    def cdf(self, probability: float) -> Float[Tensor, "*B K"]:
        """Probability that the class probability is at most ``probability``."""
        return self._tensor(_cdf(*self._arrays(), probability))

    def quantile(self, level: float) -> Float[Tensor, "*B K"]:
        """The class probability that is exceeded with probability ``1 - level``."""
        values = _quantile(*self._arrays(), level)
        # SciPy returns the smallest normal number if the quantile is smaller still.
        return self._tensor(np.where(values <= np.finfo(np.float64).tiny, 0.0, values))

    def interval(self, level: float = 0.9) -> tuple[Float[Tensor, "*B K"], Float[Tensor, "*B K"]]:
        """Equal-tailed credible interval that holds each class probability with probability ``level``."""
        if not 0 < level < 1:
            raise ValueError(f"the level of an interval must lie between 0 and 1; got {level}. Use 0.9 for 90 %.")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def _arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self.a.double().cpu().numpy(), self.b.double().cpu().numpy()

    def _tensor(self, values: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(np.asarray(values)).to(self.a)


def _cdf(a: NDArray[np.float64], b: NDArray[np.float64], x: float) -> NDArray[np.float64]:
    (small, sharp), both, (mean, width, skewness, kurtosis) = _limits(a, b)
    z = np.clip((x - mean) / width, -40, 40)
    hermite = (
        skewness * (z**2 - 1) / 6 + kurtosis * (z**3 - 3 * z) / 24 + skewness**2 * (z**5 - 10 * z**3 + 15 * z) / 72
    )
    normal = np.clip(special.ndtr(z) - np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * hermite, 0, 1)
    least = np.minimum(a, b)
    gamma = np.where(a < b, special.gammainc(least, x * b), special.gammaincc(least, (1 - x) * a))
    values: NDArray[np.float64] = np.where(both, normal, np.where(sharp, gamma, special.betainc(*small, x)))
    return values


def _quantile(a: NDArray[np.float64], b: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    (small, sharp), both, (mean, width, skewness, kurtosis) = _limits(a, b)
    z = special.ndtri(level)
    step = z + skewness * (z**2 - 1) / 6 + kurtosis * (z**3 - 3 * z) / 24 - skewness**2 * (2 * z**3 - 5 * z) / 36
    normal = np.clip(mean + width * step, 0, 1)
    least, most = np.minimum(a, b), np.maximum(a, b)
    gamma = special.gammaincinv(least, np.where(a < b, level, 1 - level)) / most
    gamma = np.where(a < b, gamma, 1 - gamma)
    values: NDArray[np.float64] = np.where(both, normal, np.where(sharp, gamma, special.betaincinv(*small, level)))
    return values


def _limits(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[tuple, NDArray[np.bool_], tuple]:  # type: ignore[type-arg]
    """Shapes for SciPy and where it must not be asked, where both are large, and the first four moments there."""
    both, sharp = np.minimum(a, b) > _LARGE, np.maximum(a, b) > _HUGE
    small = np.where(both | sharp, 1.0, a), np.where(both | sharp, 1.0, b)
    a, b = np.where(both, a, 1.0), np.where(both, b, 1.0)
    total = a + b
    share, other = a / total, b / total
    width = np.sqrt(share) * np.sqrt(other) / np.sqrt(total + 1)
    skewness = 2 * (other - share) / (np.sqrt(share) * np.sqrt(other) * np.sqrt(total))
    kurtosis = 6 * ((share - other) ** 2 / (share * other) - 1) / total
    return (small, sharp), both, (share, width, skewness, kurtosis)
