"""Processes that are killed for real: at every line of the code that writes files, and at random moments.

The functions run in a process of their own, which forks: importing PyTorch once for each kill would take minutes.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

WRITERS = (
    "opu/files.py",
    "opu/tensor_file.py",
    "opu/students/store.py",
    "opu/sklearn/saved.py",
    "distillation/replacing.py",
)


def kill_at_line(action: Callable[[], Any], number: int, files: tuple[str, ...] = WRITERS) -> bool:
    """Run the action in a child that is killed before the line of this number; whether it ended before that."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal number
        if not frame.f_code.co_filename.endswith(files):
            return None
        if event == "line":
            number -= 1
            if number < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    child = os.fork()
    if child == 0:
        sys.settrace(trace)
        action()
        os._exit(0)
    return _ended(child)


def kill_soon(action: Callable[[], Any], moment: float) -> None:
    """Run the action again and again in a child that is killed after so many seconds."""
    child = os.fork()
    if child == 0:
        while True:
            action()
    time.sleep(moment)
    os.kill(child, signal.SIGKILL)
    assert not _ended(child)


def _ended(child: int) -> bool:
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or os.waitstatus_to_exitcode(status) == 0, status
    return not killed


def every_line(prepare: Callable[[], Any], action: Callable[[], Any], found: Callable[[], str]) -> dict[str, int]:
    """Kill the action before each of its lines in turn, each time after preparing; how often what was found."""
    counts: dict[str, int] = {}
    for number in range(10_000):
        prepare()
        ended = kill_at_line(action, number)
        what = found()
        counts[what] = counts.get(what, 0) + 1
        if ended:
            return counts
    raise AssertionError("the action has no end")


def random_moments(action: Callable[[], Any], found: Callable[[], str], times: int, seed: int = 0) -> dict[str, int]:
    """Kill a loop over the action at random moments; how often what was found."""
    draw, counts = random.Random(seed), dict[str, int]()
    for _ in range(times):
        kill_soon(action, draw.uniform(0.001, 0.05))
        what = found()
        counts[what] = counts.get(what, 0) + 1
    return counts


def leftovers(folder: Path) -> set[str]:
    """Names in a folder, without the temporary files of writers that were killed."""
    return {path.name for path in folder.iterdir() if not path.name.endswith(".tmp")}
