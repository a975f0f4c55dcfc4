"""``opu compare``."""

from pathlib import Path

from opu.cli.checkout import from_checkout
from opu.cli.options import Device, Quick, ResultFolder, Rows, Seeds, as_seeds, as_texts


def compare(
    out: ResultFolder = Path("runs/compare"),
    seeds: Seeds = "0",
    rows: Rows = "",
    device: Device = "auto",
    quick: Quick = False,
) -> None:
    """Compare our students with other methods on MNIST: deep ensembles, Laplace, DDU, SNGP and more."""
    from_checkout("reproduction.commands").compare(out, as_seeds(seeds), as_texts(rows), device, quick)
