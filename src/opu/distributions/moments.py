r"""Exact expectations of kernels under a Dirichlet, with which the MMD needs no samples.

For any kernel that is a power series in the inner product, :math:`k(x, y) = \sum_j c_j \langle x, y\rangle^j`, the MMD
needs only :math:`E\langle\pi, v\rangle^j` for fixed points and :math:`E\langle\pi, \pi'\rangle^j` for two Dirichlets.
Both recursions below add positive terms only, so no digit is lost to cancellation at any concentration. A log-precision
below -100 counts as -100 and one above 60 as 60, which changes no digit; the gradient there is 0.
"""

import math
import warnings
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from opu.checks import first_line
from opu.distributions.dirichlet import Dirichlet

# Beyond these log-precisions a Dirichlet is a choice of a vertex, or a point, to all digits.
_LOWEST, _HIGHEST = -100.0, 60.0
MAX_TRITON_ORDER = 31  # a Triton program holds a square matrix of this size in registers


def kernel_to_points(
    q: Dirichlet, points: Float[Tensor, "S B K"], coefficients: Sequence[float]
) -> Float[Tensor, " B"]:
    r"""Mean over fixed points of :math:`E_q k(v_s, \pi) = \sum_j c_j M_j(v_s)`, per input, in float64.

    The generating function :math:`\prod_k (1 - t v_k)^{-\alpha_k} = \sum_j \frac{(\alpha_0)_j}{j!} M_j t^j` gives, with
    :math:`p_i = \sum_k h_k v_k^i`,

    .. math:: M_j = \sum_{i=1}^{j} w_{ji}\, p_i\, M_{j-i}, \qquad
              w_{ji} = \frac{\alpha_0}{j} \prod_{m=0}^{i-1} \frac{j - m}{\alpha_0 + j - 1 - m},

    whose weights are positive and sum to 1. The derivatives
    :math:`\partial M_j / \partial p_i = \frac{j}{i} w_{ji} M_{j-i}` are computed with the value, so autograd keeps no graph.

    Args:
        q: One Dirichlet per input.
        points: Points on the simplex as probabilities; they get no gradient.
        coefficients: Coefficients ``c_0, c_1, ..`` of the power series.
    """
    if len(coefficients) == 1:
        return torch.full_like(q.log_precision, coefficients[0], dtype=torch.float64)
    q = _within_range(q)
    value: Tensor = _KernelToPoints.apply(q.mean, q.log_precision, points, tuple(coefficients))  # type: ignore[no-untyped-call]
    return value


def _within_range(q: Dirichlet) -> Dirichlet:
    return Dirichlet.from_logits(q.log_mean.double(), q.log_precision.double().clamp(_LOWEST, _HIGHEST))


