"""What compression changes in a student: its accuracy, and every measure of its uncertainty."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy.stats import spearmanr

from opu.batches import Batch
from opu.evaluation import metrics
from opu.tables import print_table
from opu.terminal import say

Predict = Callable[[Batch], dict[str, NDArray[Any]]]  # from inputs to outputs by name, as a file gives them


def drift(
    before: Predict,
    after: Predict,
    inputs: Batch,
    labels: NDArray[np.int64] | None = None,
    ood: Mapping[str, Batch] | None = None,
) -> dict[str, Any]:
    """Compare two versions of a student on the same inputs.

    Args:
        before: The outputs of the original student.
        after: The outputs of the compressed student.
        inputs: In-distribution inputs that took part in no calibration.
        labels: Their classes, if accuracy and the ranking of errors are wanted.
        ood: Out-of-distribution sets by name.

    Returns:
        ``num_inputs``, ``same_class`` in percent, ``accuracy`` of both, and for every measure its rank correlation and the
        AUROC of both for errors and for each out-of-distribution set, in percent.
    """
    inside = [predict(inputs) for predict in (before, after)]
    classes = [outputs["probabilities"].argmax(-1) for outputs in inside]
    same = 100 * float(np.mean(classes[0] == classes[1]))
    found: dict[str, Any] = {"num_inputs": len(classes[0]), "same_class": same, "measures": {}}
    wrong = None if labels is None else [predicted != labels for predicted in classes]
    if wrong is not None:
        found["accuracy"] = [100 * float(1 - w.mean()) for w in wrong]
    outside = {name: [predict(x) for predict in (before, after)] for name, x in (ood or {}).items()}
    for name in inside[0]:
        if name in ("probabilities", "novelty_p_value", "finite"):  # two are no scores, and one ranks as novelty does
            continue
        scores = [_score(name, outputs) for outputs in inside]
        entry: dict[str, Any] = {"spearman": float(spearmanr(*scores).statistic)}
        if wrong is not None and all(0 < w.sum() < len(w) for w in wrong):
            entry["errors"] = [metrics.auroc(s, w) for s, w in zip(scores, wrong, strict=True)]
        for which, both in outside.items():
            entry[which] = [_auroc(s, _score(name, o)) for s, o in zip(scores, both, strict=True)]
        found["measures"][name] = entry
    return found


def show_drift(found: dict[str, Any], console: Console) -> None:
    """Print one line for each measure."""
    accuracy = f", accuracy {_both(found['accuracy'])} %" if "accuracy" in found else ""
    say(console, f"On {found['num_inputs']} other inputs: same class for {found['same_class']:.1f} %{accuracy}.")
    rows = [
        (name, f"{entry['spearman']:.3f}", _both(entry.get("errors", []))) for name, entry in found["measures"].items()
    ]
    print_table(console, ("measure", "rank correlation", "AUROC of errors"), rows)


def _both(values: list[float]) -> str:
    return " -> ".join(f"{each:.1f}" for each in values)


def _score(name: str, outputs: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    """A score that grows with uncertainty."""
    values: NDArray[np.float64] = outputs[name].astype(np.float64)
    return -values if name == "log_precision" else values


def _auroc(inside: NDArray[np.float64], outside: NDArray[np.float64]) -> float:
    positive = np.repeat([False, True], [len(inside), len(outside)])
    return metrics.auroc(np.concatenate([inside, outside]), positive)
