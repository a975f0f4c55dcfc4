"""The kernel of :mod:`opu.fast.fused`. Triton comes with torch for CUDA; elsewhere this file is not imported."""

import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"ROWS": rows, "STEP": step}, num_warps=warps, num_stages=stages)
    for rows, step, warps, stages in ((64, 64, 4, 3), (64, 64, 8, 3), (128, 64, 8, 3), (128, 32, 8, 4))
]


@triton.jit  # type: ignore[untyped-decorator]
def _through_some_units(  # type: ignore[no-untyped-def]
    answer,
    units,
    weight,
    bias,
    head,
    rows,
    inside,
    start,
    SOME: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
):
    """What some of the last hidden units add to the answers of the heads."""
    here = start + tl.arange(0, SOME)
    columns = tl.arange(0, PADDED)
    total = tl.zeros((ROWS, SOME), dtype=tl.float32)
    for k in range(0, WIDTH, STEP):
        before = k + tl.arange(0, STEP)
        a = tl.load(
            units + rows[:, None] * (2 * WIDTH) + before[None, :],
            mask=inside[:, None] & (before < WIDTH)[None, :],
            other=0.0,
        )
        b = tl.load(
            weight + before[:, None] * WIDTH + here[None, :],
            mask=(before < WIDTH)[:, None] & (here < WIDTH)[None, :],
            other=0.0,
        )
        total = tl.dot(a, b, total)
    total += tl.load(bias + here, mask=here < WIDTH, other=0.0)[None, :]
    hidden = tl.maximum(total, 0.0).to(weight.dtype.element_ty)
    heads = tl.load(head + here[:, None] * PADDED + columns[None, :], mask=(here < WIDTH)[:, None], other=0.0)
    return tl.dot(hidden, heads, answer)


@triton.autotune(CONFIGS, key=["num_rows", "WIDTH", "CLASSES"])  # type: ignore[untyped-decorator]
@triton.jit  # type: ignore[untyped-decorator]
def behind_the_first_layer(  # type: ignore[no-untyped-def]
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
    WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
    CLASSES: tl.constexpr,
    PADDED: tl.constexpr,
    SLOWLY_BOUNDED: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
):
    """The mean or the log-precision of some rows; without slow bounds, what the link makes a log-precision of.

    A block must have a power of two as its size. WHOLE is the width up to the next multiple of 16; it is taken as
    pieces of 256 and, by its binary digits, 128, 64, 32 and 16, so that 400 costs no more than 400.
    """
    network = tl.program_id(0) % 2  # 0 gives the mean, 1 the precision
    rows = (tl.program_id(0) // 2) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows
    columns = tl.arange(0, PADDED)
    units += network * WIDTH
    weight += network * WIDTH * WIDTH
    bias += network * WIDTH
    head += network * WIDTH * PADDED
    answer = tl.zeros((ROWS, PADDED), dtype=tl.float32)
    for piece in tl.static_range(WHOLE // 256):
        answer = _through_some_units(
            answer, units, weight, bias, head, rows, inside, piece * 256, 256, WIDTH, PADDED, ROWS, STEP
        )
    for digit in tl.static_range(4):
        if WHOLE & (128 >> digit):
            start = WHOLE // (256 >> digit) * (256 >> digit)
            answer = _through_some_units(
                answer, units, weight, bias, head, rows, inside, start, 128 >> digit, WIDTH, PADDED, ROWS, STEP
            )
    answer += tl.load(head_bias + network * PADDED + columns)[None, :]
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
        if SLOWLY_BOUNDED:
            precision = low + span * (1 + precision / (1 + tl.abs(precision))) / 2
        tl.store(log_precision + rows, precision, mask=inside)
