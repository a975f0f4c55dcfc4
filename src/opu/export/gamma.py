r"""Digamma and log-gamma from operators that every runtime has.

Both are shifted up by their recurrences, :math:`\psi(\alpha + 1) = \psi(\alpha + 8) - \sum_{i=1}^{7} 1/(\alpha + i)` and the
same for logarithms, and taken there from their asymptotic series. All steps of a sum are one operation on one more axis:
for a single input it is the number of operations that costs, not their size.
"""

import math

import torch
from jaxtyping import Float64
from torch import Tensor, nn

_SHIFT = 8
# Bernoulli's numbers B_2, B_4, ..., B_12; the next term is below 2e-14 at the shift.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730)


class Gammas(nn.Module):
    r"""For concentrations in float64: :math:`\psi(\alpha + 1) - \ln\alpha` and :math:`\ln\Gamma(\alpha + 1)`.

    In this form both are well-conditioned from the smallest concentration to the largest, where the digamma and the
    logarithm agree in all but their last digits.
    """

    steps: Tensor
    powers: Tensor
    series: Tensor

    def __init__(self) -> None:
        super().__init__()
        numbers = range(1, len(_BERNOULLI) + 1)
        series = torch.zeros(2 * len(_BERNOULLI), 2, dtype=torch.float64)
        series[0, 0] = -0.5
        for n, b in zip(numbers, _BERNOULLI, strict=True):
            series[2 * n - 1, 0] = -b / (2 * n)  # of 1/y^2n, for digamma
            series[2 * n - 2, 1] = b / (2 * n * (2 * n - 1))  # of 1/y^(2n-1), for log-gamma
        self.register_buffer("steps", torch.arange(1, _SHIFT, dtype=torch.float64), persistent=False)
        self.register_buffer("powers", torch.arange(1, len(series) + 1, dtype=torch.float64), persistent=False)
        self.register_buffer("series", series, persistent=False)

    def forward(self, alpha: Float64[Tensor, "*B"]) -> tuple[Float64[Tensor, "*B"], Float64[Tensor, "*B"]]:
        """Both, elementwise."""
        below = alpha.unsqueeze(-1) + self.steps
        y = alpha + _SHIFT
        digamma, log_gamma = (y.reciprocal().unsqueeze(-1).pow(self.powers) @ self.series).unbind(-1)
        # ln(y / alpha) as a whole, since its parts are alike where alpha is large.
        excess = torch.log(1 + _SHIFT / alpha) + digamma - below.reciprocal().sum(-1)
        main = (y - 0.5) * torch.log(y) - y + 0.5 * math.log(2 * math.pi)
        return excess, main + log_gamma - below.log().sum(-1)
