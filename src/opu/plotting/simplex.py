"""One input: particles and a prediction on a triangle, or, of two classes, on an interval."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from opu.distributions import SimplexDistribution
from opu.plotting.canvas import INK, STUDENT, TEACHER, class_names, describe, figure, finish, legend
from opu.plotting.merged import Merged, merge, merged
from opu.teachers import Teacher

SHADES = ("#fbe3d2", "#f4b98f", "#e88b4f")
SMALL = 0.08  # if all lies within this distance of a corner, the corner is drawn enlarged


def draw_simplex(
    axes: Any,
    log_particles: Float[Tensor, "S K"],
    q: SimplexDistribution,
    corners: tuple[int, int] | None = None,
    colour: str = TEACHER,
    *,
    classes: Sequence[str] | None = None,
    dots: str = "particles of the teacher",
) -> None:
    """Particles and a prediction on a triangle: one class at the left, one at the right, all others at the top.

    The sum of several classes of a Dirichlet is exact: it has the sum of their concentrations. That of a logistic-normal
    comes from its fixed points (:mod:`opu.plotting.merged`). If all lies in one corner, that corner is drawn enlarged in
    the middle of the triangle.

    Args:
        axes: Axes with the ternary projection.
        log_particles: The particles of one input.
        q: The prediction, a batch of one.
        corners: Classes at the left and at the right; by default the two most probable ones.
        colour: Colour of the particles.
        classes: Names of all classes.
        dots: What the legend calls the particles.
    """
    first, second = corners or log_particles.exp().mean(0).topk(2).indices.tolist()
    names, others = class_names(classes, q.num_classes), set(range(q.num_classes)) - {first, second}
    labels = [names[others.pop()] if len(others) == 1 else "all other classes", names[first], names[second]]
    particles = merge(log_particles.exp(), first, second).double().numpy()
    prediction = merged(q, first, second)
    corner, width = _extent(particles, prediction)
    _shade(axes, prediction, _grid(160))
    axes.scatter(*particles.T, s=9, color=colour, alpha=0.4, linewidths=0, zorder=5, clip_on=False)
    _draw_mean(axes, prediction)
    _name_corners(axes, labels, 10)
    shown = [_dot(colour, 4.0, alpha=0.6), _dot(STUDENT, 8.0), tuple(_patch(shade) for shade in reversed(SHADES))]
    words = [f"{len(particles)} {dots}", "student's mean", "student's 50, 80, 95 % regions"]
    if width < SMALL:
        _enlarge(axes, particles, prediction, colour, corner, width)
        shown[-1], words[-1] = _dot(SHADES[-1], 4.0), "draws from the student, enlarged"
    legend(
        axes,
        handles=shown,
        labels=words,
        title=f"student's log-precision: {float(q.log_precision[0]):.1f}",
        loc="upper center",
        bbox_to_anchor=(0.5, -0.11),
        handler_map={tuple: _side_by_side()},
    )


def _draw_mean(axes: Any, prediction: Merged) -> None:
    axes.scatter(
        *prediction.mean[:, None], s=52, color=STUDENT, edgecolors="white", linewidths=1.3, zorder=7, clip_on=False
    )


def _name_corners(axes: Any, labels: Sequence[str], size: int) -> None:
    setters = ((axes.taxis, axes.set_tlabel), (axes.laxis, axes.set_llabel), (axes.raxis, axes.set_rlabel))
    for (axis, set_label), label in zip(setters, labels, strict=True):
        axis.set_label_position("corner")
        # Above and below the corners, where names of neighbouring panels do not meet.
        axis.set_label_rotation_mode("manual")
        above = axis is axes.taxis
        set_label(label, color=INK, fontsize=size, rotation=0, ha="center", va="bottom" if above else "top")
        axis.set_ticks([])


def _extent(particles: NDArray[np.float64], prediction: Merged) -> tuple[int, float]:
    """The corner where the student's mean is, and how far mean, particles and student reach from it (95 % of each)."""
    corner = int(prediction.mean.argmax())
    clouds = (particles[:, corner], np.exp(prediction.log_draws[:, corner]), prediction.mean[corner])
    return corner, max(float(np.quantile(1 - each, 0.95)) for each in clouds)


def _enlarge(
    axes: Any, particles: NDArray[np.float64], prediction: Merged, colour: str, corner: int, width: float
) -> None:
    """Draw one corner of a triangle in its middle, where there is nothing else.

    The student is drawn as dots: in a corner its regions are thinner than a line.
    """
    side = float(f"{max(1.25 * width, 1e-4):.1g}")
    inset = axes.inset_axes((0.29, 0.17, 0.42, 0.42), projection="ternary")
    low = np.zeros(3)
    low[corner] = 1 - side
    inset.set_ternary_lim(*np.stack([low, low + side], 1).ravel())
    draws = np.exp(prediction.log_draws[: len(particles)])
    for points, shade, layer in ((draws, SHADES[-1], 4), (particles, colour, 5)):
        near = points[points[:, corner] >= 1 - side]
        inset.scatter(*near.T, s=9, color=shade, alpha=0.5, linewidths=0, zorder=layer, clip_on=False)
    _draw_mean(inset, prediction)
    _name_corners(inset, [f"{100 if place == corner else 100 * side:g} %" for place in range(3)], 8)
    axes.text(0.5, 0.02, "the corner, enlarged", transform=axes.transAxes, color=INK, fontsize=8, ha="center")


