r"""Digamma and log-gamma from operators that every runtime has.

Both are shifted up by their recurrences, :math:`\psi(\alpha + 1) = \psi(\alpha + 8) - \sum_{i=1}^{7} 1/(\alpha + i)` and the
same for logarithms, and taken there from their asymptotic series.
"""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

_SHIFT = 8
# B_2n / 2n, and B_2n / (2n (2n - 1)), by Bernoulli's numbers; at the shift the next terms are below 3e-10.
_OF_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240)
_OF_LOG_GAMMA = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680)


def gammas(alpha: Float64[Tensor, "*B"]) -> tuple[Float64[Tensor, "*B"], Float64[Tensor, "*B"]]:
    r"""For concentrations in float64: :math:`\psi(\alpha + 1) - \ln\alpha` and :math:`\ln\Gamma(\alpha + 1)`.

    In this form both are well-conditioned from the smallest concentration to the largest, where the digamma and the
    logarithm agree in all but their last digits.
    """
    y = alpha + _SHIFT
    # (a+1)(a+7), (a+2)(a+6), (a+3)(a+5) are a(a+8) and a number; a+4 is in the middle.
    middle, pairs = alpha + _SHIFT / 2, alpha * y
    ends, seconds, thirds = pairs + 7, pairs + 12, pairs + 15
    reciprocals = 2 * middle * (1 / ends + 1 / seconds + 1 / thirds) + 1 / middle
    r = 1 / y
    square = r * r
    # ln(y / alpha) as a whole, since its parts are alike where alpha is large.
    excess = torch.log(1 + _SHIFT / alpha) - 0.5 * r - square * _polynomial(square, _OF_DIGAMMA) - reciprocals
    stirling = (y - 0.5) * torch.log(y) - y + 0.5 * math.log(2 * math.pi)
    log_gamma = stirling + r * _polynomial(square, _OF_LOG_GAMMA) - torch.log(ends * seconds * thirds * middle)
    return excess, log_gamma


def _polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    value = x * coefficients[-1] + coefficients[-2]
    for each in reversed(coefficients[:-2]):
        value = value * x + each
    return value
