"""How scores of ordinary inputs and of strangers lie, counted when a row is judged, and drawn from its result file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opu.prediction import Prediction
from reproduction.paper.table import LETTERS, NAMES

NUM_BINS = 40
MEASURES = ("negative_log_precision", "novelty")


def count_scores(inside: Prediction, outside: Mapping[str, Prediction]) -> dict[str, Any]:
    """For each measure the edges of its bins, and how many inputs of each set fall into them; the test set is ``test``.

    The bins span all but the outermost hundredth of the scores; what lies beyond is counted in the bins at the ends.
    """
    sets = {"test": inside, **outside}
    result = {}
    for measure in MEASURES:
        scores = {name: answers.scores[measure] for name, answers in sets.items()}
        low, high = np.quantile(np.concatenate(list(scores.values())), (0.005, 0.995))
        edges = np.linspace(low, max(high, low + 1e-9), NUM_BINS + 1)
        counts = {name: np.histogram(s.clip(edges[0], edges[-1]), edges)[0].tolist() for name, s in scores.items()}
        result[measure] = {"edges": [round(float(edge), 4) for edge in edges], "counts": counts}
    return result


def draw_histograms(
    rows: Mapping[str, dict[str, Any]], shown: Sequence[tuple[str, str, str]], sets: Sequence[str], path: Path
) -> None:
    """One line of panels for each row and measure, one column for each set of strangers.

    Args:
        rows: Of a result file, by name.
        shown: Title, row and measure of each line.
        sets: Which strangers.
        path: Of the picture.
    """
    from opu.plotting import INK, STUDENT, TEACHER, figure, finish

    drawing = figure(3.4 * len(sets), 2.2 * len(shown) + 0.4)
    panels = drawing.subplots(len(shown), len(sets), squeeze=False)
    for line, (title, name, measure) in zip(panels, shown, strict=True):
        found = rows[name]["histograms"][measure]
        edges = np.asarray(found["edges"])
        for axes, stranger in zip(line, sets, strict=True):
            for part, colour, label in (("test", TEACHER, "test digits"), (stranger, STUDENT, NAMES[stranger])):
                counts = np.asarray(found["counts"][part], dtype=float)
                axes.stairs(counts / counts.sum(), edges, color=colour, fill=True, alpha=0.55, label=label)
            auroc = rows[name]["ood"][stranger][measure]["auroc"]
            axes.set_title(f"{NAMES[stranger]}: AUROC {auroc:.1f}", fontsize=9, color=INK)
            axes.set_yticks([])
            axes.tick_params(labelsize=7)
            axes.spines[["top", "right", "left"]].set_visible(False)
        line[0].set_ylabel(f"{title}\n({LETTERS[measure]})", fontsize=9, color=INK)
    panels[0][0].legend(fontsize=7, frameon=False)
    drawing.tight_layout()
    finish(drawing, path)
