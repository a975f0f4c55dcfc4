"""Columns of a table brought to mean 0 and standard deviation 1."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

LARGEST = 1e150  # of a value in a table: squares of larger ones are no numbers
_SMALL = 1e-100  # where squares may vanish
_MOST_NAMED = 5
_ALIKE = 1e-4  # standard deviations between the quartiles, from which on a network sees no difference


class OddColumn(UserWarning):
    """The values of a column can no longer be told apart once it is standardised."""


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
    def fit(
        cls, x: Float[np.ndarray, "N F"] | Float[Tensor, "N F"], names: Sequence[str] | None = None
    ) -> "Standardise":
        """The mean and standard deviation of each column in float64; a constant column has scale 1.

        A column counts as constant if it varies by less than 1e-12 of its largest value. A column that varies and counts
        as constant, or in which one value is so large that all others look alike, gives an :class:`OddColumn` warning.

        Args:
            x: The rows, without missing values.
            names: Names of the columns for messages; by default they are counted from 0.
        """
        rows: Any = np.asarray(x, dtype=np.float64)
        refuse_too_large(rows, names)
        mean, scale, largest = rows.mean(0), rows.std(0), np.abs(rows).max(0)
        small = (largest > 0) & (largest < _SMALL)
        scale[small] = largest[small] * (rows[:, small] / largest[small]).std(0)
        constant = scale <= 1e-12 * largest
        for sentence in _odd_columns(rows, scale, constant, names):
            warnings.warn(sentence, OddColumn, stacklevel=2)
        return cls(torch.from_numpy(mean), torch.from_numpy(np.where(constant, 1.0, scale)))

    def forward(self, x: Float[Tensor, "B F"]) -> Float[Tensor, "B F"]:
        """The standardised rows."""
        standardised: Tensor = (x.to(self.mean.dtype) - self.mean) / self.scale
        return standardised.to(x.dtype)

    def inverse(self, x: Float[Tensor, "B F"]) -> Float[Tensor, "B F"]:
        """The raw rows for standardised ones."""
        raw: Tensor = x.to(self.mean.dtype) * self.scale + self.mean
        return raw.to(x.dtype)


def refuse_too_large(rows: Float[np.ndarray, "N F"], names: Sequence[str] | None = None) -> None:
    """Refuse a column with a value whose square is no number; NaN is no such value.

    Args:
        rows: The rows of a table.
        names: Names of its columns; by default they are counted from 0.
    """
    found = np.flatnonzero((np.abs(rows) > LARGEST).any(0))
    if len(found):
        largest = np.nanmax(np.abs(rows[:, found[0]]))
        raise ValueError(
            f"{_name(int(found[0]), names)} holds values of up to {largest:.3g}, too large for its variance to be a number; "
            "correct or rescale it."
        )


def _odd_columns(rows: Any, scale: Any, constant: Any, names: Sequence[str] | None) -> Iterator[str]:
    flat = np.flatnonzero(constant & (np.ptp(rows, 0) > 0))
    for column in flat[:_MOST_NAMED]:
        yield (
            f"{_name(int(column), names)} varies by less than 1e-12 of its size, too little to be used; subtract its offset"
            f"{_others(flat)}."
        )
    quarter, three_quarters = np.quantile(rows, [0.25, 0.75], axis=0)
    spread = three_quarters - quarter
    steep = np.flatnonzero(~constant & (spread > 0) & (spread < _ALIKE * scale))
    for column in steep[:_MOST_NAMED]:
        values = rows[:, column]
        yield (
            f"{_name(int(column), names)} holds {values[np.abs(values).argmax()]:.3g}, beside which most other values look "
            f"alike, so it can hardly be used; correct that value, or take logarithms{_others(steep)}."
        )


def _others(columns: Any) -> str:
    return f" (the same goes for {len(columns) - 1} more columns)" if len(columns) > _MOST_NAMED else ""


def _name(column: int, names: Sequence[str] | None) -> str:
    return f"column {column} (counted from 0)" if names is None else f"column {names[column]}"
