"""What all tables share: result files, and a mean with its range."""

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from opu.evaluation.compare import TEACHER_MEASURES


def read(results: Path, pattern: str, command: str) -> list[dict[str, Any]]:
    """The result files of a pattern; where there are none, the error says how to make them."""
    paths = sorted(results.glob(pattern))
    if not paths:
        raise ValueError(f"there is no {pattern} in {results}; make it with: {command}.")
    return [json.loads(path.read_text()) for path in paths]


def spread(values: Iterable[float | None]) -> str:
    """The mean over seeds, with the range."""
    known = [value for value in values if value is not None]
    if not known:
        return "no errors"
    return f"{statistics.mean(known):.1f} ({min(known):.1f} to {max(known):.1f})"


def detection_table(runs: list[dict[str, Any]]) -> str:
    """A student beside its teacher and the best trivial detector, for errors and for each set of strangers."""
    rows = [
        f"| AUROC, mean of {len(runs)} seeds (range) | teacher, best of E, P, MI | **student N** | student E | student C | "
        "best trivial |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    cells = {"its own errors": [_cells(run["misclassification"]) for run in runs]}
    for name in runs[0]["ood"]:
        cells[name.replace("_", " ")] = [_cells(run["ood"][name]) for run in runs]
    rows += [f"| {name} | " + " | ".join(map(spread, zip(*each, strict=True))) + " |" for name, each in cells.items()]
    return "\n".join(rows)


def _cells(row: dict[str, Any]) -> list[float | None]:
    def auroc(model: str, measure: str) -> float | None:
        entry = row[model][measure]
        return None if entry is None else float(entry["auroc"])

    def best(model: str, names: Any) -> float | None:
        values = [value for value in (auroc(model, name) for name in names) if value is not None]
        return max(values, default=None)

    student = [auroc("student", m) for m in ("novelty", "predictive_entropy", "negative_log_precision")]
    return [best("teacher", TEACHER_MEASURES), *student, best("trivial", row["trivial"])]
