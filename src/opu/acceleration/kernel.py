"""The Triton kernel of :mod:`opu.acceleration.fused`.

Triton comes with torch for CUDA; on other machines this file is not imported.
"""

from typing import Any, no_type_check

import triton
import triton.language as tl

# Four warps for every 64 rows, so that no two warps share columns: Triton 3.6 was seen to compute wrongly where a small
# block of columns was split between warps.
CONFIGS = [
    triton.Config({"ROWS": rows, "STEP": step}, num_warps=rows // 16, num_stages=stages)
    for rows, step, stages in ((64, 32, 4), (64, 64, 3), (128, 32, 3), (128, 32, 4), (128, 64, 3))
]


def usable(configs: list[Any], _arguments: dict[str, Any], WIDTH: int, **_others: Any) -> list[Any]:
    """The configurations for a width. Triton 3.6 was seen to compute wrongly where one step of 64 takes all hidden units."""
    return [config for config in configs if config.kwargs["STEP"] == 32 or config.kwargs["STEP"] < WIDTH]


# Blocks are ordered by size, the largest first. A block of size SOME exists if the width has that binary digit, and it
# starts behind all larger ones, which are the higher digits.
@triton.jit
@no_type_check
def _product(total, a, weight, before, SOME: tl.constexpr, WHOLE: tl.constexpr):
    """Add what some units of the layer before contribute to one block of hidden units."""
    if WHOLE & SOME:
        start: tl.constexpr = WHOLE & (512 - 2 * SOME)
        total = tl.dot(a, tl.load(weight + before[:, None] * WHOLE + start + tl.arange(0, SOME)[None, :]), total)
    return total


@triton.jit
@no_type_check
def _heads(outputs, total, bias, head, SOME: tl.constexpr, WHOLE: tl.constexpr, PADDED: tl.constexpr):
    """Add what one block of hidden units contributes to the head's outputs."""
    if WHOLE & SOME:
        start: tl.constexpr = WHOLE & (512 - 2 * SOME)
        here, columns = start + tl.arange(0, SOME), tl.arange(0, PADDED)
        total += tl.load(bias + here)[None, :]
        hidden = tl.where(total < 0, 0.0, total).to(head.dtype.element_ty)
        outputs = tl.dot(hidden, tl.load(head + here[:, None] * PADDED + columns[None, :]), outputs)
    return outputs


@triton.autotune(CONFIGS, key=["batch_digits", "WIDTH", "CLASSES"], prune_configs_by={"early_config_prune": usable})
@triton.jit(do_not_specialize=["batch_digits"])
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
    batch_digits,
    WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
    DEEP: tl.constexpr,
    CLASSES: tl.constexpr,
    PADDED: tl.constexpr,
    SOFTSIGN: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Compute the last hidden layer and the head of one network for ROWS inputs.

    Even programs write the mean and its logarithm. Odd programs write the log-precision; with a link other than softsign,
    they write the head's output, and the link is applied afterwards.

    ``units`` are the outputs of the layer before, without ReLU. One loop reads them once and sums all hidden units. Triton's
    blocks have powers of two as sizes, so the hidden units are split by the binary digits of WHOLE, the width rounded up to
    a multiple of 16: 400 units are blocks of 256, 128 and 16. Weights are padded with zeros to DEEP rows and WHOLE columns.
    ``batch_digits`` is the number of binary digits of the batch size; the fastest configuration is chosen once for each.
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
    outputs = tl.zeros((ROWS, PADDED), dtype=tl.float32)
    outputs = _heads(outputs, total256, bias, head, 256, WHOLE, PADDED)
    outputs = _heads(outputs, total128, bias, head, 128, WHOLE, PADDED)
    outputs = _heads(outputs, total64, bias, head, 64, WHOLE, PADDED)
    outputs = _heads(outputs, total32, bias, head, 32, WHOLE, PADDED)
    outputs = _heads(outputs, total16, bias, head, 16, WHOLE, PADDED)
    columns = tl.arange(0, PADDED)
    outputs += tl.load(head_bias + network * PADDED + columns)[None, :]
    inside = rows < num_rows
    if network == 0:
        shown = columns < CLASSES
        logits = tl.where(shown[None, :], outputs, float("-inf"))
        shifted = logits - tl.max(logits, 1)[:, None]
        normalised = shifted - tl.log(tl.sum(tl.exp(shifted), 1))[:, None]
        places, written = rows[:, None] * CLASSES + columns[None, :], inside[:, None] & shown[None, :]
        tl.store(log_mean + places, normalised, mask=written)
        tl.store(mean + places, tl.exp(normalised), mask=written)
    else:
        precision = tl.sum(tl.where(columns[None, :] == 0, outputs, 0.0), 1)
        if SOFTSIGN:
            precision = low + span * (1 + precision / (1 + tl.abs(precision))) / 2
        tl.store(log_precision + rows, precision, mask=inside)
