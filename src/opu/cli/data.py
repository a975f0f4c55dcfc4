"""``opu data``."""

from typing import Annotated

import typer
from rich.console import Console

from opu.cli.checkout import from_checkout

app = typer.Typer(
    no_args_is_help=True, help="List, fetch and verify the datasets of the experiments; needs a source checkout."
)


@app.command("list")
def list_datasets() -> None:
    """Show the datasets, their sizes and licences, and which of their files are here.

    Example: opu data list
    """
    from_checkout("reproduction.data.command").show_datasets(Console())


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="Datasets, as `opu data list` names them.", metavar="NAME")],
    force: Annotated[bool, typer.Option("--force", help="Download damaged files again, and replace them.")] = False,
) -> None:
    """Download the missing files of datasets into $OPU_DATA, or into the per-user cache.

    Each file is checked against its published size and checksum, and its path
    is printed.

    Example: opu data fetch mnist
    """
    from_checkout("reproduction.data.command").fetch_datasets(names, force)


@app.command()
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(help="Datasets; by default all of which some files are here.")
    ] = None,
) -> None:
    """Compare files with the published sizes and checksums, and print a line for each.

    Nothing is written. Exit code 2 if a file is damaged.

    Example: opu data verify mnist
    """
    from_checkout("reproduction.data.command").verify_datasets(names or [])