class _KernelToPoints(torch.autograd.Function):
    """The value, and in the same pass over the points its gradient in the mean and the log-precision."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, log_precision: Tensor, points: Tensor, coefficients: tuple[float, ...]
    ) -> Tensor:
        order = len(coefficients) - 1
        c = _constants(coefficients, mean.device)
        weights = _recursion_weights(log_precision, order)
        places, factors = _slope_constants(coefficients, mean.device)
        table = weights.flatten(1)[:, places] * factors
        if _use_triton(points, order):
            from opu.distributions.moments_triton import sweep

            averages, in_mean, scaling = sweep(mean, weights, table, points)
        else:
            # A few inputs at a time, so that intermediate results fit the cache. A GPU prefers few large operations.
            rows = max(1, (2**28 if mean.is_cuda else 2**19) // max(1, points.shape[0] * points.shape[2]))
            each = (mean.split(rows), weights.split(rows), table.split(rows), points.split(rows, dim=1))
            parts = [_sweep(*part) for part in zip(*each, strict=True)]
            averages, in_mean, scaling = (torch.cat(column) for column in zip(*parts, strict=True))
        precision = log_precision.exp().unsqueeze(-1)
        ladder = (precision / (precision + _counting(order, mean))).cumsum(-1)
        ctx.save_for_backward(in_mean, scaling - (averages[:, 1:] * ladder) @ c[1:])
        return averages @ c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        in_mean, in_log_precision = ctx.saved_tensors
        return grad.unsqueeze(-1) * in_mean, grad * in_log_precision, None, None


def _use_triton(values: Tensor, order: int) -> bool:
    """Whether :mod:`opu.distributions.moments_triton` supports these values on this machine."""
    supported = values.dtype in (torch.float32, torch.float64) and values.numel() > 0 and order <= MAX_TRITON_ORDER
    return supported and values.is_cuda and _triton_works_on(values.device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # what is kept must serve later gradients too
def _triton_works_on(device: torch.device) -> bool:
    if find_spec("triton") is None or torch.version.hip or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:  # at its first launch Triton compiles a part of itself, for which it needs a C compiler
        from opu.distributions.moments_triton import exponential

        exponential(torch.zeros(1, 1, dtype=torch.float64, device=device))
    except Exception as error:
        warnings.warn(
            f"Triton does not work here ({first_line(error)}); the exact MMD uses PyTorch, which is slower.",
            stacklevel=2,
        )
        return False
    return True


def _sweep(
    mean: Float[Tensor, "B K"],
    weights: Float[Tensor, "B I I"],
    table: Float[Tensor, "B I I"],
    points: Float[Tensor, "S B K"],
) -> tuple[Float[Tensor, "B J"], Float[Tensor, "B K"], Float[Tensor, " B"]]:
    """Average moments, the value's gradient in the mean, and its derivative in a common factor of all ``p_i``."""
    # Only the current power is kept. The dtype of the points is precise enough: they are already rounded to it.
    weighted, sums = mean.to(points).expand_as(points).clone(), []
    for _ in range(weights.shape[1]):
        weighted *= points
        sums.append(weighted.sum(-1).T)
    power_means = torch.stack(sums, 1).double()
    moments = _moments(power_means, weights)
    slopes = table @ moments[:, :-1] / len(points)  # derivatives of the value in p_i, for each point
    # The gradient is a sum over points of a polynomial in each coordinate, evaluated by Horner's scheme.
    along = slopes.permute(1, 2, 0).unsqueeze(-1).to(points)
    total = weighted.copy_(along[-1])
    for each in along[:-1].flip(0):
        torch.addcmul(each, total, points, out=total)
    in_mean = (total * points).sum(0)
    return moments.mean(-1), in_mean.double(), (slopes * power_means).sum((1, 2))


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # what is kept must serve later gradients too
def _constants(values: tuple[float, ...], device: torch.device) -> Tensor:
    # Cached: a copy to the GPU in every step would make the CPU wait.
    return torch.tensor(values, dtype=torch.float64, device=device)


def _counting(order: int, like: Tensor) -> Tensor:
    return torch.arange(order, dtype=torch.float64, device=like.device)


def _recursion_weights(log_precision: Float[Tensor, " B"], order: int) -> Float[Tensor, "B I I"]:
    """The weight of ``p_{j-l} M_l`` in ``M_j``, at row ``j - 1`` and column ``l``."""
    # prod_{n=2..j} n / (alpha_0 + n - 1). The factor 1 / alpha_0 at n = 1 cancels, so it is left out and cannot overflow.
    n = _counting(order, log_precision) + 1
    log_ratios = n.log() - torch.log(log_precision.exp().unsqueeze(-1) + n - 1)
    log_products = torch.cat([torch.zeros_like(log_ratios[:, :1]), log_ratios[:, 1:].cumsum(-1)], -1)
    of_earlier = log_precision.unsqueeze(-1) - log_products[:, :-1]
    of_earlier = torch.cat([torch.zeros_like(log_ratios[:, :1]), of_earlier], -1)
    return torch.exp((log_products - n.log()).unsqueeze(-1) + of_earlier.unsqueeze(-2)).tril()


