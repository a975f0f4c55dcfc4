"""``opu bench``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from opu.cli.checkout import from_checkout
from opu.cli.options import Device, as_numbers
from opu.devices import choose_device

app = typer.Typer(no_args_is_help=True, help="What prediction and distillation cost, as ratios measured in one run.")
Rounds = Annotated[int, typer.Option(min=1, help="Number of timings of each row; the median counts.")]
Out = Annotated[Path | None, typer.Option(help="File for the numbers; by default one under runs.")]
Record = Annotated[bool, typer.Option("--record", help="Write the numbers to results/, which the documents show.")]


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
    """Time teachers, other methods and students on the same inputs."""
    where, sizes = choose_device(device).type, as_numbers("--batch", batch, least=1)
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
    """Time a step by objective, particles, classes and batch, and a whole distillation."""
    where = choose_device(device).type
    from_checkout("benchmarks.distill").command(where, rounds, particles, full, out, record, Console())
