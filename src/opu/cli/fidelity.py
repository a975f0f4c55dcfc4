"""``opu fidelity``."""

from pathlib import Path
from typing import Annotated

import typer

from opu.choices import Outputs
from opu.cli.options import as_texts


def fidelity(
    run: Annotated[Path, typer.Argument(help="Folder of `opu demo` or `opu fit`, or of a saved student.")],
    inputs: Annotated[
        Path | None, typer.Option(help="Inputs (.npy); by default the test inputs that the run kept.")
    ] = None,
    particles: Annotated[
        Path | None,
        typer.Option(
            help="The teacher's particles of these inputs (.npy, .npz or .safetensors), of shape (samples, inputs, "
            "classes); by default those that the run kept."
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Classes of the inputs (.npy, whole numbers from 0); with them comes the calibration."),
    ] = None,
    outputs: Annotated[
        Outputs, typer.Option(help="What the file of particles holds: probabilities, log_probabilities or logits.")
    ] = "probabilities",
    classes: Annotated[
        str,
        typer.Option(help="Names of the classes for the picture, with commas between them; by default the run's own."),
    ] = "",
) -> None:
    """Say how far a student is from its teacher, why, and what to change.

    Takes a run folder. For a student of your own, give inputs and the teacher's
    particles as files.

    Prints the distance and its parts (Monte-Carlo noise, family gap,
    amortisation gap), how many particles the interval of the predicted class
    holds by decile of entropy, how well each family of distributions fits the
    same particles, the inputs with the largest amortisation gap, and two
    sentences of advice: what to change, and which family to use. Writes
    fidelity.json and, if matplotlib and mpltern are installed, fidelity.png
    into the run folder.

    Example: opu fidelity runs/demo
    """
    from opu.distillation.replacing import put_back
    from opu.fidelity.run import report_on_run

    put_back(run)  # where a command was killed while it replaced this one
    report_on_run(run, inputs=inputs, particles=particles, labels=labels, outputs=outputs, classes=as_texts(classes))
