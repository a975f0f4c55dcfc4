"""``opu reproduce``."""

from pathlib import Path
from typing import Annotated

import typer

from opu.cli.checkout import from_checkout
from opu.cli.options import Device, Quick, ResultFolder, Rows, Seeds, as_seeds, as_texts


def reproduce(
    table: Annotated[str, typer.Argument(help="mnist or emnist (also with -held-out or -robust), blr, gp, or figure.")],
    out: ResultFolder = Path("runs/reproduce"),
    seeds: Seeds = "0",
    rows: Rows = "",
    device: Device = "auto",
    quick: Quick = False,
) -> None:
    """Run a table of the paper and print it beside the paper's numbers, or draw its figure.

    Needs a source checkout and the datasets that `opu data fetch` brings.
    Writes the results of each row and seed into the folder of --out.

    Example: opu reproduce mnist --quick --rows MMD
    """
    from_checkout("reproduction.commands").reproduce(table, out, as_seeds(seeds), as_texts(rows), device, quick)
