"""``opu fit``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from opu.choices import ClassWeight, TableTeacher
from opu.cli.options import Header, Seed, Separator, as_names
from opu.terminal import say


def fit(
    data: Annotated[Path, typer.Argument(help="A CSV, TSV or Parquet file, one row for each case.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    out: Annotated[Path, typer.Option(help="Folder for the classifier, its metrics and a picture.")],
    teacher: Annotated[TableTeacher, typer.Option(help="polya-gamma, gp, forest, or ensemble.")] = "polya-gamma",
    folds: Annotated[int, typer.Option(min=2, help="Number of folds of the cross-validation.")] = 5,
    seed: Seed = 0,
    header: Header = True,
    sep: Separator = None,
    drop: Annotated[list[str], typer.Option(help="Columns to leave out, with commas between them.")] = [],  # noqa: B006
    id: Annotated[list[str], typer.Option(help="Columns that only name the rows; predictions repeat them.")] = [],  # noqa: B006
    class_weight: Annotated[ClassWeight, typer.Option(help="balanced: rare classes count as much.")] = "none",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a folder that opu fit wrote.")] = False,
) -> None:
    """Fit a classifier to a table, and check it by cross-validation.

    Takes a table with one row for each case. Columns of numbers and of texts
    are features; missing values are imputed, and the command says where.

    Writes the classifier into --out for `opu predict` and `opu export`, with
    metrics.json (accuracy beside the base rate, balanced accuracy, AUROC,
    calibration) and calibration.png.

    Example: opu fit people.csv --target ill --id case --out runs/ill
    """
    from opu.sklearn.run import fit_table, summary

    console = Console()
    found = fit_table(
        data,
        target,
        out,
        teacher=teacher,
        folds=folds,
        seed=seed,
        header=header,
        separator=sep,
        drop=as_names(drop),
        ids=as_names(id),
        class_weight=class_weight,
        overwrite=overwrite,
        console=console,
    )
    for line in (*summary(found), f"The classifier is in {out}; use it with: opu predict {out} ROWS.csv"):
        say(console, line)
