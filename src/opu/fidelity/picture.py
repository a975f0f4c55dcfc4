"""The picture of a fidelity report: where the distance comes from, whether ranks agree, calibration, the worst inputs."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from opu.fidelity.report import Fidelity
from opu.plotting import INK, STUDENT, TEACHER, draw_simplex, figure, finish
from opu.teachers import Teacher

NUM_DRAWN = 4


def draw(path: Path, found: Fidelity, student: nn.Module, inputs: Tensor, teacher: Teacher) -> None:
    """Above the whole, below the worst inputs: the teacher's particles with the student's density over them."""
    drawing = figure(11.0, 6.2)
    above = drawing.add_gridspec(1, 3, top=0.94, bottom=0.56, wspace=0.32)
    _distances(drawing.add_subplot(above[0]), found)
    _ranks(drawing.add_subplot(above[1]), found)
    _reliability(drawing.add_subplot(above[2]), found)
    below = drawing.add_gridspec(1, NUM_DRAWN, top=0.42, bottom=0.02)
    for place, index in enumerate(found.worst(min(NUM_DRAWN, len(inputs)))):
        _worst(drawing, below[place], index, student, inputs, teacher, found)
    finish(drawing, path)


def _distances(axes: Any, found: Fidelity) -> None:
    names = ("noise", "family", "amortisation", "total")
    values = [getattr(found.gaps, name).cpu().numpy() for name in names]
    axes.boxplot(values, orientation="horizontal", whis=(5, 95), showfliers=False, medianprops={"color": STUDENT})
    axes.set_yticks(range(1, len(names) + 1), names)
    axes.set_xlabel("MMD (boxes: quartiles; whiskers: 5 and 95 %)")
    axes.set_title("Where the distance comes from", color=INK, fontsize=10)


def _ranks(axes: Any, found: Fidelity) -> None:
    theirs, ours = (found.mutual_information[who].cpu().numpy() for who in ("teacher", "student"))
    axes.plot(theirs, ours, ".", color=TEACHER, markersize=2, alpha=0.4)
    largest = max(float(theirs.max()), float(ours.max()), 1e-6)
    axes.plot([0, largest], [0, largest], color=INK, linewidth=0.8)
    axes.set_xlabel("teacher")
    axes.set_ylabel("student")
    axes.set_title("Mutual information", color=INK, fontsize=10)


def _reliability(axes: Any, found: Fidelity) -> None:
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8)
    for who, colour in (("teacher", TEACHER), ("student", STUDENT)):
        bins = found.summary.get("calibration", {}).get(who, {}).get("bins", [])
        confidence, accuracy, count = ([b[place] for b in bins] for place in range(3))
        axes.plot(confidence, accuracy, color=colour, linewidth=0.8, alpha=0.6)
        # Bins of a few inputs say little, and should look it.
        axes.scatter(confidence, accuracy, s=[4 + 4 * n**0.5 for n in count], color=colour, label=who)
    axes.set_xlim(0, 1.04)
    axes.set_ylim(-0.03, 1.06)
    axes.set_xlabel("confidence" if "calibration" in found.summary else "confidence (no labels were given)")
    axes.set_ylabel("accuracy")
    axes.set_title("Calibration", color=INK, fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="lower right")


@torch.no_grad()
def _worst(
    drawing: Any, place: Any, index: int, student: nn.Module, inputs: Tensor, teacher: Teacher, found: Fidelity
) -> None:
    one = inputs[index : index + 1]
    q, log_particles = student(one), teacher(one, found.summary["num_particles"])
    title = f"input {index}: {float(found.gaps.amortisation[index]):.2f} beyond the best"
    if q.num_classes < 3:
        axes = drawing.add_subplot(place)
        axes.hist(log_particles[:, 0, 1].exp().cpu().numpy(), bins=30, density=True, color=TEACHER, alpha=0.6)
        grid = torch.linspace(0.002, 0.998, 200, dtype=torch.float64)
        density = q.log_prob(torch.stack([1 - grid, grid], -1).log()[:, None]).exp()[:, 0]
        axes.plot(grid.numpy(), density.cpu().numpy(), color=STUDENT)
        axes.set_yticks([])
        axes.set_xlabel("probability of class 1")
    else:
        axes = drawing.add_subplot(place, projection="ternary")
        draw_simplex(axes, log_particles[:, 0].cpu(), q)
    axes.set_title(title, color=INK, fontsize=9)
