"""Seconds of a call, for ratios within one run."""

import statistics
import time
from collections.abc import Callable


def median_seconds(function: Callable[[], object], repeats: int) -> float:
    """The median over repeated calls, after one that is not counted; a single call is timed as it is."""
    if repeats > 1:
        function()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
