"""``opu fidelity``."""

from pathlib import Path
from typing import Annotated

import typer

from opu.choices import Outputs


def fidelity(
    run: Annotated[Path, typer.Argument(help="A run folder, or the folder of a saved student.")],
    inputs: Annotated[Path | None, typer.Option(help="Inputs (.npy); by default those in the run folder.")] = None,
    particles: Annotated[
        Path | None,
        typer.Option(help="Particles of the inputs (.npy, .npz or .safetensors), of shape (samples, inputs, classes)."),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Classes of the inputs (.npy), with which the report has the calibration.")
    ] = None,
    outputs: Annotated[
        Outputs, typer.Option(help="Kind of the particles: probabilities, log_probabilities or logits.")
    ] = "probabilities",
) -> None:
    """Say how far a student is from its teacher, how much of it is noise, family or amortisation gap, and what to change."""
    from opu.fidelity.run import report_on_run

    report_on_run(run, inputs=inputs, particles=particles, labels=labels, outputs=outputs)
