"""The module that draws pictures, with matplotlib and mpltern (the extra ``plot``); a run draws its own curves."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from sklearn.metrics import roc_curve
from torch import Tensor, nn

from opu import measures
from opu.distributions.dirichlet import Dirichlet
from opu.evaluation.metrics import reliability
from opu.prediction import Scores
from opu.teachers import Teacher

INK, TEACHER, STUDENT = "#222222", "#3b6ea5", "#d9722e"
NUM_WORST = 4
CAPTION = (
    "dots: 500 Monte-Carlo particles of the teacher       shading: the student's Dirichlet from one pass, "
    "regions of 50, 80 and 95 %"
)


def missing() -> str | None:
    """How to install what pictures need; None if it is installed."""
    try:
        import matplotlib  # noqa: F401
        import mpltern  # noqa: F401 - registers the ternary projection
    except ImportError as error:
        return f'Pictures need {error.name}; install it with: pip install "one-pass-uncertainty[plot]".'
    return None


def figure(width: float, height: float) -> Any:
    """An empty figure that needs no window system."""
    if (advice := missing()) is not None:
        raise ImportError(advice)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(width, height), dpi=150, facecolor="white")
    FigureCanvasAgg(drawing)
    return drawing


def finish(drawing: Any, path: Path) -> None:
    """Write a figure to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, bbox_inches="tight")


