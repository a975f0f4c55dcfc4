"""``opu export``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from opu.choices import FileFormat
from opu.cli.options import as_texts
from opu.terminal import say


def export(
    source: Annotated[Path, typer.Argument(help="Folder of `opu demo` or `opu fit`, or of a saved student.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file to write; by default student.onnx, student.pt2 or student-int8.onnx in that folder."
        ),
    ] = None,
    format: Annotated[FileFormat, typer.Option(help="onnx, or pt2 for torch.export.")] = "onnx",
    int8: Annotated[
        bool, typer.Option("--int8", help="Write the layers in eight bits, a quarter of the size.")
    ] = False,
    calibration: Annotated[
        Path | None, typer.Option(help="In-distribution inputs (.npy) for --int8; by default inputs that the run kept.")
    ] = None,
    opset: Annotated[int, typer.Option(help="Version of the ONNX operators.")] = 18,
    classes: Annotated[
        str,
        typer.Option(
            help="Names of the classes to keep in the file, with commas between them; by default those of `opu fit`."
        ),
    ] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a student as one file that predicts without Python.

    The file takes a batch of inputs and gives class probabilities and every
    measure of uncertainty. To write ONNX files, install the extra "onnx"; to use
    them, any ONNX runtime will do.

    Prints size, outputs, and how closely the file agrees with PyTorch. With
    --int8, also prints what quantisation changes.

    Example: opu export runs/demo --out digits.onnx
    """
    from opu.export.drift import show_drift
    from opu.export.run import export_run

    found = export_run(
        source,
        out=out,
        format=format,
        int8=int8,
        calibration=calibration,
        opset=opset,
        classes=as_texts(classes),
        overwrite=overwrite,
    )
    console = Console()
    written = f"{found.path}: {found.size / 1e6:.2f} MB, outputs {', '.join(found.outputs)}."
    say(console, written)
    what = "Before quantisation it" if int8 else "It"
    say(console, f"{what} agrees with PyTorch to {max(found.differences.values()):.1g}.")
    if found.drift is not None:
        show_drift(found.drift, console)
