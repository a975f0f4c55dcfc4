"""How calls are timed: each is warmed up, and they take turns, so that a busy moment slows all of them."""

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opu.timing import now

SHORTEST = 0.05  # seconds that one timing lasts at least; faster calls are repeated within it
PAUSE = 0.05  # seconds before each timing: threads of another runtime go on spinning for a while
LONGEST = 3.0  # a call that takes longer is timed once and not warmed up


@dataclass(frozen=True)
class Timed:
    """The timings of one call.

    Attributes:
        seconds: Seconds of the whole work, one value per timing.
        megabytes: Peak memory of the call, if the system tells it.
        part: Fraction of the whole work that the call does; its time was divided by it.
    """

    seconds: list[float]
    megabytes: float | None
    part: float = 1.0

    @property
    def median(self) -> float:
        """The median over all timings."""
        return statistics.median(self.seconds)

    def summary(self) -> dict[str, Any]:
        """Median, range, number of timings and memory, ready for a json file."""
        return {
            "seconds": self.median,
            "least": min(self.seconds),
            "most": max(self.seconds),
            "times": len(self.seconds),
            "megabytes": self.megabytes,
            **({"part": self.part} if self.part != 1 else {}),
        }


def take_turns(
    calls: Mapping[str, Callable[[], object]], rounds: int, *, parts: Mapping[str, float] | None = None
) -> dict[str, Timed]:
    """Time several calls in turns.

    Args:
        calls: Functions by name.
        rounds: Number of timings of each call.
        parts: Calls that do only a part of the work, and its fraction.
    """
    memory, repeats = {}, {}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        began = now()
        memory[name] = peak_memory(call)  # the first call, which also warms up
        first = now() - began
        if first > LONGEST:
            seconds[name].append(first)
            continue
        began = now()
        call()
        repeats[name] = max(1, round(SHORTEST / max(now() - began, 1e-6)))
    for _ in range(rounds):
        for name, count in repeats.items():
            time.sleep(PAUSE)
            began = now()
            for _ in range(count):
                calls[name]()
            seconds[name].append((now() - began) / count)
    fractions = {name: (parts or {}).get(name, 1.0) for name in calls}
    return {
        name: Timed([each / fractions[name] for each in found], memory[name], fractions[name])
        for name, found in seconds.items()
    }


def peak_memory(call: Callable[[], object]) -> float | None:
    """Megabytes that a call takes beyond those that were taken before it; None if the system does not tell."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        taken = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return round((torch.cuda.max_memory_allocated() - taken) / 2**20, 1)
    try:
        ctypes.CDLL(None).malloc_trim(0)  # memory that earlier calls left for reuse would hide this call's needs
        Path("/proc/self/clear_refs").write_text("5")  # resets the kernel's highest mark
        before = _resident("VmRSS")
        call()
        return round(max(0.0, _resident("VmHWM") - before), 1)
    except (OSError, AttributeError):
        call()
        return None


def _resident(which: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(which))


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Products of float32 on a GPU in this precision of PyTorch's: ``highest`` is float32, ``high`` is TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
