"""Scores of in-distribution inputs against those of out-of-distribution sets."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_curve

from opu import measures
from opu.plotting.canvas import STUDENT, TEACHER, as_text, describe, figure, finish, legend
from opu.prediction import Scores


def draw_histograms(path: Path, scores: Mapping[str, Mapping[str, Scores]]) -> None:
    """Novelty of in-distribution test inputs against that of each OOD set."""
    drawing = figure(3.1 * (len(scores) - 1), 2.9)
    inside = scores["test"]["student"]["novelty"]
    for name, axes in _panels(drawing, scores, "student's novelty N", "density"):
        outside = scores[name]["student"]["novelty"]
        bins = np.linspace(0, max(inside.max(), np.quantile(outside, 0.99)), 40)
        axes.hist(inside, bins, color=TEACHER, alpha=0.75, density=True, label="in-distribution")
        axes.hist(np.clip(outside, 0, bins[-1]), bins, color=STUDENT, alpha=0.6, density=True, label="OOD")
        axes.set_yticks([])
        legend(axes)
    finish(drawing, path)


def draw_roc(path: Path, metrics: Mapping[str, Any], scores: Mapping[str, Mapping[str, Scores]]) -> None:
    """ROC curves of the student's novelty and of the teacher's entropy, for each OOD set."""
    drawing = figure(3.1 * (len(scores) - 1), 3.2)
    entropy, novelty = measures.named("E", "N")
    curves = (
        ("teacher", entropy, "teacher's entropy E", TEACHER),
        ("student", novelty, "student's novelty N", STUDENT),
    )
    for name, axes in _panels(drawing, scores, "in-distribution inputs flagged, %", "OOD inputs found, %"):
        for model, measure, label, colour in curves:
            inside, outside = scores["test"][model][measure], scores[name][model][measure]
            positive = np.repeat([0, 1], [len(inside), len(outside)])
            false_rate, true_rate, _ = roc_curve(positive, np.concatenate([inside, outside]))
            area = metrics["ood"][name][model][measure]["auroc"]
            axes.plot(100 * false_rate, 100 * true_rate, color=colour, label=f"{label}: {area:.1f}")
        axes.plot([0, 100], [0, 100], color="0.7", linewidth=0.8, zorder=0, label="chance: 50.0")
        legend(axes, loc="lower right", title="AUROC, %")
    finish(drawing, path)


def _panels(drawing: Any, scores: Mapping[str, Any], x: str, y: str) -> Iterator[tuple[str, Any]]:
    """Each OOD set with its axes."""
    sets = [name for name in scores if name != "test"]
    for place, name in enumerate(sets):
        axes = drawing.add_subplot(1, len(sets), place + 1)
        describe(axes, as_text(name.replace("_", " ")), x, y)
        yield name, axes
    drawing.tight_layout()
