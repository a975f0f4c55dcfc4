r"""Digamma and log-gamma from a table, in operators that every runtime has.

A runtime pays for each operator, and the series of both functions take fifty operators. A table of polynomials of sixth
degree in :math:`u = \ln\alpha`, one for each interval of length 1/4, takes twenty for both functions together, with a
relative error of 1e-11.
"""

import math

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from opu.distributions.gamma import excess_and_rest

# Below LOWEST, the first function is -u and 1/alpha dwarfs the second. Above HIGHEST, the first falls as 1/(2 alpha) and the
# second grows as u / 2.
LOWEST, HIGHEST = -45, 24
_PER_UNIT = 4
_DEGREE = 6


class Table(nn.Module):
    """:func:`opu.distributions.gamma.excess_and_rest` from a table; beyond its ends it has the values at the ends."""

    coefficients: Tensor

    def __init__(self) -> None:
        super().__init__()
        starts = torch.arange(_PER_UNIT * LOWEST, _PER_UNIT * HIGHEST + 1, dtype=torch.float64)
        # A polynomial through the values at an interval's Chebyshev points is nearly the best one.
        points = (1 - torch.cos((torch.arange(_DEGREE + 1).double() + 0.5) * math.pi / (_DEGREE + 1))) / 2
        values = torch.stack(excess_and_rest((starts.unsqueeze(-1) + points) / _PER_UNIT), -1)
        solved = torch.linalg.solve(torch.linalg.vander(points), values)
        self.register_buffer("coefficients", solved.flatten(1), persistent=False)

    def forward(self, u: Float64[Tensor, "B K"]) -> Float64[Tensor, "B K 2"]:
        """Both functions on a last axis; ``u`` must lie within the ends."""
        place = u * _PER_UNIT - _PER_UNIT * LOWEST
        start = place.floor()
        # NaN has no interval of its own; it stays NaN through the offset within the interval.
        piece = start.long().clamp(0, len(self.coefficients) - 1)
        parts = nn.functional.embedding(piece, self.coefficients).split(2, -1)
        along = (place - start).unsqueeze(-1)
        value: Tensor = parts[-1]
        for part in reversed(parts[:-1]):
            value = value * along + part
        return value
