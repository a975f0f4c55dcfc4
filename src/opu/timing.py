"""Seconds of a call, with the GPU's work included."""

import statistics
import time
from collections.abc import Callable

import torch


def median_seconds(function: Callable[[], object], repeats: int) -> float:
    """The median over repeated calls, after one that is not counted; a single call is timed as it is."""
    if repeats > 1:
        function()
    seconds = []
    for _ in range(repeats):
        began = now()
        function()
        seconds.append(now() - began)
    return statistics.median(seconds)


def now() -> float:
    """Seconds on a clock, read when all work on the GPU is done."""
    wait()
    return time.perf_counter()


def wait() -> None:
    """Wait for the GPU, which works on after a call has returned."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
