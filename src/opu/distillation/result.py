"""What a run returns: its curves, the epoch it kept, and its warnings; it prints in five lines and plots itself."""

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opu.checks import optional

_LOSS, _HELD_OUT, _INK = "#3b6ea5", "#d9722e", "#222222"


@dataclass(repr=False)
class Distillation:
    """The result of a run.

    Attributes:
        losses: The loss of each step.
        held_out: The mean of the objective over held-out inputs after each epoch; NaN if there are none.
        best_epoch: The epoch whose weights were kept, counted from 1.
        warnings: What went wrong and what to do, one sentence each.
    """

    losses: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    best_epoch: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def epochs(self) -> int:
        """Number of epochs."""
        return len(self.held_out)

    @property
    def epoch_losses(self) -> list[float]:
        """The mean loss of each epoch."""
        length = max(1, len(self.losses) // max(1, self.epochs))
        return [statistics.fmean(self.losses[i * length : (i + 1) * length]) for i in range(self.epochs)]

    def __repr__(self) -> str:
        title = f"Distillation: {len(self.losses):,} steps in {self.epochs} epochs"
        if not self.epochs:
            return title
        losses, epochs, best = self.epoch_losses, self.epochs, self.best_epoch
        lines = [
            title,
            f"  loss      {losses[0]:.4g} in epoch 1, {losses[-1]:.4g} in epoch {epochs} (means over steps)",
        ]
        if self._was_judged:
            lines.append(f"  held out  {self.held_out[0]:.4g} after epoch 1, {self.held_out[best - 1]:.4g} as kept")
        else:
            lines.append("  held out  no inputs")
        lines.append(f"  kept      epoch {best} of {epochs}{', the last' if best == epochs else ''}")
        lines.append(f"  warnings  {' '.join(self.warnings) or 'none'}")
        return "\n".join(lines)

    @property
    def _was_judged(self) -> bool:
        return not all(math.isnan(value) for value in self.held_out)

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the loss and the held-out objective by epoch, with the kept epoch marked; return the figure.

        A few first epochs are often far above all others, so the axis ends where 95 % of the values are below.

        Args:
            path: File for the picture, in any format of matplotlib's.
        """
        optional("matplotlib", "Distillation.plot", "plot")
        from matplotlib.figure import Figure

        drawing = Figure(figsize=(7.0, 4.0), dpi=150, facecolor="white", layout="constrained")
        axes = drawing.subplots()
        epochs, losses = range(1, self.epochs + 1), self.epoch_losses
        axes.plot(epochs, losses, color=_LOSS, label="loss, mean over the steps of an epoch")
        if self._was_judged:
            axes.plot(epochs, self.held_out, color=_HELD_OUT, label="objective on held-out inputs")
        if self.best_epoch:
            label = f"kept: epoch {self.best_epoch} of {self.epochs}"
            axes.axvline(self.best_epoch, color=_INK, linestyle="--", linewidth=0.8, label=label)
            shown = self.held_out if math.isfinite(self.held_out[self.best_epoch - 1]) else losses
            axes.plot(self.best_epoch, shown[self.best_epoch - 1], "o", color=_INK, markersize=5)
        _frame(axes, [value for value in (*losses, *self.held_out) if math.isfinite(value)])
        axes.set_xlabel("epoch")
        axes.set_ylabel("objective, mean over inputs")
        axes.legend(frameon=False, fontsize=8)
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            drawing.savefig(path)
        return drawing


def _frame(axes: Any, values: list[float]) -> None:
    if len(values) < 40:  # too few to tell which are far above the others
        return
    low, high = min(values), statistics.quantiles(values, n=20)[-1]
    if high > low:
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
