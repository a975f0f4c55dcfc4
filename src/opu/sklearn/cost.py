"""What a teacher costs on a table of some size, roughly, so that one that does not suit it says so before it starts.

Rates were measured on one core of a server: seconds for one row, one product of matrices, and so on. They are right within
a factor of about three elsewhere.
"""

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log2

SLOW = 30 * 60.0  # seconds from which a teacher warns
IMPOSSIBLE = 7 * 24 * 3600.0  # seconds from which it is refused
_SWEEPS = 4 * 3500  # of the Gibbs sampler: chains, and sweeps of each
_DRAWS = 64 * 1500  # particles for each input of a batch in a distillation
_BATCH, _INDUCING, _TREES = 256, 0.1, 200
_NUMBER = 8.0  # bytes


class SlowTeacher(UserWarning):
    """The teacher does not suit the size of the table."""


@dataclass(frozen=True)
class Cost:
    """Rough cost of a teacher: seconds on one core, and bytes of memory."""

    seconds: float
    bytes: float


def _polya_gamma(rows: int, features: int, classes: int) -> Cost:
    products = 7e-11 * rows * features**2 + 2e-11 * features**3
    seconds = _SWEEPS * (classes - 1) * (1.3e-7 * rows + products)
    return Cost(seconds, _NUMBER * (4 * rows * features + 20 * features**2))


def _gp(rows: int, features: int, classes: int) -> Cost:
    points = max(1.0, _INDUCING * rows)
    functions = 1 if classes == 2 else classes
    chain = 600 * functions * (2e-7 * rows * points + 8e-10 * rows * points**2)
    particles = _DRAWS * 1.2e-10 * (_BATCH * points**2 + points**3 / 3) * max(1.0, rows / _BATCH / 1500)
    return Cost(chain + particles, _NUMBER * (8 * rows * points + rows * features))


def _forest(rows: int, features: int, classes: int) -> Cost:
    seconds = 7e-8 * _TREES * rows * features**0.5 * log2(max(2, rows))
    return Cost(seconds, _TREES * 0.3 * rows * (64 + _NUMBER * classes) + _NUMBER * rows * features)


def _ensemble(rows: int, features: int, classes: int) -> Cost:
    return Cost(1 + 8e-3 * features, _NUMBER * (rows * features + 10 * rows + 2000 * features))


COSTS: Mapping[str, Callable[[int, int, int], Cost]] = {
    "polya-gamma": _polya_gamma,
    "gp": _gp,
    "forest": _forest,
    "ensemble": _ensemble,
}


def check_size(teacher: str, rows: int, features: int, classes: int, *, fits: int = 1) -> str | None:
    """A sentence about a teacher that would be slow, or None; one that cannot be fitted is refused.

    Args:
        teacher: Name of the teacher.
        rows: Number of training rows.
        features: Number of features, after encoding.
        classes: Number of classes.
        fits: How often it is fitted, with cross-validation.
    """
    cost = COSTS[teacher](rows, features, classes)
    seconds, memory = fits * cost.seconds, _memory()
    if seconds <= SLOW and cost.bytes <= memory:
        return None
    table = f"{rows:,} rows with {features:,} features" + (f" and {fits} fits" if fits > 1 else "")
    others = {name: fits * COSTS[name](rows, features, classes).seconds for name in ("forest", "ensemble")}
    better = "forest" if others["forest"] <= SLOW and teacher != "forest" else "ensemble"
    advice = f'take teacher="{better}" (--teacher {better}), which takes {_duration(others[better])}'
    if cost.bytes > memory:
        raise ValueError(
            f"the teacher {teacher} needs about {cost.bytes / 1e9:,.0f} GB of memory for {table}, and this machine has "
            f"{memory / 1e9:,.0f} GB; {advice}."
        )
    if seconds > IMPOSSIBLE:
        raise ValueError(f"the teacher {teacher} would take {_duration(seconds)} for {table}; {advice}.")
    return f"the teacher {teacher} will take {_duration(seconds)} for {table}; to wait less, {advice}."


def warn_of_size(teacher: str, rows: int, features: int, classes: int) -> None:
    """Warn of a teacher that would be slow, and refuse one that cannot be fitted."""
    sentence = check_size(teacher, rows, features, classes)
    if sentence is not None:
        warnings.warn(sentence, SlowTeacher, stacklevel=3)


def _memory() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # not every system can be asked
        return float("inf")


def _duration(seconds: float) -> str:
    for size, unit in ((24 * 3600.0, "day"), (3600.0, "hour"), (60.0, "minute")):
        if seconds >= 1.5 * size:
            return f"about {seconds / size:,.0f} {unit}s"
    return "about a minute" if seconds > 30 else "less than a minute"
