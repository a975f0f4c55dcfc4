"""``opu data``."""

from typing import Annotated

import typer
from rich.console import Console

from opu.cli.checkout import from_checkout

app = typer.Typer(no_args_is_help=True, help="The datasets of the experiments: list, fetch and verify them.")


@app.command("list")
def list_datasets() -> None:
    """Show the datasets, and which of their files are here."""
    from_checkout("reproduction.data.command").show_datasets(Console())


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="Datasets, as `opu data list` names them.", metavar="NAME...")],
    force: Annotated[bool, typer.Option("--force", help="Replace damaged files.")] = False,
) -> None:
    """Download the missing files of datasets into $OPU_DATA, or into the per-user cache."""
    from_checkout("reproduction.data.command").fetch_datasets(names, force)


@app.command()
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(help="Datasets; by default all of which some files are here.")
    ] = None,
) -> None:
    """Compare files with the published sizes and checksums; print a line for each."""
    from_checkout("reproduction.data.command").verify_datasets(names or [])
