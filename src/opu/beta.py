"""Beta marginals of a Dirichlet: what is known about the probability of one class."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import special
from torch import Tensor


@dataclass(frozen=True)
class BetaMarginals:
    """Beta(a, b) for each input and class. Values only: nothing here carries a gradient."""

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
        a, b = self._arrays()
        return self._tensor(special.betainc(a, b, probability))

    def quantile(self, level: float) -> Float[Tensor, "*B K"]:
        """The class probability that is exceeded with probability ``1 - level``."""
        a, b = self._arrays()
        # Below a shape of 1e-3 the law is two points for every purpose; the library routine wanders there, so we use
        # the leading term of the distribution function, level = b/(a+b) x^a, and its mirror image.
        with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
            ordinary = special.betaincinv(np.maximum(a, 1e-3), np.maximum(b, 1e-3), level)
            near_zero = np.exp(np.minimum(np.log(level * (a + b) / b) / a, 0.0))
            near_one = -np.expm1(np.minimum(np.log((1 - level) * (a + b) / a) / b, 0.0))
        corner = np.where(level < b / (a + b), near_zero, near_one)
        return self._tensor(np.where(np.minimum(a, b) < 1e-3, corner, ordinary))

    def interval(self, level: float = 0.9) -> tuple[Float[Tensor, "*B K"], Float[Tensor, "*B K"]]:
        """Equal-tailed credible interval that holds each class probability with probability ``level``."""
        if not 0 < level < 1:
            raise ValueError(f"the level of an interval must lie between 0 and 1; got {level}. Use 0.9 for 90 %.")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def _arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self.a.double().cpu().numpy(), self.b.double().cpu().numpy()

    def _tensor(self, values: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(np.asarray(values)).to(self.a)
