r"""Log-gamma and digamma of a Dirichlet's concentrations, as functions of :math:`u = \ln\alpha` that lose no digits.

Every formula of a Dirichlet subtracts functions of :math:`\alpha_0` from those of :math:`\alpha_k`. At log-precision 33,
:math:`\ln\Gamma(\alpha_0)` is 7e15 and its last digit is a whole nat; at 710, :math:`\alpha_0` is no number of float64. In
these functions the parts that grow are gone before anything is rounded, so they are right from :math:`\alpha = e^{-700}` to
:math:`e^{800}` and beyond. Up to ``_LARGE`` they come from torch's functions or from recurrences, above it from asymptotic
series. All of them are in float64, differentiable, and the same operations whatever the values (CUDA graphs).
"""

import math

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

_LARGE = 20.0
_LOG_LARGE = math.log(_LARGE)
_HALF_LOG_2_PI = math.log(2 * math.pi) / 2
# With Bernoulli numbers B: B_2n, B_2n / 2n and B_2n / (2n (2n - 1)). Above _LARGE, the next terms are below 1e-14.
_OF_TRIGAMMA = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
_OF_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_OF_LOG_GAMMA = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_STEPS = 8  # of the recurrences: from 9 on, the seven terms above leave out 3e-16
# exp of it is finite, also times the number of classes.
_LARGEST_EXPONENT = 690.0


def excess_and_rest(u: Float64[Tensor, "*B"]) -> tuple[Float64[Tensor, "*B"], Float64[Tensor, "*B"]]:
    r"""Digamma and log-gamma without their fast-growing parts, as in a differential entropy.

    Returns:
        :math:`\psi(\alpha + 1) - \ln\alpha`, and
        :math:`\ln\Gamma(\alpha) - (\alpha - 1)\,\psi(\alpha) + 1/\alpha + \alpha`.
    """
    small, r = _small_and_reciprocal(u)
    of_one_more = torch.digamma(1 + small)
    near = of_one_more - u, torch.lgamma(1 + small) - u - (small - 1) * of_one_more + small + 1
    scaled = 0.5 - r * _polynomial(r * r, _OF_DIGAMMA)  # alpha times the first function
    stirling = 1 + u / 2 + _HALF_LOG_2_PI + r * _polynomial(r * r, _OF_LOG_GAMMA)
    far = r * scaled, stirling - (1 - r) * scaled
    return tuple(torch.where(u < _LOG_LARGE, *each) for each in zip(near, far, strict=True))  # type: ignore[return-value]


def log_gamma_remainder(u: Float64[Tensor, "*B"]) -> Float64[Tensor, "*B"]:
    r""":math:`s(\alpha) = \ln\Gamma(\alpha) - \alpha\ln\alpha + \alpha`, a convex function that tends to :math:`-u/2`."""
    small, r = _small_and_reciprocal(u)
    near = torch.lgamma(1 + small) - u - small * u.clamp(max=_LOG_LARGE) + small
    far = _HALF_LOG_2_PI - u / 2 + r * _polynomial(r * r, _OF_LOG_GAMMA)
    return torch.where(u < _LOG_LARGE, near, far)


def remainder_slope(u: Float64[Tensor, "*B"]) -> Float64[Tensor, "*B"]:
    r""":math:`\alpha\,s'(\alpha) = \alpha\,(\psi(\alpha) - \ln\alpha)`, between -1 and -1/2."""
    small, r = _small_and_reciprocal(u)
    near = small * (torch.digamma(1 + small) - u.clamp(max=_LOG_LARGE)) - 1
    far = -0.5 - r * _polynomial(r * r, _OF_DIGAMMA)
    return torch.where(u < _LOG_LARGE, near, far)


def remainder_divergence(u: Float64[Tensor, "*B"], step: Float64[Tensor, "*B"]) -> Float64[Tensor, "*B"]:
    r"""Bregman divergence :math:`s(\beta) - s(\alpha) - (\beta - \alpha)\,s'(\alpha)`, where :math:`\ln\beta = u +` ``step``.

    For a small step it is a quadrature of :math:`\int_0^w (e^{w-x} - 1)\,c(u + x)\,dx` with the curvature
    :math:`c = \alpha^2 s''(\alpha)`, all of one sign; for a large one the three terms are subtracted. The relative error
    is below 1e-12 for any step.
    """
    w = step.clamp(-0.5, 0.5)
    near = torch.zeros_like(u)
    for place, weight in zip(*_gauss_legendre(6), strict=True):
        near = near + weight * w * torch.expm1((1 - place) * w) * _curvature(u + place * w)
    w = step.clamp(-1e4, _LARGEST_EXPONENT)
    far = log_gamma_remainder(u + w) - log_gamma_remainder(u) - torch.expm1(w) * remainder_slope(u)
    return torch.where(step.abs() < 0.5, near, far)


