"""``opu bench``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from opu.cli.checkout import from_checkout
from opu.cli.options import Device, as_numbers, device_type

app = typer.Typer(
    no_args_is_help=True,
    help="Time prediction and distillation, as ratios within one run; needs a source checkout.",
)
Rounds = Annotated[int, typer.Option(min=1, help="Number of timings of each row; the median counts.")]
Out = Annotated[
    Path | None,
    typer.Option(help="File for the numbers; by default bench-predict.json or bench-distill.json in runs."),
]
Record = Annotated[bool, typer.Option("--record", help="Write them to results/ instead, which the documents show.")]


@app.command()
def predict(
    device: Device = "cpu",
    particles: Annotated[int, typer.Option(min=1, help="Number of particles per input.")] = 500,
    batch: Annotated[str, typer.Option(help="Batch sizes with commas between them.")] = "1,10000",
    rounds: Rounds = 11,
    compiled: Annotated[bool, typer.Option(help="Try torch.compile too, which takes a minute.")] = True,
    out: Out = None,
    record: Record = False,
) -> None:
    """Time teachers, other methods and students on the same inputs.

    Needs a source checkout. Prints a table and writes its numbers to a file.

    Example: opu bench predict --batch 1,10000
    """
    sizes, where = as_numbers("--batch", batch, least=1), device_type(device)
    from_checkout("benchmarks.predict").command(where, particles, sizes, rounds, compiled, out, record, Console())


@app.command()
def distill(
    device: Device = "cpu",
    rounds: Rounds = 2,
    particles: Annotated[int, typer.Option(min=2, help="Number of particles per input and step.")] = 64,
    full: Annotated[bool, typer.Option(help="Also distil a teacher of all MNIST, which takes minutes.")] = False,
    out: Out = None,
    record: Record = False,
) -> None:
    """Time a step by objective, particles, classes and batch, and a whole distillation.

    Needs a source checkout. Prints a table and writes its numbers to a file.

    Example: opu bench distill --particles 64
    """
    where = device_type(device)
    from_checkout("benchmarks.distill").command(where, rounds, particles, full, out, record, Console())
