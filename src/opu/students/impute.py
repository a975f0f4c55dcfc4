"""Raw rows of a table, which may have missing values, as the standardised rows that a student takes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from opu.students.standardise import Standardise, refuse_too_large


class Impute(nn.Module):
    """Missing values (NaN) imputed, and one indicator (0 or 1) appended for each column that had some in training.

    Args:
        fill: The value that each column takes where it is missing.
        indicated: Numbers of the columns that have an indicator, in the order of their indicators.
    """

    fill: Tensor
    indicated: Tensor
    complete: Tensor

    def __init__(self, fill: Float[Tensor, " F"], indicated: Int64[Tensor, " I"]) -> None:
        super().__init__()
        self.register_buffer("fill", fill)
        self.register_buffer("indicated", indicated)
        complete = torch.ones(len(fill), dtype=torch.bool)
        complete[indicated] = False
        self.register_buffer("complete", complete, persistent=False)

    @classmethod
    def fit(cls, x: Float[np.ndarray, "N F"]) -> "Impute":
        """The median of each column, and an indicator for each with missing values; an empty column is filled with 0."""
        missing = np.isnan(x)
        empty = missing.all(0)
        fill = np.zeros(x.shape[1])
        fill[~empty] = np.nanmedian(x[:, ~empty], axis=0)
        return cls(torch.from_numpy(fill), torch.from_numpy(np.flatnonzero(missing.any(0))))

    def forward(self, x: Float[Tensor, "B F"]) -> Float[Tensor, "B G"]:
        """The rows without missing values, and their indicators."""
        missing = x.isnan()
        filled = torch.where(missing, self.fill.to(x.dtype), x)
        if not len(self.indicated):
            return filled
        return torch.cat([filled, missing[:, self.indicated].to(x.dtype)], -1)

    def inverse(self, x: Float[Tensor, "B G"]) -> Float[Tensor, "B F"]:
        """The rows with NaN where an indicator is above one half."""
        rows, indicators = x.split([len(self.fill), len(self.indicated)], -1)
        raw: Tensor = rows.clone()
        raw[:, self.indicated] = rows[:, self.indicated].masked_fill(indicators > 0.5, torch.nan)
        return raw

    def unexpected(self, x: Float[Tensor, "B F"]) -> Bool[Tensor, " B"]:
        """Which rows miss a value in a column that was complete in training."""
        return (x.isnan() & self.complete).any(-1)


class Prepare(nn.Module):
    """Raw rows imputed and standardised.

    Args:
        impute: The imputation.
        standardise: The standardisation of imputed rows and their indicators.
    """

    def __init__(self, impute: Impute, standardise: Standardise) -> None:
        super().__init__()
        self.impute, self.standardise = impute, standardise

    @classmethod
    def fit(cls, x: Float[np.ndarray, "N F"], names: Sequence[str] | None = None) -> "Prepare":
        """Both, from the training rows.

        Args:
            x: The rows, with NaN where values are missing.
            names: Names of the columns for messages; by default they are counted from 0.
        """
        refuse_too_large(x, names)  # their median may be infinite
        impute = Impute.fit(x)
        if names is not None:
            names = [*names, *(f"{names[place]} is missing" for place in impute.indicated)]
        return cls(impute, Standardise.fit(impute(torch.tensor(x)), names))

    def forward(self, x: Float[Tensor, "B F"]) -> Float[Tensor, "B G"]:
        """The standardised rows."""
        standardised: Tensor = self.standardise(self.impute(x))
        return standardised

    def inverse(self, x: Float[Tensor, "B G"]) -> Float[Tensor, "B F"]:
        """The raw rows for standardised ones, with NaN where values were missing."""
        return self.impute.inverse(self.standardise.inverse(x))

    def inverse_imputed(self, x: Float[Tensor, "B G"]) -> Float[Tensor, "B F"]:
        """The raw rows for standardised ones, with the imputed values."""
        return self.standardise.inverse(x)[:, : len(self.impute.fill)]

    def unexpected(self, x: Float[Tensor, "B F"]) -> Bool[Tensor, " B"]:
        """Which raw rows miss a value in a column that was complete in training: they are novel."""
        return self.impute.unexpected(x)

    def too_large(self, x: Float[Tensor, "B F"]) -> Bool[Tensor, "B F"]:
        """Which raw values are infinite, or become so in float32 once they are standardised."""
        standardised: Tensor = self(x)[:, : len(self.impute.fill)]
        return ~(standardised.abs() <= torch.finfo(torch.float32).max)

    def description(self) -> dict[str, Any]:
        """All numbers, for a json file."""
        return {
            "mean": self.standardise.mean.tolist(),
            "scale": self.standardise.scale.tolist(),
            "fill": self.impute.fill.tolist(),
            "indicated": self.impute.indicated.tolist(),
        }

    @classmethod
    def from_description(cls, found: dict[str, Any]) -> "Prepare":
        """What :meth:`description` described; without an imputation in it, the mean is imputed."""
        mean, scale, fill = (
            torch.tensor(found[key], dtype=torch.float64)
            for key in ("mean", "scale", "fill" if "fill" in found else "mean")
        )
        indicated = torch.tensor(found.get("indicated", []), dtype=torch.int64)
        if fill.ndim != 1 or indicated.ndim != 1 or not mean.shape == scale.shape == (len(fill) + len(indicated),):
            raise ValueError("the numbers of columns in mean, scale, fill and indicated must agree")
        if not all(bool(t.isfinite().all()) for t in (mean, scale, fill)) or bool((scale <= 0).any()):
            raise ValueError("mean, scale and fill must be finite, and scale positive")
        if sorted({*indicated.tolist()} & {*range(len(fill))}) != indicated.tolist():
            raise ValueError("indicated must be numbers of columns, in order")
        return cls(Impute(fill, indicated), Standardise(mean, scale))
