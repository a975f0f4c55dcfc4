"""The picture of a fidelity report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from opu.batches import Batch, take
from opu.plotting.calibration import draw_reliability
from opu.plotting.canvas import INK, STUDENT, TEACHER, describe, figure, finish, legend
from opu.plotting.simplex import draw_interval, draw_simplex
from opu.teachers import Teacher

NUM_WORST = 4


@torch.no_grad()
def draw_fidelity(
    path: Path,
    found: Any,
    student: nn.Module,
    inputs: Batch,
    teacher: Teacher,
    classes: Sequence[str] | None = None,
) -> None:
    """A fidelity report: distances, agreement, calibration and coverage above, the inputs of largest amortisation gap below.

    Args:
        path: The file.
        found: The report, an :class:`opu.fidelity.Fidelity`.
        student: A module that predicts Dirichlets or logistic-normals.
        inputs: The inputs of the report.
        teacher: Source of the particles.
        classes: Names of the classes.
    """
    drawing = figure(15.0, 7.4)
    above = drawing.add_gridspec(1, 4, top=0.95, bottom=0.58, wspace=0.32)
    _distances(drawing.add_subplot(above[0]), found)
    _agreement(drawing.add_subplot(above[1]), found)
    bins = {model: each["bins"] for model, each in found.summary.get("calibration", {}).items()}
    draw_reliability(drawing.add_subplot(above[2]), bins)
    _coverage(drawing.add_subplot(above[3]), found)
    below = drawing.add_gridspec(1, NUM_WORST, top=0.43, bottom=0.14, wspace=0.45)
    drawing.text(0.5, 0.49, "The inputs with the largest amortisation gap", ha="center", color=INK, fontsize=10)
    for place, index in enumerate(found.worst(NUM_WORST)):
        one = take(inputs, slice(index, index + 1))
        q, log_particles = student(one), teacher(one, found.summary["num_particles"])[:, 0].cpu()
        binary = q.num_classes == 2
        axes = drawing.add_subplot(below[place], projection=None if binary else "ternary")
        (draw_interval if binary else draw_simplex)(axes, log_particles, q, classes=classes)
        axes.set_title(f"input {index}: gap {float(found.gaps.amortisation[index]):.2f}", color=INK, fontsize=9)
    finish(drawing, path)


def _distances(axes: Any, found: Any) -> None:
    names = ("noise", "family", "amortisation", "total")
    values = [getattr(found.gaps, name).cpu().numpy() for name in names]
    drawn = axes.boxplot(
        values, orientation="horizontal", whis=(5, 95), showfliers=False, medianprops={"color": STUDENT}
    )
    axes.set_yticks(range(1, len(names) + 1), names)
    axes.locator_params(axis="x", nbins=4)
    describe(axes, "Where the distance comes from", "MMD of an input", "part of the distance")
    from matplotlib.patches import Patch

    handles = [drawn["medians"][0], Patch(facecolor="white", edgecolor="black"), drawn["whiskers"][0]]
    axes.set_ylim(-0.1, len(names) + 0.6)  # room for the legend
    words = ["median", "middle 50 %", "90 % of inputs"]
    legend(
        axes,
        handles=handles,
        labels=words,
        loc="lower center",
        ncols=3,
        columnspacing=0.8,
        handlelength=1.0,
        fontsize=7,
    )


def _agreement(axes: Any, found: Any) -> None:
    theirs, ours = (found.mutual_information[model].cpu().numpy() for model in ("teacher", "student"))
    axes.plot(theirs, ours, ".", color=TEACHER, markersize=3, alpha=0.5, label="one input each")
    largest = max(float(theirs.max()), float(ours.max()), 1e-6)
    axes.plot([0, largest], [0, largest], color=INK, linewidth=0.8, label="perfect agreement")
    describe(axes, "Mutual information", "teacher's, nats", "student's, nats")
    legend(axes, loc="upper left", markerscale=2)


def _coverage(axes: Any, found: Any) -> None:
    """Coverage of the predicted class by decile, of the student and of fits of each family."""
    summary = found.summary["coverage"]
    _curve(axes, summary["by_decile"]["predicted"], STUDENT, "student", linewidth=1.6)
    if found.families is not None:
        looks = {
            "dirichlet_maximum_likelihood": ("most likely Dirichlet", INK, ":"),
            "dirichlet_minimum_mmd": ("nearest Dirichlet", INK, "--"),
            found.families.best_logistic_normal: ("logistic-normal", TEACHER, "--"),
        }
        for name, (label, colour, style) in looks.items():
            shares = [100 * share for share in found.families.families[name].coverage]
            _curve(axes, shares, colour, label, linestyle=style, linewidth=1.0)
    level = 100 * summary["level"]
    axes.axhline(level, color=INK, linewidth=0.8, label=f"level: {level:.0f} %")
    axes.set_ylim(-45, 105)  # room for the legend
    axes.set_yticks(range(0, 101, 20))
    axes.set_xlim(0.5, 10.5)
    describe(axes, "Interval of the predicted class", "decile of the teacher's entropy", "particles within, %")
    legend(axes, loc="lower center", ncols=2, columnspacing=0.8, handlelength=1.4, fontsize=7)


def _curve(axes: Any, shares: Sequence[float], colour: str, label: str, **options: Any) -> None:
    """Shares of deciles; with fewer than ten inputs, of as many groups."""
    places = [(place + 0.5) * 10 / len(shares) + 0.5 for place in range(len(shares))]
    axes.plot(places, shares, marker=".", color=colour, label=label, **options)
