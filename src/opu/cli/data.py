"""``opu data``: which datasets there are, fetch them, and verify what lies here."""

from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from opu.data.catalogue import DATASETS, DataFile, Dataset, dataset
from opu.data.fetch import fetch_all
from opu.data.places import find, locate, places, problem, verify

app = typer.Typer(no_args_is_help=True, help="Public datasets: list, fetch and verify them.")


@app.command("list")
def list_datasets() -> None:
    """Show the datasets, and which of their files are here."""
    table = Table("name", "what", "here", "size", "licence", box=SIMPLE_HEAD)
    table.columns[0].no_wrap = table.columns[3].no_wrap = True
    for each in DATASETS.values():
        table.add_row(each.name, each.description, _files_here(each), _size(each), each.licence)
    console = Console()
    console.print(table)
    console.print(f"Files are looked for in {' and '.join(map(str, places()))}.", soft_wrap=True, highlight=False)


@app.command("fetch")
def fetch_datasets(
    names: Annotated[list[str], typer.Argument(help="Datasets, as `opu data list` names them.", metavar="NAME...")],
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there and wrong.")] = False,
) -> None:
    """Bring what is missing of datasets into $OPU_DATA, or into the per-user cache."""
    for path in fetch_all(names, force=force):
        print(path)


@app.command("verify")
def verify_datasets(
    names: Annotated[list[str] | None, typer.Argument(help="Datasets; all that are here unless given.")] = None,
) -> None:
    """Hash files and compare them with what was published; a line for each."""
    chosen = [dataset(name) for name in names] if names else list(DATASETS.values())
    wrong = []
    for file in dict.fromkeys(file for each in chosen for file in each.files):
        path = locate(file)
        state = "not here" if path is None else "damaged" if problem(file, path) else "right"
        print(f"{state:9}{path or file.path}")
        if state == "damaged" or (state == "not here" and names):
            wrong.append(_complaint(file))
    if wrong:
        others = len(wrong) - 1  # the lines above name them; one sentence says what to do
        raise ValueError(wrong[0] + (f" The same goes for {others} more of the files above." if others else ""))


def _complaint(file: DataFile) -> str:
    try:
        verify(file)
    except ValueError as error:
        return str(error)
    return ""  # it was put right a moment ago


def _files_here(each: Dataset) -> str:
    here = sum(locate(file) is not None for file in each.files)
    if here == len(each.files):
        return "yes"
    return f"{here} of {len(each.files)}" if here else "no"


def _size(each: Dataset) -> str:
    sizes = [find(file).stat().st_size if locate(file) else file.size for file in each.files]
    known = [size for size in sizes if size is not None]
    return f"{sum(known) / 1e6:.2f} MB" if len(known) == len(sizes) else "not known"
