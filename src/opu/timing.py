"""Seconds of a call, for ratios within one run."""

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
        wait()
        began = time.perf_counter()
        function()
        wait()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def wait() -> None:
    """For a GPU, which works on after a call has returned."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
