"""The kernel of :mod:`opu.acceleration.fused`. Triton comes with torch for CUDA; elsewhere this file is not imported."""

from typing import no_type_check

import triton
import triton.language as tl

# 64 rows for every four warps, which then share no columns: with more warps a small piece of columns would be split
# between them, and Triton 3.6 was seen to compute that wrongly.
CONFIGS = [
    triton.Config({"ROWS": rows, "STEP": step}, num_warps=rows // 16, num_stages=stages)
    for rows, step, stages in ((64, 32, 4), (64, 64, 3), (128, 32, 3), (128, 32, 4), (128, 64, 3))
]


# A piece starts behind all larger ones, which are the higher binary digits of the width.
@triton.jit
@no_type_check
def _product(total, a, weight, before, SOME: tl.constexpr, WHOLE: tl.constexpr):
    """What some of the hidden units before add to a piece of those behind, where the width has that piece."""
    if WHOLE & SOME:
        start: tl.constexpr = WHOLE & (512 - 2 * SOME)
        total = tl.dot(a, tl.load(weight + before[:, None] * WHOLE + start + tl.arange(0, SOME)[None, :]), total)
    return total


@triton.jit
@no_type_check
def _answer(answer, total, bias, head, SOME: tl.constexpr, WHOLE: tl.constexpr, PADDED: tl.constexpr):
    """What a piece of the last hidden units adds to the answers of the heads."""
    if WHOLE & SOME:
        start: tl.constexpr = WHOLE & (512 - 2 * SOME)
        here, columns = start + tl.arange(0, SOME), tl.arange(0, PADDED)
        total += tl.load(bias + here)[None, :]
        hidden = tl.where(total < 0, 0.0, total).to(head.dtype.element_ty)
        answer = tl.dot(hidden, tl.load(head + here[:, None] * PADDED + columns[None, :]), answer)
    return answer


@triton.autotune(CONFIGS, key=["about", "WIDTH", "CLASSES"])
@triton.jit(do_not_specialize=["about"])
@no_type_check
def last_layers(
    units,
    weight,
    bias,
    head,
    head_bias,
    mean,
    log_mean,
    log_precision,
    low,
    span,
    num_rows,
    about,
    WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
    DEEP: tl.constexpr,
    CLASSES: tl.constexpr,
    PADDED: tl.constexpr,
    SOFTSIGN: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
):
    """The mean or the log-precision of some rows; without slow bounds, what the link makes a log-precision of.

    ``units`` come as the layer before leaves them, without ReLU. They are read once: every hidden unit
    behind them is summed in the same loop. A block must have a power of two as its size, so that WHOLE, the width up to
    the next multiple of 16, is taken by its binary digits, and 400 costs no more than 256 + 128 + 16. Weights come with
    zeros behind them, DEEP rows and WHOLE columns. ``about`` is the size of a batch by its binary digits, for each of which
    the settings are chosen once.
    """
    network = tl.program_id(0) % 2  # 0 gives the mean, 1 the precision
    rows = (tl.program_id(0) // 2) * ROWS + tl.arange(0, ROWS)
    units += network * WIDTH + tl.minimum(rows, num_rows - 1).to(tl.int64)[:, None] * (2 * WIDTH)
    weight += network * DEEP * WHOLE
    bias += network * WHOLE
    head += network * WHOLE * PADDED
    total256 = tl.zeros((ROWS, 256), dtype=tl.float32)
    total128 = tl.zeros((ROWS, 128), dtype=tl.float32)
    total64 = tl.zeros((ROWS, 64), dtype=tl.float32)
    total32 = tl.zeros((ROWS, 32), dtype=tl.float32)
    total16 = tl.zeros((ROWS, 16), dtype=tl.float32)
    for k in range(0, WIDTH, STEP):
        before = k + tl.arange(0, STEP)
        a = tl.load(units + before[None, :], mask=(before < WIDTH)[None, :], other=0.0)
        a = tl.where(a < 0, tl.zeros_like(a), a)  # unlike a maximum, this keeps NaN
        total256 = _product(total256, a, weight, before, 256, WHOLE)
        total128 = _product(total128, a, weight, before, 128, WHOLE)
        total64 = _product(total64, a, weight, before, 64, WHOLE)
        total32 = _product(total32, a, weight, before, 32, WHOLE)
        total16 = _product(total16, a, weight, before, 16, WHOLE)
    answer = tl.zeros((ROWS, PADDED), dtype=tl.float32)
    answer = _answer(answer, total256, bias, head, 256, WHOLE, PADDED)
    answer = _answer(answer, total128, bias, head, 128, WHOLE, PADDED)
    answer = _answer(answer, total64, bias, head, 64, WHOLE, PADDED)
    answer = _answer(answer, total32, bias, head, 32, WHOLE, PADDED)
    answer = _answer(answer, total16, bias, head, 16, WHOLE, PADDED)
    columns = tl.arange(0, PADDED)
    answer += tl.load(head_bias + network * PADDED + columns)[None, :]
    inside = rows < num_rows
    if network == 0:
        shown = columns < CLASSES
        logits = tl.where(shown[None, :], answer, float("-inf"))
        shifted = logits - tl.max(logits, 1)[:, None]
        normalised = shifted - tl.log(tl.sum(tl.exp(shifted), 1))[:, None]
        places, written = rows[:, None] * CLASSES + columns[None, :], inside[:, None] & shown[None, :]
        tl.store(log_mean + places, normalised, mask=written)
        tl.store(mean + places, tl.exp(normalised), mask=written)
    else:
        precision = tl.sum(tl.where(columns[None, :] == 0, answer, 0.0), 1)
        if SOFTSIGN:
            precision = low + span * (1 + precision / (1 + tl.abs(precision))) / 2
        tl.store(log_precision + rows, precision, mask=inside)
