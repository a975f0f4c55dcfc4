"""The loops of :mod:`opu.distributions.moments` as three Triton kernels.

PyTorch reads all particles once for every power and launches a kernel for every moment; these kernels read all particles
twice. Triton comes with torch for CUDA; on other machines this file is not imported.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

MAX_WIDE = 1024  # largest number of classes that one program reads in one step


def sweep(
    mean: Float[Tensor, "B K"],
    weights: Float[Tensor, "B I I"],
    table: Float[Tensor, "B I I"],
    points: Float[Tensor, "S B K"],
) -> tuple[Float[Tensor, "B J"], Float[Tensor, "B K"], Float[Tensor, " B"]]:
    """The same results as ``opu.distributions.moments._sweep``."""
    (count, batch, num_classes), order = points.shape, weights.shape[1]
    points = points if points.stride(2) == 1 else points.contiguous()
    steps = points.stride(0), points.stride(1)
    width = triton.next_power_of_2(order + 1)
    moments = weights.new_empty(count, batch, width)
    slopes, scaling = points.new_empty(count, batch, width), weights.new_empty(count, batch)
    in_mean = points.new_empty(batch, num_classes)
    sizes = (count, batch, num_classes, *steps, order, width)
    outputs = (moments, slopes, scaling)
    classes = triton.next_power_of_2(num_classes)
    wide, warps = min(256, classes), 1 if width <= 16 else 4
    tall = min(1024 // wide, triton.next_power_of_2(count))
    with torch.cuda.device_of(points):  # Triton launches on the current device
        _each_point[count * batch,](
            points, mean.to(points), weights, table, *outputs, *sizes, WIDE=min(MAX_WIDE, classes), num_warps=warps
        )
        _gradient[batch, triton.cdiv(num_classes, wide)](points, slopes, in_mean, *sizes, WIDE=wide, TALL=tall)
    return moments.mean(0)[:, : order + 1], in_mean.double(), scaling.sum(0)


def exponential(exponents: Float[Tensor, "B I"]) -> Float[Tensor, "B J"]:
    """Coefficients 0, 1, .. of ``exp(sum_m k_m t^m)``."""
    batch, order = exponents.shape
    series = exponents.new_empty(batch, order + 1)
    with torch.cuda.device_of(exponents):
        _exponential[batch,](exponents.contiguous(), series, order, triton.next_power_of_2(order + 1), num_warps=1)
    return series


@triton.jit
@no_type_check
def _recursion(matrix, ORDER: tl.constexpr, WIDTH: tl.constexpr):
    """``M_0 = 1`` and ``M_j = sum_l matrix[j - 1, l] M_l``, for j = 1, 2, .. in turn."""
    row, place = tl.arange(0, WIDTH)[:, None], tl.arange(0, WIDTH)
    found = tl.where(place == 0, 1.0, 0.0).to(tl.float64)
    for j in tl.static_range(1, ORDER + 1):
        products = tl.where(row == j - 1, matrix * found[None, :], 0.0)
        found = tl.where(place == j, tl.sum(tl.sum(products, 1), 0), found)
    return found


@triton.jit
@no_type_check
def _each_point(
    points,
    mean,
    weights,
    table,
    moments,
    slopes,
    scaling,
    count,
    batch,
    num_classes,
    by_point,
    by_input,
    ORDER: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Moments of one point, the value's derivatives in its power means, and their product with the power means."""
    each = tl.program_id(0).to(tl.int64)
    one = each % batch
    points += each // batch * by_point + one * by_input
    row, column, place = tl.arange(0, WIDTH)[:, None], tl.arange(0, WIDTH)[None, :], tl.arange(0, WIDTH)
    powers = tl.zeros((WIDTH, WIDTH), dtype=tl.float64)  # p_{j-l} at row j - 1 and column l
    for start in range(0, num_classes, WIDE):
        k = start + tl.arange(0, WIDE)
        p = tl.load(points + k, mask=k < num_classes, other=0.0)
        weighted = tl.load(mean + one * num_classes + k, mask=k < num_classes, other=0.0)
        for i in tl.static_range(1, ORDER + 1):
            weighted *= p
            powers += tl.where(row + 1 - column == i, tl.sum(weighted, 0).to(tl.float64), 0.0)
    square = one * (ORDER * ORDER) + row * ORDER + column
    inside = (row < ORDER) & (column < ORDER)
    found = _recursion(powers * tl.load(weights + square, mask=inside, other=0.0), ORDER, WIDTH)
    along = tl.sum(tl.load(table + square, mask=inside, other=0.0) * found[None, :], 1) / count
    tl.store(moments + each * WIDTH + place, found)
    tl.store(slopes + each * WIDTH + place, along)
    tl.store(scaling + each, tl.sum(along * tl.sum(tl.where(column == 0, powers, 0.0), 1), 0))


@triton.jit
@no_type_check
def _gradient(
    points,
    slopes,
    in_mean,
    count,
    batch,
    num_classes,
    by_point,
    by_input,
    ORDER: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDE: tl.constexpr,
    TALL: tl.constexpr,
):
    """The gradient in some entries of one input's mean: a sum over points of a polynomial in each coordinate."""
    one = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    points += one * by_input
    total = tl.zeros((WIDE,), dtype=points.dtype.element_ty)
    for start in range(0, count, TALL):
        s = (start + tl.arange(0, TALL)).to(tl.int64)
        p = tl.load(
            points + s[:, None] * by_point + k[None, :],
            mask=(s < count)[:, None] & (k < num_classes)[None, :],
            other=0.0,
        )
        at = slopes + (s * batch + one) * WIDTH
        value = tl.zeros_like(p)
        for i in tl.static_range(ORDER):
            value = (value + tl.load(at + (ORDER - 1 - i), mask=s < count, other=0.0)[:, None]) * p
        total += tl.sum(value, 0)
    tl.store(in_mean + one * num_classes + k, total, mask=k < num_classes)


@triton.jit
@no_type_check
def _exponential(exponents, series, ORDER: tl.constexpr, WIDTH: tl.constexpr):
    one = tl.program_id(0).to(tl.int64)
    row, column, place = tl.arange(0, WIDTH)[:, None], tl.arange(0, WIDTH)[None, :], tl.arange(0, WIDTH)
    below = row - column
    k = tl.load(exponents + one * ORDER + below, mask=(below >= 0) & (row < ORDER), other=0.0)
    tl.store(
        series + one * (ORDER + 1) + place, _recursion(k * (below + 1) / (row + 1), ORDER, WIDTH), mask=place <= ORDER
    )
