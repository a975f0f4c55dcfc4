"""``opu fit``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from opu.choices import TableTeacher
from opu.cli.options import Header, Seed


def fit(
    data: Annotated[Path, typer.Argument(help="A CSV, TSV or Parquet file, one row for each case.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    out: Annotated[Path, typer.Option(help="Folder for the classifier, its metrics and a picture.")],
    teacher: Annotated[TableTeacher, typer.Option(help="polya-gamma, gp, forest, or ensemble.")] = "polya-gamma",
    folds: Annotated[int, typer.Option(min=2, help="Number of folds of the cross-validation.")] = 5,
    seed: Seed = 0,
    header: Header = True,
) -> None:
    """Fit a classifier to a table, check it by cross-validation, and keep it for `opu predict`."""
    from opu.sklearn.run import fit_table, summary

    console = Console()
    found = fit_table(data, target, out, teacher=teacher, folds=folds, seed=seed, header=header, console=console)
    for line in summary(found):
        console.print(line, highlight=False)
    console.print(f"The classifier is in {out}; use it with: opu predict {out} ROWS.csv", highlight=False)
