"""Calibration: of class probabilities, and of novelty's p-values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from opu.evaluation.metrics import reliability
from opu.plotting.canvas import INK, STUDENT, TEACHER, describe, figure, finish, legend


def draw_calibration(
    path: Path, probabilities: NDArray[np.float64], truth: NDArray[np.int64], p_values: NDArray[np.float64]
) -> None:
    """A reliability diagram, and the novelty p-values of held-out rows, which should be uniform."""
    drawing = figure(9.0, 4.2)
    left, right = drawing.subplots(1, 2)
    draw_reliability(left, {"student": reliability(torch.from_numpy(probabilities), torch.from_numpy(truth))})
    right.set_xlim(0, 1)
    if np.isfinite(p_values).all():
        right.hist(p_values, np.linspace(0, 1, 21), density=True, color=STUDENT, label="held-out rows")
    else:
        right.text(0.5, 0.4, "too few rows to calibrate novelty", color=INK, fontsize=9, ha="center")
    right.axhline(1, color=INK, linewidth=0.8, label="calibrated (uniform)")
    describe(right, "Novelty of held-out rows", "p-value of novelty", "density")
    right.set_ylim(0, 1.3 * max(1.0, right.get_ylim()[1]))  # room for the legend
    legend(right, loc="upper right")
    drawing.tight_layout()
    finish(drawing, path)


def draw_reliability(axes: Any, bins: Mapping[str, list[list[float | int]]]) -> None:
    """A reliability diagram: confidence, accuracy and count of each bin, by model (``teacher`` or ``student``)."""
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, label="perfect calibration")
    for model, found in bins.items():
        confidence, accuracy, count = zip(*found, strict=True)
        colour = TEACHER if model == "teacher" else STUDENT
        axes.plot(confidence, accuracy, color=colour, linewidth=0.8, alpha=0.6)
        # Small dots for bins of few inputs.
        axes.scatter(confidence, accuracy, s=[4 + 4 * n**0.5 for n in count], color=colour)
        axes.plot([], [], "o-", color=colour, markersize=5, linewidth=0.8, label=model)
    axes.set_xlim(0, 1.04)
    axes.set_ylim(-0.03, 1.06)
    describe(axes, "Calibration", "confidence (larger dots: more inputs)", "accuracy")
    legend(axes, loc="lower right", handlelength=1.2)
    if not bins:
        axes.text(0.4, 0.8, "no labels were given", color=INK, fontsize=9, ha="center")
