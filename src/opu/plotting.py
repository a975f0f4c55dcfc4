"""Drawing on the simplex, with matplotlib and mpltern (the extra ``plot``)."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from opu.distributions.dirichlet import Dirichlet

try:
    import mpltern  # noqa: F401 - registers the ternary projection
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:  # pragma: no cover - the tests run with the extra installed
    raise ImportError('pictures need matplotlib and mpltern; install them with: pip install "opu[plot]".') from error

INK, TEACHER, STUDENT = "#222222", "#3b6ea5", "#d9722e"


def figure(width: float, height: float) -> Any:
    """An empty figure that no window system sees."""
    drawing = Figure(figsize=(width, height), dpi=150, facecolor="white")
    FigureCanvasAgg(drawing)
    return drawing


def finish(drawing: Any, path: Path) -> None:
    """Write the figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, bbox_inches="tight")


def draw_simplex(
    axes: Any,
    log_particles: Float[Tensor, "S K"],
    q: Dirichlet,
    corners: tuple[int, int] | None = None,
    colour: str = TEACHER,
) -> None:
    """Particles and a Dirichlet on one triangle: two classes, left and right, and all others together at the top.

    Summing classes turns a Dirichlet into a Dirichlet of the summed concentrations, so nothing is approximated.

    Args:
        axes: With the ternary projection.
        log_particles: Of one input.
        q: The answer to it, a batch of one.
        corners: The classes at the left and at the right; the two likeliest ones unless given.
        colour: Of the particles.
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
    axes.text(
        -0.12,
        0.56,
        0.56,
        f"log-precision {float(q.log_precision[0]):.1f}",
        ha="center",
        va="bottom",
        color=INK,
        fontsize=9,
    )


def _merged(values: Float[Tensor, "*B K"], first: int, second: int) -> Float[Tensor, "*B 3"]:
    rest = values.sum(-1) - values[..., first] - values[..., second]
    return torch.stack([rest.clamp(min=1e-30), values[..., first], values[..., second]], -1)


def _shade(axes: Any, q: Dirichlet) -> None:
    """Regions of highest density that hold 50, 80 and 95 % of the Dirichlet."""
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
