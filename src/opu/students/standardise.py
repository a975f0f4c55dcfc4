"""Columns of a table brought to mean 0 and standard deviation 1."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn


class Standardise(nn.Module):
    """Each column less its mean, divided by its scale.

    The arithmetic has the precision of ``mean`` and ``scale``, and the result that of the inputs. With float64 statistics
    float32 columns keep their variation even where they have a large offset.

    Args:
        mean: Mean of each column.
        scale: Standard deviation of each column.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Float[Tensor, " F"], scale: Float[Tensor, " F"]) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)

    @classmethod
    def fit(cls, x: Float[np.ndarray, "N F"] | Float[Tensor, "N F"]) -> "Standardise":
        """The mean and standard deviation of each column in float64; a constant column has scale 1."""
        rows: Any = np.asarray(x, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, scale = rows.mean(0), rows.std(0)
        if not np.isfinite(scale).all():
            column = int(np.flatnonzero(~np.isfinite(scale))[0])
            raise ValueError(
                f"column {column} (counted from 0) holds values of up to {np.abs(rows[:, column]).max():.3g}, too large for "
                "its variance to be a number; correct or rescale it."
            )
        constant = scale <= 1e-12 * np.maximum(np.abs(mean), 1.0)
        return cls(torch.from_numpy(mean), torch.from_numpy(np.where(constant, 1.0, scale)))

    def forward(self, x: Float[Tensor, "B F"]) -> Float[Tensor, "B F"]:
        """The standardised rows."""
        standardised: Tensor = (x.to(self.mean.dtype) - self.mean) / self.scale
        return standardised.to(x.dtype)

    def inverse(self, x: Float[Tensor, "B F"]) -> Float[Tensor, "B F"]:
        """The raw rows for standardised ones."""
        raw: Tensor = x.to(self.mean.dtype) * self.scale + self.mean
        return raw.to(x.dtype)