def _moments(power_means: Float[Tensor, "B I S"], weights: Float[Tensor, "B I I"]) -> Float[Tensor, "B J S"]:
    batch, order, count = power_means.shape
    moments = power_means.new_ones(batch, order + 1, count)
    falling = power_means.flip(1)  # its last j entries, p_j .. p_1, are multiplied by M_0 .. M_{j-1}
    for j in range(1, order + 1):
        products = falling[:, order - j :] * moments[:, :j]
        moments[:, j] = (weights[:, j - 1 : j, :j] @ products).squeeze(1)
    return moments


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # what is kept must serve later gradients too
def _slope_constants(coefficients: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    # The factor of M_l in the derivative in p_i, at row i - 1 and column l, is c_j (j / i) w_{ji} with j = i + l.
    order = len(coefficients) - 1
    i, column = torch.arange(1, order + 1).unsqueeze(-1), torch.arange(order)
    j = i + column
    reached = j.clamp(max=order)
    factors = torch.tensor(coefficients, dtype=torch.float64)[reached] * j / i * (j <= order)
    return ((reached - 1) * order + column).to(device), factors.to(device)


def kernel_within(q: Dirichlet, coefficients: Sequence[float]) -> Float[Tensor, " B"]:
    r"""Expected kernel :math:`E k(\pi, \pi')` of two independent draws from the same Dirichlet, per input, in float64.

    This equals :func:`kernel_between` of ``q`` and ``q``, but the cost grows with :math:`K J` in place of :math:`K J^2`.

    Each factor of the product over classes in :func:`kernel_between` is the moment generating function of a product of two
    independent gamma variables of shape :math:`\alpha_k`. The cumulants of that product are polynomials in :math:`\alpha_k`
    with positive coefficients (:func:`_cumulant_coefficients`). Cumulants add up over classes, so the classes enter through
    the power sums :math:`\sum_k \alpha_k^d` alone, and the exponential of the cumulants' series is the product over classes.
    """
    order = len(coefficients) - 1
    if order == 0:
        return torch.full_like(q.log_precision, coefficients[0], dtype=torch.float64)
    q = _within_range(q)
    log_alpha = q.log_mean + q.log_precision.unsqueeze(-1)
    log_scale = torch.nn.functional.softplus(q.log_precision)  # log(1 + alpha_0), as in kernel_between
    degrees = _counting(order, log_alpha) + 2
    sums = _PowerSums.apply(log_alpha - log_scale.unsqueeze(-1), degrees)  # type: ignore[no-untyped-call]
    table = _constants(_cumulant_coefficients(order), log_alpha.device).view(order, order)
    excess = (2 * (degrees - 1).unsqueeze(-1) - degrees).clamp(min=0)  # 2 m - d; the table is 0 where this is negative
    cumulants = ((table * torch.exp(-log_scale[:, None, None] * excess)) @ sums.unsqueeze(-1)).squeeze(-1)
    steps = degrees - 2
    precision = q.precision.unsqueeze(-1)
    factors = _products((steps + 1) * torch.exp(2 * log_scale).unsqueeze(-1) / (precision + steps).square())
    series: Tensor = _Exponential.apply(cumulants)  # type: ignore[no-untyped-call]
    return coefficients[0] + (series * factors) @ _constants(tuple(coefficients[1:]), log_alpha.device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # what is kept must serve later gradients too
def _cumulant_coefficients(order: int) -> tuple[float, ...]:
    """Coefficients of the cumulants of a product of two independent gamma variables of shape ``a``, in powers of ``a``.

    The result is a flattened square table. Its entry ``(m - 1, d - 2)`` is the coefficient of ``a^d`` in the ``m``-th
    cumulant, divided by ``m!``. The ``m``-th moment is the square of the ``m``-th rising factorial of ``a``: its
    coefficient of ``a^d`` counts the pairs of permutations of ``m`` points that have ``d`` cycles in all. The cumulant
    counts only those pairs that together connect all ``m`` points.
    """
    rising = [np.array([1], dtype=object)]
    for n in range(order):
        rising.append(np.convolve(rising[-1], np.array([n, 1], dtype=object)))
    moments = [np.convolve(each, each) for each in rising]
    cumulants, table = [moments[0]], np.zeros((order, order))
    for m in range(1, order + 1):
        rest = moments[m].copy()
        for i in range(1, m):
            split = math.comb(m - 1, i - 1) * np.convolve(cumulants[i], moments[m - i])
            rest[: len(split)] -= split
        cumulants.append(rest[: m + 2])  # pairs that connect m points have at most m + 1 cycles
        table[m - 1, :m] = [float(count / math.factorial(m)) for count in cumulants[m][2:]]
    return tuple(table.flatten().tolist())


class _PowerSums(torch.autograd.Function):
    """``sum_k exp(d u_k)`` for each degree ``d``; the gradient is one product with the stored powers."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, degrees: Tensor) -> Tensor:
        powers = (degrees.unsqueeze(-1) * u.unsqueeze(-2)).exp_()
        ctx.save_for_backward(powers, degrees)
        return powers.sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        powers, degrees = ctx.saved_tensors
        return ((grad * degrees).unsqueeze(-2) @ powers).squeeze(-2), None


class _Exponential(torch.autograd.Function):
    """Coefficients 1, 2, .. of ``exp(sum_m k_m t^m)``; their derivatives in ``k_m`` are the coefficients shifted by ``m``."""

    @staticmethod
    def forward(ctx: Any, exponents: Tensor) -> Tensor:
        order = exponents.shape[1]
        if _use_triton(exponents, order):
            from opu.distributions.moments_triton import exponential

            series = exponential(exponents)
        else:
            series = torch.ones(len(exponents), order + 1, dtype=exponents.dtype, device=exponents.device)
            weighted = (exponents * (_counting(order, exponents) + 1)).flip(1)  # m k_m, in reverse order
            for j in range(1, order + 1):
                series[:, j] = (weighted[:, order - j :] * series[:, :j]).sum(1) / j
        ctx.save_for_backward(series)
        return series[:, 1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (series,) = ctx.saved_tensors
        order = grad.shape[1]
        later = torch.nn.functional.pad(grad, (0, order - 1)).unfold(1, order, 1)  # row m: grad of m, m + 1, ..
        shifted: Tensor = later @ series[:, :order].unsqueeze(-1)
        return shifted.squeeze(-1)


def kernel_between(p: Dirichlet, q: Dirichlet, coefficients: Sequence[float]) -> Float[Tensor, " B"]:
    r"""Expected kernel :math:`E k(\pi, \pi')` of independent draws from ``p`` and ``q``, per input, in float64.

    .. math:: E\langle\pi, \pi'\rangle^j = \frac{j!}{(\alpha_0)_j (\beta_0)_j}\,
              [t^j] \prod_k \sum_m \frac{(\alpha_k)_m (\beta_k)_m}{m!}\, t^m

    The product over classes is a tree of truncated convolutions. ``t`` is scaled by :math:`(1 + \alpha_0)(1 + \beta_0)`,
    which keeps every coefficient within the range of float64.
    """
    # A product of two concentrations must be a number whose logarithm is finite.
    alpha, beta = (_within_range(each).log_concentration().clamp(min=-300).exp() for each in (p, q))
    alpha_0, beta_0 = alpha.sum(-1, keepdim=True), beta.sum(-1, keepdim=True)
    scale = (1 + alpha_0) * (1 + beta_0)
    steps = _counting(len(coefficients) - 1, alpha)
    rising = (alpha.unsqueeze(-1) + steps) * (beta.unsqueeze(-1) + steps) / ((steps + 1) * scale.unsqueeze(-1))
    series = torch.nn.functional.pad(_products(rising), (1, 0), value=1.0)
    factors = _products((steps + 1) * scale / ((alpha_0 + steps) * (beta_0 + steps)))
    moments = _product_over_classes(series)[:, 1:] * factors
    return coefficients[0] + moments @ _constants(tuple(coefficients[1:]), alpha.device)


def _products(factors: Float[Tensor, "*B J"]) -> Float[Tensor, "*B J"]:
    # Not torch.cumprod: its gradient checks on the CPU whether a factor is 0. Ours are positive.
    return factors.log().cumsum(-1).exp()


def _product_over_classes(series: Float[Tensor, "B K J"]) -> Float[Tensor, "B J"]:
    while series.shape[1] > 1:
        last = series[:, -1:] if series.shape[1] % 2 else series[:, :0]
        even = series.shape[1] // 2 * 2
        series = torch.cat([_truncated_product(series[:, 0:even:2], series[:, 1:even:2]), last], 1)
    return series[:, 0]


def _truncated_product(left: Float[Tensor, "B K J"], right: Float[Tensor, "B K J"]) -> Float[Tensor, "B K J"]:
    length = left.shape[-1]
    padded = torch.nn.functional.pad(right, (length - 1, 0))
    # Row j of the Toeplitz view holds 0, .., right[0], .., right[j], which meet left[j], .., left[0].
    return (padded.unfold(-1, length, 1) @ left.flip(-1).unsqueeze(-1)).squeeze(-1)
