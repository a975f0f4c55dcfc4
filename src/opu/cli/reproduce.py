"""``opu reproduce``."""

from pathlib import Path
from typing import Annotated

import typer

from opu.cli.checkout import from_checkout
from opu.cli.options import Device, Quick, ResultFolder, Rows, Seeds, as_seeds, as_texts


def reproduce(
    table: Annotated[str, typer.Argument(help="mnist, emnist, either with -held-out or -robust, blr, gp, or figure.")],
    out: ResultFolder = Path("runs/reproduce"),
    seeds: Seeds = "0",
    rows: Rows = "",
    device: Device = "auto",
    quick: Quick = False,
) -> None:
    """Run a table of the paper, every row, and print it beside the paper's numbers; or draw its figure."""
    from_checkout("reproduction.commands").reproduce(table, out, as_seeds(seeds), as_texts(rows), device, quick)
