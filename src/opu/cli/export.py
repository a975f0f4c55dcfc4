"""``opu export``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from opu.choices import FileFormat
from opu.cli.options import as_texts


def export(
    source: Annotated[Path, typer.Argument(help="A folder of opu demo, opu fit, or of a saved student.")],
    out: Annotated[Path | None, typer.Option(help="The file; student.onnx in that folder by default.")] = None,
    format: Annotated[FileFormat, typer.Option(help="onnx, or pt2 of torch.export.")] = "onnx",
    int8: Annotated[bool, typer.Option("--int8", help="Layers in eight bits; a quarter of the size.")] = False,
    calibration: Annotated[
        Path | None, typer.Option(help="In-distribution inputs (.npy) for int8, if the run holds none of its own.")
    ] = None,
    opset: Annotated[int, typer.Option(help="Version of ONNX's operators.")] = 18,
    classes: Annotated[str, typer.Option(help="Names of the classes with commas between them, kept in the file.")] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
) -> None:
    """Write a student to one file that gives probabilities and every measure of uncertainty without Python."""
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
    console.print(f"{found.path}: {found.size / 1e6:.2f} MB, outputs {', '.join(found.outputs)}.", highlight=False)
    what = "Before quantisation it" if int8 else "It"
    console.print(f"{what} agrees with PyTorch to {max(found.differences.values()):.1g}.", highlight=False)
    if found.drift is not None:
        show_drift(found.drift, console)