def _shade(axes: Any, prediction: Merged, grid: NDArray[np.float64]) -> None:
    """Shade the regions of highest density that hold 50, 80 and 95 % of the prediction."""
    # A Dirichlet with small concentrations is infinitely dense at its edges, in points that no grid holds.
    draws = np.maximum(prediction.log_draws, np.log(grid.min()))
    levels = np.unique(np.quantile(prediction.log_density(draws), [0.05, 0.2, 0.5]))
    heights = prediction.log_density(np.log(grid))
    if heights.max() > levels[0] and len(levels) == 3:
        top = max(heights.max(), levels[-1] + 1e-6) + 1.0
        axes.tricontourf(*grid.T, heights, levels=[*levels, top], colors=SHADES, zorder=1)


def _grid(steps: int) -> NDArray[np.float64]:
    # Denser towards the edges, where a Dirichlet with small concentrations has its mass.
    side = np.sin(np.linspace(0, np.pi / 2, steps)) ** 2
    left, right = np.meshgrid(side, side)
    points = np.stack([left * right, left * (1 - right), 1 - left], -1).reshape(-1, 3)
    points = np.clip(points, 1e-6, None)
    unique: NDArray[np.float64] = np.unique(points / points.sum(-1, keepdims=True), axis=0)
    return unique


def _dot(colour: str, size: float, alpha: float = 1.0) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], marker="o", linestyle="", color=colour, markersize=size, alpha=alpha, markeredgewidth=0)


def _patch(colour: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour)


def _side_by_side() -> Any:
    from matplotlib.legend_handler import HandlerTuple

    return HandlerTuple(ndivide=None, pad=0)


@torch.no_grad()
def draw_inputs(
    path: Path,
    chosen: Mapping[str, Tensor],
    teacher: Teacher,
    student: nn.Module,
    classes: Sequence[str] | None = None,
) -> None:
    """Images by title, and below each the teacher's particles and the student's density.

    Args:
        path: The file.
        chosen: Images by title.
        teacher: Source of the particles.
        student: A module that predicts Dirichlets or logistic-normals.
        classes: Names of the classes.
    """
    drawing = figure(10.5, 5.4)
    grid = drawing.add_gridspec(2, len(chosen), height_ratios=(1, 2.9), top=0.94, bottom=0.2, hspace=0.08, wspace=0.42)
    for place, (title, x) in enumerate(chosen.items()):
        image = drawing.add_subplot(grid[0, place])
        image.imshow(x[0].cpu().numpy(), cmap="gray", vmin=-1, vmax=1)
        image.set_axis_off()
        image.set_title(title, color=INK, fontsize=12)
        axes = drawing.add_subplot(grid[1, place], projection="ternary", anchor="N")
        draw_simplex(axes, teacher(x.unsqueeze(0), 500)[:, 0], student(x.unsqueeze(0)), classes=classes)
    finish(drawing, path)


def draw_interval(
    axes: Any, log_particles: Float[Tensor, "S K"], q: SimplexDistribution, *, classes: Sequence[str] | None = None
) -> None:
    """Particles and a prediction of two classes: a histogram and a density.

    Args:
        axes: Ordinary axes.
        log_particles: The particles of one input.
        q: The prediction, a batch of one.
        classes: Names of both classes.
    """
    count = len(log_particles)
    particles = log_particles[:, 1].exp().numpy()
    axes.hist(particles, bins=30, density=True, color=TEACHER, alpha=0.6, label=f"{count} particles of the teacher")
    grid = torch.linspace(0.002, 0.998, 200, dtype=torch.float64)
    density = q.log_prob(torch.stack([1 - grid, grid], -1).log()[:, None]).exp()[:, 0]
    axes.plot(grid.numpy(), density.numpy(), color=STUDENT, label="student's density")
    mean = float(q.mean[0, 1])
    axes.axvline(mean, color=STUDENT, linewidth=0.8, linestyle="--", label="student's mean")
    axes.set_yticks([])
    axes.set_xlim(0, 1)
    describe(axes, "", f"probability of {class_names(classes, 2)[1]}", "density")
    legend(
        axes,
        title=f"student's log-precision: {float(q.log_precision[0]):.1f}",
        loc="upper center",
        bbox_to_anchor=(0.5, -0.22),
    )
