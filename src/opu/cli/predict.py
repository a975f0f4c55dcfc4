"""``opu predict``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from opu.cli.options import Header, Separator, as_names


def predict(
    run: Annotated[Path, typer.Argument(help="A folder that `opu fit` wrote.")],
    data: Annotated[Path, typer.Argument(help="A CSV, TSV or Parquet file with the same columns.")],
    out: Annotated[Path, typer.Option(help="CSV, TSV or Parquet file for the predictions.")] = Path("predictions.csv"),
    level: Annotated[float, typer.Option(help="Level of the credible intervals.")] = 0.9,
    header: Header = True,
    sep: Separator = None,
    keep: Annotated[list[str], typer.Option(help="More columns to repeat beside the predictions.")] = [],  # noqa: B006
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
) -> None:
    """Write class probabilities, credible intervals and novelty for each row of a table."""
    from opu.sklearn.run import predict_table

    console = Console()
    count = predict_table(
        run,
        data,
        out,
        level=level,
        header=header,
        separator=sep,
        keep=as_names(keep),
        overwrite=overwrite,
        console=console,
    )
    console.print(f"{count} rows predicted in {out}.", highlight=False, markup=False)
