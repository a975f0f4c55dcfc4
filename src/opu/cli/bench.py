"""``opu bench``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from opu.cli.checkout import from_checkout
from opu.cli.options import Device, as_sizes
from opu.devices import choose_device

app = typer.Typer(no_args_is_help=True, help="What prediction and distillation cost, as ratios measured in one run.")
Rounds = Annotated[int, typer.Option(min=1, help="Number of timings of each row; the median counts.")]


@app.command()
def predict(
    device: Device = "cpu",
    particles: Annotated[int, typer.Option(min=1, help="Number of particles per input.")] = 500,
    batch: Annotated[str, typer.Option(help="Batch sizes with commas between them.")] = "1,10000",
    rounds: Rounds = 11,
    compiled: Annotated[bool, typer.Option(help="Try torch.compile too, which takes a minute.")] = True,
    out: Annotated[Path, typer.Option(help="File for the numbers.")] = Path("runs/bench-predict.json"),
) -> None:
    """Time teachers, other methods and students on the same inputs."""
    from_checkout("benchmarks.predict").command(
        out, choose_device(device).type, particles, as_sizes(batch), rounds, compiled, Console()
    )


@app.command()
def distill(
    device: Device = "cpu",
    rounds: Rounds = 2,
    particles: Annotated[int, typer.Option(min=2, help="Number of particles per input and step.")] = 64,
    full: Annotated[bool, typer.Option(help="Also distil a teacher of all MNIST, which takes minutes.")] = False,
    out: Annotated[Path, typer.Option(help="File for the numbers.")] = Path("runs/bench-distill.json"),
) -> None:
    """Time a step by objective, particles, classes and batch, and a whole distillation."""
    from_checkout("benchmarks.distill").command(out, choose_device(device).type, rounds, particles, full, Console())
