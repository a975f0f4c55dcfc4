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
    """Compare students with deep ensembles, Laplace, DDU, SNGP and others on MNIST.

    Needs a source checkout and the datasets that `opu data fetch` brings.
    Prints the comparison and writes its results into the folder of --out.

    Example: opu compare --quick --seeds 0,1
    """
    from_checkout("reproduction.commands").compare(out, as_seeds(seeds), as_texts(rows), device, quick)
