"""Beta marginals of a Dirichlet: the distribution of the probability of one class."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import special
from torch import Tensor


@dataclass(frozen=True)
class BetaMarginals:
    """Beta(a, b) for each input and class, without gradients."""

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
        values = special.betaincinv(a, b, level)
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
