"""``opu demo``."""

from pathlib import Path
from typing import Annotated

import typer

from opu.cli.options import Seed


def demo(
    out: Annotated[Path, typer.Option(help="Folder for all that is written; it must be empty or new.")] = Path(
        "runs/demo"
    ),
    seed: Seed = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier demo in that folder.")] = False,
) -> None:
    """Watch a whole distillation on scikit-learn's digits: two minutes, no download.

    Trains a network with MC dropout (the teacher), distils it into a student,
    and prints how well each detects errors and out-of-distribution inputs, and
    how much faster one pass is. Takes no data of yours.

    Writes metrics.json, the student in student/, and, if matplotlib and mpltern
    are installed, the pictures simplex.png, scores.png and roc.png.
    `opu fidelity` and `opu export` take that folder.

    Example: opu demo --out runs/demo
    """
    from opu.demo import run_demo

    run_demo(out, seed=seed, overwrite=overwrite)
