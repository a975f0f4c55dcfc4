"""Seconds of a call, with the GPU's work included."""

import statistics
import time
from collections.abc import Callable

import torch


def median_seconds(function: Callable[[], object], repeats: int) -> float:
    """The median over repeated calls, after one call that is not counted; with one repeat, that call is timed."""
    if repeats > 1:
        function()
    seconds = []
    for _ in range(repeats):
        began = now()
        function()
        seconds.append(now() - began)
    return statistics.median(seconds)


def now() -> float:
    """Seconds on a clock. The GPU works on after a call has returned, so its work is awaited first."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
