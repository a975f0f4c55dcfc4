"""Figures and files, colours, and what every panel has: a title, names of its axes, a legend."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opu.files import save_figure
from opu.terminal import printable

INK, TEACHER, STUDENT = "#222222", "#3b6ea5", "#d9722e"
LONGEST_NAME = 16


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
    """Write a figure to a file, atomically."""
    save_figure(drawing, path, bbox_inches="tight")


def describe(axes: Any, title: str, x: str, y: str) -> None:
    """Give a panel its title and the names of its axes."""
    axes.set_title(title, color=INK, fontsize=10)
    axes.set_xlabel(x, color=INK, fontsize=9)
    axes.set_ylabel(y, color=INK, fontsize=9)
    axes.tick_params(labelsize=8)


def legend(axes: Any, **options: Any) -> None:
    """A small legend without a frame."""
    axes.legend(**{"frameon": False, "fontsize": 8, "title_fontsize": 8, **options})


def class_names(classes: Sequence[str] | None, num_classes: int) -> list[str]:
    """A name for each class, short enough for a panel; ``class 0``, ``class 1``, ... where none are known."""
    if classes is None:
        return [f"class {index}" for index in range(num_classes)]
    if len(classes) != num_classes:
        raise ValueError(f"there must be a name for each of the {num_classes} classes; got {len(classes)}.")
    return [as_text(name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…") for name in classes]


def as_text(name: str) -> str:
    """A name out of a file, such that no part of it is read as mathematics, and no character is invisible."""
    return printable(name).replace("$", r"\$")