def _name(axes: Any, title: str, x: str = "", y: str = "") -> None:
    axes.set_title(title, color=INK, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


# The simplex


def draw_simplex(
    axes: Any,
    log_particles: Float[Tensor, "S K"],
    q: Dirichlet,
    corners: tuple[int, int] | None = None,
    colour: str = TEACHER,
) -> None:
    """Particles and a Dirichlet on a triangle: one class at the left, one at the right, all others at the top.

    The sum of several classes is exact: it has the sum of their concentrations.

    Args:
        axes: Axes with the ternary projection.
        log_particles: The particles of one input.
        q: The predicted Dirichlet, a batch of one.
        corners: Classes at the left and at the right; by default the two most probable ones.
        colour: Colour of the particles.
    """
    first, second = corners or log_particles.exp().mean(0).topk(2).indices.tolist()
    others = set(range(q.num_classes)) - {first, second}
    top = str(others.pop()) if len(others) == 1 else "others"
    particles = _merged(log_particles.exp(), first, second).double().numpy()
    _shade(axes, Dirichlet.from_concentration(_merged(q.log_concentration().exp(), first, second)))
    axes.scatter(*particles.T, s=9, color=colour, alpha=0.4, linewidths=0, zorder=5, clip_on=False)
    labels = (
        (axes.taxis, axes.set_tlabel, top),
        (axes.laxis, axes.set_llabel, str(first)),
        (axes.raxis, axes.set_rlabel, str(second)),
    )
    for axis, set_label, name in labels:
        set_label(name, color=INK, fontsize=11)
        axis.set_label_position("corner")
        axis.set_label_rotation_mode("horizontal")
        axis.set_ticks([])
    below = {"ha": "center", "va": "bottom", "color": INK, "fontsize": 9}
    axes.text(-0.12, 0.56, 0.56, f"log-precision {float(q.log_precision[0]):.1f}", **below)


def _merged(values: Float[Tensor, "*B K"], first: int, second: int) -> Float[Tensor, "*B 3"]:
    rest = values.sum(-1) - values[..., first] - values[..., second]
    return torch.stack([rest.clamp(min=1e-30), values[..., first], values[..., second]], -1)


def _shade(axes: Any, q: Dirichlet) -> None:
    """Shade the regions of highest density that hold 50, 80 and 95 % of the Dirichlet."""
    generator_state = torch.get_rng_state()
    at_samples = q.log_prob(q.log_rsample(4000)).numpy()
    torch.set_rng_state(generator_state)
    levels = np.unique(np.quantile(at_samples, [0.05, 0.2, 0.5]))
    grid = _grid(160)
    heights = q.log_prob(torch.from_numpy(grid).log().unsqueeze(1)).squeeze(-1).numpy()
    if heights.max() > levels[0] and len(levels) == 3:
        top = max(heights.max(), levels[-1] + 1e-6) + 1.0
        axes.tricontourf(*grid.T, heights, levels=[*levels, top], colors=["#fbe3d2", "#f4b98f", "#e88b4f"], zorder=1)


def _grid(steps: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    # Denser towards the edges, where a Dirichlet with small concentrations has its mass.
    side = np.sin(np.linspace(0, np.pi / 2, steps)) ** 2
    left, right = np.meshgrid(side, side)
    points = np.stack([left * right, left * (1 - right), 1 - left], -1).reshape(-1, 3)
    points = np.clip(points, 1e-6, None)
    unique: np.ndarray[Any, np.dtype[np.float64]] = np.unique(points / points.sum(-1, keepdims=True), axis=0)
    return unique


@torch.no_grad()
def draw_inputs(path: Path, chosen: Mapping[str, Tensor], teacher: Teacher, student: nn.Module) -> None:
    """Images by title, and below each the teacher's particles and the student's density."""
    drawing = figure(10.5, 4.6)
    grid = drawing.add_gridspec(2, len(chosen), height_ratios=(1, 3.4), top=0.92, bottom=0.1, hspace=0.0, wspace=0.3)
    for place, (title, x) in enumerate(chosen.items()):
        image = drawing.add_subplot(grid[0, place])
        image.imshow(x[0], cmap="gray", vmin=-1, vmax=1)
        image.set_axis_off()
        image.set_title(title, color=INK, fontsize=12)
        axes = drawing.add_subplot(grid[1, place], projection="ternary")
        draw_simplex(axes, teacher(x.unsqueeze(0), 500)[:, 0], student(x.unsqueeze(0)))
    drawing.text(0.5, 0.08, CAPTION, ha="center", color=INK, fontsize=9)
    finish(drawing, path)


# Scores: in-distribution against OOD


def _panels(drawing: Any, scores: Mapping[str, Any], x: str, y: str) -> Iterator[tuple[str, Any]]:
    """Each OOD set with its axes; the y axis is named in the first panel only."""
    sets = [name for name in scores if name != "test"]
    for place, name in enumerate(sets):
        axes = drawing.add_subplot(1, len(sets), place + 1)
        _name(axes, name.replace("_", " "), x, "" if place else y)
        yield name, axes
    drawing.tight_layout()


def draw_histograms(path: Path, scores: Mapping[str, Mapping[str, Scores]]) -> None:
    """Novelty of in-distribution test inputs against that of each OOD set."""
    drawing = figure(3.1 * (len(scores) - 1), 2.9)
    inside = scores["test"]["student"]["novelty"]
    for name, axes in _panels(drawing, scores, "novelty N", "density"):
        outside = scores[name]["student"]["novelty"]
        bins = np.linspace(0, max(inside.max(), np.quantile(outside, 0.99)), 40)
        axes.hist(inside, bins, color=TEACHER, alpha=0.75, density=True, label="in-distribution")
        axes.hist(np.clip(outside, 0, bins[-1]), bins, color=STUDENT, alpha=0.6, density=True, label="OOD")
        axes.set_yticks([])
        axes.legend(frameon=False, fontsize=8)
    finish(drawing, path)


def draw_roc(path: Path, metrics: Mapping[str, Any], scores: Mapping[str, Mapping[str, Scores]]) -> None:
    """ROC curves of the student's novelty and of the teacher's entropy, for each OOD set."""
    drawing = figure(3.1 * (len(scores) - 1), 3.2)
    entropy, novelty = measures.named("E", "N")
    curves = (
        ("teacher", entropy, "teacher E, 500 passes", TEACHER),
        ("student", novelty, "student N, one pass", STUDENT),
    )
    for name, axes in _panels(drawing, scores, "in-distribution inputs flagged, %", "OOD inputs found, %"):
        for model, measure, label, colour in curves:
            inside, outside = scores["test"][model][measure], scores[name][model][measure]
            positive = np.repeat([0, 1], [len(inside), len(outside)])
            false_rate, true_rate, _ = roc_curve(positive, np.concatenate([inside, outside]))
            area = metrics["ood"][name][model][measure]["auroc"]
            axes.plot(100 * false_rate, 100 * true_rate, color=colour, label=f"{label}: {area:.1f}")
        axes.plot([0, 100], [0, 100], color="0.8", linewidth=0.8, zorder=0)
        axes.legend(frameon=False, fontsize=8, loc="lower right", title="AUROC", title_fontsize=8)
    finish(drawing, path)


# Calibration


def draw_calibration(
    path: Path, probabilities: NDArray[np.float64], truth: NDArray[np.int64], p_values: NDArray[np.float64]
) -> None:
    """A reliability diagram, and the novelty p-values of held-out rows, which should be uniform."""
    drawing = figure(9.0, 4.2)
    left, right = drawing.subplots(1, 2)
    draw_reliability(left, {"student": reliability(torch.from_numpy(probabilities), torch.from_numpy(truth))})
    if np.isfinite(p_values).all():  # with very few rows novelty is not calibrated
        right.hist(p_values, np.linspace(0, 1, 21), density=True, color=STUDENT)
        right.axhline(1, color=INK, linewidth=0.8)
    _name(right, "Novelty of held-out rows", "p-value", "density (uniform: 1)")
    finish(drawing, path)


def draw_reliability(axes: Any, bins: Mapping[str, list[list[float | int]]]) -> None:
    """A reliability diagram: confidence, accuracy and count of each bin, by model (``teacher`` or ``student``)."""
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8)
    for model, found in bins.items():
        confidence, accuracy, count = zip(*found, strict=True)
        colour = TEACHER if model == "teacher" else STUDENT
        axes.plot(confidence, accuracy, color=colour, linewidth=0.8, alpha=0.6)
        # Small dots for bins of few inputs.
        axes.scatter(confidence, accuracy, s=[4 + 4 * n**0.5 for n in count], color=colour, label=model)
    axes.set_xlim(0, 1.04)
    axes.set_ylim(-0.03, 1.06)
    _name(axes, "Calibration", "confidence" if bins else "confidence (no labels were given)", "accuracy")
    if bins:
        axes.legend(frameon=False, fontsize=8, loc="lower right")


# Fidelity


@torch.no_grad()
def draw_fidelity(path: Path, found: Any, student: nn.Module, inputs: Tensor, teacher: Teacher) -> None:
    """A fidelity report: distances, agreement and calibration above, the inputs with the largest amortisation gap below.

    Args:
        path: The file.
        found: The report, an :class:`opu.fidelity.Fidelity`.
        student: A module that predicts a Dirichlet.
        inputs: The inputs of the report.
        teacher: Source of the particles.
    """
    drawing = figure(11.0, 6.2)
    above = drawing.add_gridspec(1, 3, top=0.94, bottom=0.56, wspace=0.32)
    _distances(drawing.add_subplot(above[0]), found)
    _agreement(drawing.add_subplot(above[1]), found)
    bins = {model: each["bins"] for model, each in found.summary.get("calibration", {}).items()}
    draw_reliability(drawing.add_subplot(above[2]), bins)
    below = drawing.add_gridspec(1, NUM_WORST, top=0.42, bottom=0.02, wspace=0.35)
    for place, index in enumerate(found.worst(NUM_WORST)):
        one = inputs[index : index + 1]
        q, log_particles = student(one), teacher(one, found.summary["num_particles"])[:, 0].cpu()
        binary = q.num_classes == 2
        axes = drawing.add_subplot(below[place], projection=None if binary else "ternary")
        (_draw_interval if binary else draw_simplex)(axes, log_particles, q)
        axes.set_title(f"input {index}: gap {float(found.gaps.amortisation[index]):.2f}", color=INK, fontsize=9)
    finish(drawing, path)


def _distances(axes: Any, found: Any) -> None:
    names = ("noise", "family", "amortisation", "total")
    values = [getattr(found.gaps, name).cpu().numpy() for name in names]
    axes.boxplot(values, orientation="horizontal", whis=(5, 95), showfliers=False, medianprops={"color": STUDENT})
    axes.set_yticks(range(1, len(names) + 1), names)
    _name(axes, "Where the distance comes from", "MMD (whiskers: 5 and 95 %)")


def _agreement(axes: Any, found: Any) -> None:
    theirs, ours = (found.mutual_information[model].cpu().numpy() for model in ("teacher", "student"))
    axes.plot(theirs, ours, ".", color=TEACHER, markersize=2, alpha=0.4)
    largest = max(float(theirs.max()), float(ours.max()), 1e-6)
    axes.plot([0, largest], [0, largest], color=INK, linewidth=0.8)
    _name(axes, "Mutual information", "teacher", "student")


def _draw_interval(axes: Any, log_particles: Float[Tensor, "S K"], q: Dirichlet) -> None:
    """Particles and a Dirichlet of two classes: a histogram and a density."""
    axes.hist(log_particles[:, 1].exp().numpy(), bins=30, density=True, color=TEACHER, alpha=0.6)
    grid = torch.linspace(0.002, 0.998, 200, dtype=torch.float64)
    density = q.log_prob(torch.stack([1 - grid, grid], -1).log()[:, None]).exp()[:, 0]
    axes.plot(grid.numpy(), density.numpy(), color=STUDENT)
    axes.set_yticks([])
    axes.set_xlabel("probability of class 1")
