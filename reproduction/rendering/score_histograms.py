"""Draw how scores of two students are distributed on the hard OOD sets, from a file of ``opu reproduce``.

python -m reproduction.rendering.score_histograms [--source results/mnist-robust-full-seed0.json] [--out runs/scores.png]
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opu.measures import SYMBOLS, named
from reproduction.paper.summary import NAMES
from reproduction.results import read_file

(C, N) = named("C", "N")
SHOWN = [("MMD, gradient descent", "OPU-MCDP-MMD (paper-sgd)", C), ("our recipe", "OPU-MCDP (robust)", N)]
HARD = ("omniglot_matched", "letters", "semeion_matched")


def draw_histograms(
    rows: Mapping[str, dict[str, Any]], shown: Sequence[tuple[str, str, str]], sets: Sequence[str], path: Path
) -> None:
    """Draw one line of panels for each row and measure, one column for each OOD set.

    Args:
        rows: The rows of a result file, by name.
        shown: Title, row and measure of each line.
        sets: Names of the OOD sets.
        path: File of the picture.
    """
    from opu.plotting import STUDENT, TEACHER, describe, figure, finish, legend

    drawing = figure(3.4 * len(sets), 2.5 * len(shown) + 0.4)
    panels = drawing.subplots(len(shown), len(sets), squeeze=False)
    for line, (title, name, measure) in zip(panels, shown, strict=True):
        found = rows[name]["histograms"][measure]
        edges = np.asarray(found["edges"])
        for axes, ood in zip(line, sets, strict=True):
            for part, colour, label in (("test", TEACHER, "test digits"), (ood, STUDENT, NAMES[ood])):
                counts = np.asarray(found["counts"][part], dtype=float)
                axes.stairs(counts / counts.sum(), edges, color=colour, fill=True, alpha=0.55, label=label)
            auroc = rows[name]["ood"][ood][measure]["auroc"]
            words = f"{measure.replace('_', ' ').replace('log p', 'log-p')} ({SYMBOLS[measure]})"
            describe(axes, f"{NAMES[ood]}: AUROC {auroc:.1f}", words, "fraction of inputs")
            axes.set_yticks([])
            axes.spines[["top", "right", "left"]].set_visible(False)
            legend(axes, loc="upper right")
        line[0].set_ylabel(f"{title}\nfraction of inputs")
    drawing.tight_layout()
    finish(drawing, path)


def main() -> None:
    """Draw the picture of the documents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=Path("results/mnist-robust-full-seed0.json"))
    parser.add_argument("--out", type=Path, default=Path("runs/scores.png"))
    options = parser.parse_args()
    draw_histograms(read_file(options.source)["rows"], SHOWN, HARD, options.out)
    print(f"Written to {options.out}.")


if __name__ == "__main__":
    main()
