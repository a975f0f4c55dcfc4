"""``opu demo``."""

from pathlib import Path
from typing import Annotated

import typer

from opu.cli.options import Seed


def demo(
    out: Annotated[Path, typer.Option(help="Folder for metrics, student and pictures.")] = Path("runs/demo"),
    seed: Seed = 0,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier demo in that folder.")] = False,
) -> None:
    """Distil an MC-dropout network on scikit-learn's digits and compare student and teacher; needs no download."""
    from opu.demo import run_demo

    run_demo(out, seed=seed, overwrite=overwrite)
