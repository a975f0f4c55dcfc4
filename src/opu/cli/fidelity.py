"""``opu fidelity``."""

from pathlib import Path
from typing import Annotated

import typer


def fidelity(
    run: Annotated[Path, typer.Argument(help="A run folder, or the folder of a saved student.")],
    inputs: Annotated[Path | None, typer.Option(help="Inputs (.npy), if the run holds none of its own.")] = None,
    particles: Annotated[
        Path | None, typer.Option(help="Their particles, (samples, inputs, classes): .npy, .npz or .safetensors.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="Their classes (.npy), if calibration is wanted.")] = None,
    outputs: Annotated[
        str, typer.Option(help="What the particles are: probabilities, log_probabilities or logits.")
    ] = "probabilities",
) -> None:
    """Say how far a student is from its teacher, whether sampling, family or network is to blame, and what to change."""
    from opu.fidelity.run import report_on_run

    report_on_run(run, inputs=inputs, particles=particles, labels=labels, outputs=outputs)  # type: ignore[arg-type]
