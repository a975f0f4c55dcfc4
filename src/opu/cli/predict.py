"""``opu predict``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from opu.cli.options import Header, Separator, as_floats, as_names, as_texts
from opu.terminal import say


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of `opu fit` or `opu demo`, or of a saved student.")],
    data: Annotated[
        Path,
        typer.Argument(
            help="A table with the same columns (.csv, .tsv, .parquet) for `opu fit`; a folder of images, an image, a .npy "
            "or a .npz file for a student."
        ),
    ],
    out: Annotated[Path, typer.Option(help="File for the predictions, .csv or .parquet; .tsv for a table too.")] = Path(
        "predictions.csv"
    ),
    level: Annotated[float, typer.Option(help="Level of the credible intervals.")] = 0.9,
    header: Header = True,
    sep: Separator = None,
    keep: Annotated[list[str], typer.Option(help="Table: more columns to repeat beside the predictions.")] = [],  # noqa: B006
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    classes: Annotated[
        str,
        typer.Option(help="Student: names of the classes, with commas between them; by default the run's own."),
    ] = "",
    scale: Annotated[
        str, typer.Option(metavar="LOW,HIGH", help="Images: what black and white become; by default 0,1.")
    ] = "",
    mean: Annotated[
        str, typer.Option(help="Images: subtracted after scaling; one number, or one for each channel.")
    ] = "",
    std: Annotated[str, typer.Option(help="Images: divides after that; one number, or one for each channel.")] = "",
    batch_size: Annotated[int, typer.Option(min=1, help="Student: inputs per batch.")] = 256,
) -> None:
    """Predict a table, images or arrays, and write the predictions to a file.

    Takes a table with the columns that `opu fit` was given. For the student of
    `opu demo`, of opu.distill or of student.save(), takes a folder of images,
    an image, a .npy array, or a .npz file with named arrays. Images are brought
    to the student's size, and their pixels to 0 .. 1 or to --scale.

    Writes one row per input: class, probabilities, credible intervals, every
    measure of uncertainty, novelty and its p-value. Inputs that cannot be read
    have a note instead.

    Example: opu predict runs/table rows.csv --out predictions.csv

    Example: opu predict runs/demo photos --scale=-1,1 --out predictions.parquet

    Example: opu predict runs/demo inputs.npy
    """
    console = Console()
    if not run.is_dir() or not any(run.iterdir()):
        from opu.distillation.replacing import put_back

        if (interrupted := put_back(run)) is not None:
            say(console, interrupted)
    if (run / "classifier.json").exists():
        from opu.sklearn.run import predict_table

        if classes or scale or mean or std:
            raise ValueError(
                "--classes, --scale, --mean and --std are for students; a table has its own. Leave them out."
            )
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
    else:
        from opu.predict_files import Pixels, predict_files

        if keep or sep or not header:
            raise ValueError(
                "--sep, --keep and --no-header are for tables; images and arrays have none. Leave them out."
            )
        pixels = None
        if scale or mean or std:
            low, high = as_floats("--scale", scale or "0,1", 2)
            pixels = Pixels(low, high, as_floats("--mean", mean or "0"), as_floats("--std", std or "1"))
        count = predict_files(
            run,
            data,
            out,
            level=level,
            classes=as_texts(classes),
            batch_size=batch_size,
            pixels=pixels,
            overwrite=overwrite,
            console=console,
        )
    say(console, f"{count} rows predicted in {out}.")
