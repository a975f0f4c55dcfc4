"""The picture of a cross-validation: are probabilities and p-values what they say?"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from opu.plotting import INK, STUDENT, figure, finish


def draw_calibration(
    path: Path, probabilities: NDArray[np.float64], truth: NDArray[np.int64], p_values: NDArray[np.float64]
) -> None:
    """How often predictions of a given probability come true, and the p-values of ordinary rows, which should be even."""
    drawing = figure(9.0, 4.2)
    left, right = drawing.subplots(1, 2)
    sure, correct = probabilities.max(-1), probabilities.argmax(-1) == truth
    edges = np.quantile(sure, np.linspace(0, 1, 11))
    bins = np.clip(np.searchsorted(edges, sure, side="right") - 1, 0, 9)
    points = [(sure[bins == b].mean(), correct[bins == b].mean()) for b in range(10) if (bins == b).any()]
    least = 1 / probabilities.shape[1]
    left.plot([least, 1], [least, 1], color=INK, linewidth=0.8, linestyle=":")
    left.plot(*zip(*points, strict=True), marker="o", color=STUDENT)
    left.set_xlabel("probability of the predicted class")
    left.set_ylabel("share that is right")
    if np.isfinite(p_values).all():  # a handful of rows calibrates none
        right.hist(p_values, np.linspace(0, 1, 21), density=True, color=STUDENT)
        right.axhline(1, color=INK, linewidth=0.8, linestyle=":")
    right.set_xlabel("novelty p-value of rows not seen in fitting")
    right.set_ylabel("density; even is 1")
    finish(drawing, path)
