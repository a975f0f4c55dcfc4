"""Times of several ways in one run: each is warmed up, and they take turns, so that a busy moment hits all of them."""

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from opu.timing import wait

SHORTEST = 0.05  # seconds that one timing lasts at least; what is faster is called several times
PAUSE = 0.05  # seconds before each timing: threads of another runtime go on spinning for a while
LONGEST = 3.0  # what takes longer is called once: it has no need to be warmed up


def take_turns(
    ways: Mapping[str, Callable[[], object]], rounds: int, *, heavy: dict[str, float] | None = None
) -> dict[str, dict[str, Any]]:
    """Median, least and most seconds of each way over rounds, and its peak memory.

    Args:
        ways: What to call.
        rounds: How often each is timed.
        heavy: Ways that do only a part of the work, and the factor by which their time is multiplied.
    """
    heavy = heavy or {}
    memory, calls = {}, {}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for name, way in ways.items():
        began = _now()
        memory[name] = peak_memory(way)  # the first call, which also warms up
        first = _now() - began
        if first > LONGEST:
            seconds[name].append(first * heavy.get(name, 1.0))
            continue
        began = _now()
        way()
        calls[name] = max(1, round(SHORTEST / max(_now() - began, 1e-6)))
    for _ in range(rounds):
        for name, count in calls.items():
            time.sleep(PAUSE)
            began = _now()
            for _ in range(count):
                ways[name]()
            seconds[name].append((_now() - began) / count * heavy.get(name, 1.0))
    return {
        name: {
            "seconds": statistics.median(found),
            "least": min(found),
            "most": max(found),
            "times": len(found),
            "megabytes": memory[name],
            **({"part": 1 / heavy[name]} if name in heavy else {}),
        }
        for name, found in seconds.items()
    }


def _now() -> float:
    wait()
    return time.perf_counter()


def peak_memory(way: Callable[[], object]) -> float | None:
    """Megabytes that a call takes beyond what was taken before it; None where the system does not tell."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        taken = torch.cuda.memory_allocated()
        way()
        torch.cuda.synchronize()
        return round((torch.cuda.max_memory_allocated() - taken) / 2**20, 1)
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what earlier calls have left to be used again would hide this call's needs
        Path("/proc/self/clear_refs").write_text("5")  # the kernel forgets the highest mark so far
        before = _resident("VmRSS")
        way()
        return round(max(0.0, _resident("VmHWM") - before), 1)
    except (OSError, AttributeError):
        way()
        return None


def _resident(which: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(which))