def digamma_gaps(
    u: Float64[Tensor, "*B K"],
    log_total: Float64[Tensor, "*B 1"],
    log_mean: Float64[Tensor, "*B K"],
    log_others: Float64[Tensor, "*B K"],
) -> tuple[Float64[Tensor, "*B K"], Float64[Tensor, "*B K"]]:
    r"""How much digamma and logarithm grow from each class to the total, right relative to their own size.

    Args:
        u: :math:`\ln\alpha_k`.
        log_total: :math:`\ln\alpha_0`.
        log_mean: :math:`\ln h_k`, also right relative to its own size where :math:`h_k` is almost 1.
        log_others: :math:`\ln(1 - h_k)`.

    Returns:
        :math:`\psi(\alpha_0 + 1) - \psi(\alpha_k + 1)`, and :math:`-\ln h_k` minus that. Neither is negative.
    """
    # Small concentrations: the recurrence and the series of digamma, both as differences.
    x = u.clamp(max=_LOG_LARGE).exp() + 1
    log_d = log_total + log_others  # ln(alpha_0 - alpha_k)
    one_over_d = torch.exp(-log_d.clamp(min=-_LARGEST_EXPONENT))
    near = torch.zeros_like(x)
    for _ in range(_STEPS):
        near = near + 1 / (x * (1 + x * one_over_d))  # 1 / x - 1 / (x + d)
        x = x + 1
    near = near + torch.nn.functional.softplus(log_d - x.log(), threshold=40)  # ln(1 + d / x)
    a, b = 1 / x, 1 / (x + log_d.clamp(max=_LARGEST_EXPONENT).exp())
    apart = a / (1 + x * one_over_d)  # a - b
    near = near + apart * (0.5 + (a + b) * _difference_quotient(a * a, b * b))
    # Large ones: the series of psi(alpha + 1) - ln(alpha), as a difference.
    a, b = torch.exp(-u.clamp(min=_LOG_LARGE)), torch.exp(-log_total.clamp(min=_LOG_LARGE))
    far = a * log_others.exp() * (0.5 - (a + b) * _difference_quotient(a * a, b * b))
    small = u < _LOG_LARGE
    return torch.where(small, near, -log_mean - far).clamp(min=0), torch.where(small, -log_mean - near, far).clamp(
        min=0
    )


def exponential_remainder(x: Float64[Tensor, "*B"]) -> Float64[Tensor, "*B"]:
    """``exp(x) - 1 - x`` for ``x`` from -1 to 1, right relative to its own size."""
    return x * x * _polynomial(x, tuple(1 / math.factorial(n) for n in range(2, 19)))


def _small_and_reciprocal(u: Tensor) -> tuple[Tensor, Tensor]:
    """Alpha where it is small, and 1 / alpha where it is large; each stops at ``_LARGE``, so that no gradient overflows."""
    return u.clamp(max=_LOG_LARGE).exp(), torch.exp(-u.clamp(min=_LOG_LARGE))


def _curvature(u: Tensor) -> Tensor:
    """``alpha^2 trigamma(alpha) - alpha``, from 1 for small alpha to 1/2 for large."""
    small, r = _small_and_reciprocal(u)
    x, sums = small, torch.zeros_like(small)
    for _ in range(_STEPS):
        x = x + 1
        sums = sums + 1 / (x * x)
    a = 1 / (x + 1)
    tail = a + a * a / 2 + a**3 * _polynomial(a * a, _OF_TRIGAMMA)
    near = 1 + small * small * (sums + tail) - small
    return torch.where(u < _LOG_LARGE, near, 0.5 + r * _polynomial(r * r, _OF_TRIGAMMA))


def _difference_quotient(a: Tensor, b: Tensor) -> Tensor:
    """``(f(a) - f(b)) / (a - b)`` of the polynomial ``f`` with the coefficients of digamma and no constant."""
    quotient, power, value = torch.ones_like(a), torch.ones_like(b), torch.zeros_like(a)
    for coefficient in _OF_DIGAMMA:
        value = value + coefficient * quotient
        power = power * b
        quotient = quotient * a + power
    return value


def _polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    value = x * coefficients[-1] + coefficients[-2]
    for each in reversed(coefficients[:-2]):
        value = value * x + each
    return value


def _gauss_legendre(count: int) -> tuple[list[float], list[float]]:
    """Places and weights on the interval from 0 to 1."""
    places, weights = np.polynomial.legendre.leggauss(count)
    return ((1 + places) / 2).tolist(), (weights / 2).tolist()
