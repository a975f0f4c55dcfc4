"""The demo's pictures: the induced distribution on the simplex, score histograms, ROC curves."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_curve
from torch import Tensor, nn

from opu import measures
from opu.demo.data import Digits
from opu.plotting import INK, STUDENT, TEACHER, draw_simplex, figure, finish
from opu.teachers import Teacher

CAPTION = (
    "dots: 500 Monte-Carlo particles of the teacher       shading: the student's Dirichlet from one pass, "
    "regions of 50, 80 and 95 %"
)


def draw_all(
    out: Path,
    digits: Digits,
    teacher: Teacher,
    student: nn.Module,
    metrics: dict[str, Any],
    scores: dict[str, Any],
) -> None:
    """Write ``simplex.png``, ``scores.png`` and ``roc.png``."""
    simplex_picture(out / "simplex.png", digits, teacher, student)
    histogram_picture(out / "scores.png", scores)
    roc_picture(out / "roc.png", metrics, scores)


@torch.no_grad()
def simplex_picture(path: Path, digits: Digits, teacher: Teacher, student: nn.Module) -> None:
    """Particles and the student's density for a confident, an ambiguous and a ood input."""
    chosen = _three_inputs(digits, teacher)
    drawing = figure(10.5, 4.9)
    grid = drawing.add_gridspec(2, 3, height_ratios=(1, 3.4), top=0.92, bottom=0.1, hspace=0.0, wspace=0.3)
    for place, (title, x) in enumerate(chosen.items()):
        image = drawing.add_subplot(grid[0, place])
        image.imshow(x[0], cmap="gray", vmin=-1, vmax=1)
        image.set_axis_off()
        image.set_title(title, color=INK, fontsize=12)
        axes = drawing.add_subplot(grid[1, place], projection="ternary")
        draw_simplex(axes, teacher(x.unsqueeze(0), 500)[:, 0], student(x.unsqueeze(0)))
    drawing.text(0.5, 0.02, CAPTION, ha="center", color=INK, fontsize=9)
    finish(drawing, path)


def _three_inputs(digits: Digits, teacher: Teacher) -> dict[str, Tensor]:
    inside, outside = teacher(digits.test, 200), teacher(digits.ood["photographs"], 200)
    sure = measures.predictive_entropy(inside).argmin()
    torn = measures.mean(inside).topk(2).values[:, 1].argmax()  # the strongest second choice
    strange = measures.mutual_information(outside).argmax()
    return {
        "confident": digits.test[sure],
        "ambiguous": digits.test[torn],
        "out of domain": digits.ood["photographs"][strange],
    }


def histogram_picture(path: Path, scores: dict[str, Any]) -> None:
    """Novelty of ordinary inputs against that of each ood set."""
    sets = [name for name in scores if name != "test"]
    drawing = figure(3.1 * len(sets), 2.9)
    ordinary = scores["test"]["student"]["novelty"]
    for place, name in enumerate(sets):
        axes = drawing.add_subplot(1, len(sets), place + 1)
        ood = scores[name]["student"]["novelty"]
        bins = np.linspace(0, max(ordinary.max(), np.quantile(ood, 0.99)), 40)
        axes.hist(ordinary, bins, color=TEACHER, alpha=0.75, density=True, label="ordinary test inputs")
        axes.hist(
            np.clip(ood, 0, bins[-1]), bins, color=STUDENT, alpha=0.6, density=True, label=name.replace("_", " ")
        )
        axes.set_title(name.replace("_", " "), color=INK, fontsize=10)
        axes.set_xlabel("novelty N")
        axes.set_yticks([])
        if place == 0:
            axes.legend(frameon=False, fontsize=8)
    drawing.tight_layout()
    finish(drawing, path)


def roc_picture(path: Path, metrics: dict[str, Any], scores: dict[str, Any]) -> None:
    """ROC curves of the student's novelty and of the teacher's entropy, for each ood set."""
    sets = [name for name in scores if name != "test"]
    drawing = figure(3.1 * len(sets), 3.2)
    curves = (
        ("teacher", "predictive_entropy", "teacher E, 500 passes", TEACHER),
        ("student", "novelty", "student N, one pass", STUDENT),
    )
    for place, name in enumerate(sets):
        axes = drawing.add_subplot(1, len(sets), place + 1)
        for model, measure, label, colour in curves:
            inside, outside = scores["test"][model][measure], scores[name][model][measure]
            positive = np.repeat([0, 1], [len(inside), len(outside)])
            false_rate, true_rate, _ = roc_curve(positive, np.concatenate([inside, outside]))
            area = metrics["ood"][name][model][measure]["auroc"]
            axes.plot(100 * false_rate, 100 * true_rate, color=colour, label=f"{label}: {area:.1f}")
        axes.plot([0, 100], [0, 100], color="0.8", linewidth=0.8, zorder=0)
        axes.set_title(name.replace("_", " "), color=INK, fontsize=10)
        axes.set_xlabel("ordinary inputs flagged, %")
        if place == 0:
            axes.set_ylabel("strangers found, %")
        axes.legend(frameon=False, fontsize=8, loc="lower right", title="AUROC", title_fontsize=8)
    drawing.tight_layout()
    finish(drawing, path)
