"""What compression has done to a student: to its accuracy, and to every measure of its uncertainty."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr

from opu.evaluation import metrics
from opu.export.answers import Prediction
from opu.students import Student

Said = Callable[[NDArray[np.float32]], dict[str, NDArray[Any]]]


def said_by(student: Student) -> Said:
    """What a student in Python says, as an exported file would."""
    answers = Prediction(student)

    @torch.no_grad()
    def said(x: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        return {name: value.numpy() for name, value in zip(answers.names, answers(torch.from_numpy(x)), strict=True)}

    return said


def drift(
    before: Said,
    after: Said,
    inputs: NDArray[np.float32],
    labels: NDArray[np.int64] | None = None,
    ood: Mapping[str, NDArray[np.float32]] | None = None,
) -> dict[str, Any]:
    """Compare two versions of a student on the same inputs.

    Args:
        before: From inputs to outputs by name, as exported files give them.
        after: The same of the compressed one.
        inputs: Ordinary ones that took part in no calibration.
        labels: Their classes, where accuracy and the ranking of errors are wanted.
        ood: Sets of strangers by name.

    Returns:
        ``num_inputs``, ``same_class`` in percent, ``accuracy`` of both, and for every measure its rank correlation and the
        AUROC of both for errors and strangers, in percent.
    """
    inside = [said(inputs) for said in (before, after)]
    predicted = [said["probabilities"].argmax(-1) for said in inside]
    same = 100 * float(np.mean(predicted[0] == predicted[1]))
    found: dict[str, Any] = {"num_inputs": len(inputs), "same_class": same, "measures": {}}
    wrong = None if labels is None else [p != labels for p in predicted]
    if wrong is not None:
        found["accuracy"] = [100 * float(1 - w.mean()) for w in wrong]
    outside = {name: [said(x) for said in (before, after)] for name, x in (ood or {}).items()}
    for name in inside[0]:
        if name in ("probabilities", "novelty_p_value"):  # the one is no score, the other ranks as novelty does
            continue
        scores = [_rising(name, said) for said in inside]
        entry: dict[str, Any] = {"spearman": float(spearmanr(*scores).statistic)}
        if wrong is not None and all(0 < w.sum() < len(w) for w in wrong):
            entry["errors"] = [metrics.auroc(s, w) for s, w in zip(scores, wrong, strict=True)]
        for strangers, said in outside.items():
            entry[strangers] = [_apart(s, _rising(name, o)) for s, o in zip(scores, said, strict=True)]
        found["measures"][name] = entry
    return found


def show_drift(found: dict[str, Any], console: Console) -> None:
    """A line for each measure."""
    accuracy = " -> ".join(f"{each:.1f} %" for each in found.get("accuracy", []))
    console.print(
        f"On {found['num_inputs']} other inputs: same class for {found['same_class']:.1f} %"
        f"{f', accuracy {accuracy}' if accuracy else ''}.",
        highlight=False,
    )
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("measure", "rank correlation", "AUROC of errors"):
        table.add_column(column, justify="left" if column == "measure" else "right")
    for name, entry in found["measures"].items():
        errors = " -> ".join(f"{each:.1f}" for each in entry["errors"]) if "errors" in entry else ""
        table.add_row(name, f"{entry['spearman']:.3f}", errors)
    console.print(table)


def _rising(name: str, said: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    """A score that grows with uncertainty."""
    values: NDArray[np.float64] = said[name].astype(np.float64)
    return -values if name == "log_precision" else values


def _apart(inside: NDArray[np.float64], outside: NDArray[np.float64]) -> float:
    positive = np.repeat([False, True], [len(inside), len(outside)])
    return metrics.auroc(np.concatenate([inside, outside]), positive)
