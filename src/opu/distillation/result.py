"""What a run returns: its curves, the epoch it kept, and its warnings; it prints in five lines and plots itself."""

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opu.checks import optional
from opu.files import save_figure

_LOSS, _HELD_OUT, _INK = "#3b6ea5", "#d9722e", "#222222"


@dataclass(repr=False)
class Distillation:
    """The result of a run.

    Attributes:
        losses: The loss of each step.
        held_out: The mean of the objective over held-out inputs after each epoch; NaN if there are none.
        best_epoch: The epoch whose weights were kept, counted from 1.
        warnings: What went wrong and what to do, one sentence each.
        held_out_medians: The median over the same inputs. One augmented input may make the mean rise while all others gain.
        steps_per_epoch: Number of steps between two looks at the held-out inputs; the last epoch may be shorter.
        mutual_information: Mean mutual information of the student and of the teacher on held-out inputs, half of which are
            augmented; far apart, they say that the student's epistemic uncertainty is not the teacher's.
        calibrated: Whether novelty was calibrated, which takes ten held-out inputs.
    """

    losses: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    best_epoch: int = 0
    warnings: list[str] = field(default_factory=list)
    held_out_medians: list[float] = field(default_factory=list)
    steps_per_epoch: int = 0
    mutual_information: tuple[float, float] | None = None
    calibrated: bool = True

    @property
    def epochs(self) -> int:
        """Number of epochs."""
        return len(self.held_out)

    @property
    def epoch_losses(self) -> list[float]:
        """The mean loss of each epoch."""
        length = self.steps_per_epoch or max(1, len(self.losses) // max(1, self.epochs))
        return [statistics.fmean(self.losses[i * length : (i + 1) * length]) for i in range(self.epochs)]

    def __repr__(self) -> str:
        title = f"Distillation: {len(self.losses):,} steps in {self.epochs} epochs"
        if not self.epochs:
            return title
        losses, epochs, best = self.epoch_losses, self.epochs, self.best_epoch
        lines = [
            title,
            f"  loss      {losses[0]:.4g} -> {losses[-1]:.4g} (means of epoch 1 -> epoch {epochs})",
        ]
        if self._was_judged:
            curves = {"mean": self.held_out, "median": self.held_out_medians}
            parts = [f"{name} {each[0]:.4g} -> {each[best - 1]:.4g}" for name, each in curves.items() if each]
            lines.append(f"  held out  {', '.join(parts)} (epoch 1 -> kept)")
        else:
            lines.append("  held out  no inputs")
        lines.append(f"  kept      epoch {best} of {epochs}{', the last' if best == epochs else ''}{self._compared()}")
        lines.append(f"  warnings  {' '.join(self.warnings) or 'none'}")
        return "\n".join(lines)

    def _compared(self) -> str:
        """What the kept student is like beside its teacher."""
        parts = []
        if self.mutual_information is not None:
            ours, theirs = self.mutual_information
            parts.append(f"mutual information {ours:.2g}, teacher {theirs:.2g}")
        if not self.calibrated:
            parts.append("novelty not calibrated (it takes 10 held-out inputs)")
        return "".join(f"; {part}" for part in parts)

    @property
    def _was_judged(self) -> bool:
        return not all(math.isnan(value) for value in self.held_out)

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the loss and the held-out objective by epoch, with the kept epoch marked; return the figure.

        Values far above all others, as in a first epoch, are cut off.

        Args:
            path: File for the picture, in any format of matplotlib's.
        """
        optional("matplotlib", "Distillation.plot", "plot")
        from matplotlib.figure import Figure

        drawing = Figure(figsize=(7.0, 4.0), dpi=150, facecolor="white", layout="constrained")
        axes = drawing.subplots()
        curves = {"loss, mean of an epoch": (self.epoch_losses, _LOSS, "-")}
        if self._was_judged:
            curves["held-out inputs, mean"] = (self.held_out, _HELD_OUT, "-")
            curves["held-out inputs, median"] = (self.held_out_medians, _HELD_OUT, ":")
        for name, (values, colour, style) in curves.items():
            if values:
                axes.plot(range(1, self.epochs + 1), values, style, color=colour, label=name)
        if self.best_epoch:
            label = f"kept: epoch {self.best_epoch} of {self.epochs}"
            axes.axvline(self.best_epoch, color=_INK, linestyle="--", linewidth=0.8, label=label)
        _cut(axes, [value for values, _, _ in curves.values() for value in values if math.isfinite(value)])
        axes.set_xlabel("epoch")
        axes.set_ylabel("objective")
        drawing.legend(frameon=False, fontsize=8, loc="outside upper center", ncols=2)
        if path is not None:
            save_figure(drawing, Path(path))
        return drawing


def _cut(axes: Any, values: list[float]) -> None:
    """End the axis at twice the range that holds 95 % of the values, if some are beyond."""
    if len(values) < 2:
        return
    low, most = min(values), statistics.quantiles(values, n=20)[-1]
    if max(values) > 2 * most - low > low:
        axes.set_ylim(low - 0.1 * (most - low), 2 * most - low)
