"""Cells that many tables share: a mean with its spread, a ratio, and the names of measures."""

import re
import statistics
from collections.abc import Iterable, Sequence

from opu.measures import MEASURES


def mean_and_deviation(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds."""
    mean = f"{statistics.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.1f}"


def mean_and_range(values: Iterable[float | None]) -> str:
    """Mean over seeds, with the range."""
    known = [value for value in values if value is not None]
    if not known:
        return "no errors"
    return f"{statistics.mean(known):.1f} ({min(known):.1f} to {max(known):.1f})"


def number_of(count: int, what: str) -> str:
    """A number and what is counted: ``1 seed``, ``2 seeds``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def notation(text: str) -> str:
    """The symbols of measures in a text, spelt out in one sentence; empty if there are none."""
    used = [measure for measure in MEASURES.values() if re.search(rf"(?<![\w-]){measure.symbol}(?![\w-])", text)]
    return f"{'; '.join(f'{each.symbol}: {_words(each.name)}' for each in used)}." if used else ""


def _words(name: str) -> str:
    return name.replace("_", " ").replace("log precision", "log-precision")
