"""Cross-validation of a classifier for tables: predictions for every row by a classifier that has not seen it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from sklearn.model_selection import StratifiedKFold

from opu import measures
from opu.evaluation import metrics
from opu.sklearn.classifier import OnePassClassifier

LEVEL = 0.9
(ENTROPY,) = measures.named("E")


def cross_validate(
    x: NDArray[np.float64],
    labels: NDArray[Any],
    make: Callable[[int], OnePassClassifier],
    folds: int,
    seed: int,
    console: Console,
) -> dict[str, Any]:
    """Predictions for every row by a classifier that has not seen it, and their metrics.

    Args:
        x: The rows.
        labels: The class of each row.
        make: From a seed to a classifier that is not fitted yet.
        folds: Number of folds; fewer if a class has fewer rows.
        seed: Seed of the folds, and of the first classifier.
        console: Where progress is shown.
    """
    folds = min(folds, int(np.unique(labels, return_counts=True)[1].min()))
    classes = np.unique(labels)
    probabilities = np.zeros((len(x), len(classes)))
    entropy, novelty, p_values = (np.zeros(len(x)) for _ in range(3))
    covered, accuracies = [], []
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed).split(x, labels)
    shown = track(parts, "cross-validation", folds, transient=True, disable=not console.is_terminal)
    for number, (train, test) in enumerate(shown):
        model = make(seed + number).fit(x[train], labels[train])
        probabilities[test] = model.predict_proba(x[test])
        measured = model.uncertainty(x[test])
        entropy[test], novelty[test] = measured[ENTROPY], measured.get("novelty", np.nan)
        p_values[test] = measured.get("novelty_p_value", np.nan)
        accuracies.append(100 * model.score(x[test], labels[test]))
        covered.append(_coverage(model, x[test]))
    truth = torch.from_numpy(np.searchsorted(classes, labels))
    predicted = torch.from_numpy(probabilities)
    wrong = (predicted.argmax(-1) != truth).numpy()
    found = {
        "folds": folds,
        "accuracy": metrics.accuracy(predicted, truth),
        "accuracy_of_folds": accuracies,
        "base_rate": metrics.base_rate(truth),
        "balanced_accuracy": metrics.balanced_accuracy(predicted, truth),
        "auroc": metrics.class_auroc(predicted, truth),
        "nll": metrics.negative_log_likelihood(predicted, truth),
        "brier": metrics.brier_score(predicted, truth),
        "ece": metrics.calibration_error(predicted, truth),
        "errors": {
            "base_rate": 100 * float(wrong.mean()),
            "entropy": metrics.detection_or_none(entropy, wrong),
            "novelty": metrics.detection_or_none(novelty, wrong),
        },
        "coverage": {"level": LEVEL, "of_teacher": float(np.mean(covered))},
        "flagged_at_5_percent": 100 * float(np.mean(p_values < 0.05)),
    }
    return {"metrics": found, "probabilities": probabilities, "truth": truth.numpy(), "p_values": p_values}


def _coverage(model: OnePassClassifier, rows: NDArray[np.float64]) -> float:
    """Fraction of the teacher's particles within the student's intervals."""
    low, high = model.predict_interval(rows, LEVEL)
    x = model.standardise_(torch.from_numpy(rows)).float()
    particles = model.teacher_(x, 200).double().exp().numpy()
    return float(np.mean((low <= particles) & (particles <= high)))
