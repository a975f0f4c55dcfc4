"""``opu bench``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(no_args_is_help=True, help="What prediction and distillation cost, as ratios measured in one run.")
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]
Rounds = Annotated[int, typer.Option(min=1, help="How often each way is timed; the median counts.")]


@app.command()
def predict(
    device: Device = "cpu",
    particles: Annotated[int, typer.Option(min=1, help="Of the teacher.")] = 500,
    batch: Annotated[str, typer.Option(help="Sizes with commas between them.")] = "1,10000",
    rounds: Rounds = 11,
    compiled: Annotated[bool, typer.Option(help="Try torch.compile too, which takes a minute.")] = True,
    out: Annotated[Path, typer.Option(help="File for the numbers.")] = Path("bench-predict.json"),
) -> None:
    """Teachers from the slowest way to the fastest, rivals, and students, on the same inputs."""
    from benchmarks.predict import bench_predict
    from benchmarks.show import show_predict
    from reproduction.paper.reproduce import chosen_device

    console = Console()
    found = bench_predict(
        out,
        device=chosen_device(device).type,
        num_particles=particles,
        batches=_sizes(batch),
        rounds=rounds,
        compiled=compiled,
        say=lambda text: console.print(text, style="dim", highlight=False),
    )
    show_predict(found, console)
    console.print(f"Written to {out}.", highlight=False)


@app.command()
def distill(
    device: Device = "cpu",
    rounds: Rounds = 2,
    particles: Annotated[int, typer.Option(min=2, help="For each input and step.")] = 64,
    full: Annotated[bool, typer.Option(help="Also distil a teacher of all MNIST, which takes minutes.")] = False,
    out: Annotated[Path, typer.Option(help="File for the numbers.")] = Path("bench-distill.json"),
) -> None:
    """What a step costs by objective, particles, classes and batch, and how long a whole student takes."""
    from benchmarks.distill import bench_distill
    from benchmarks.show import show_distill
    from reproduction.paper.reproduce import chosen_device

    console = Console()
    found = bench_distill(
        out,
        device=chosen_device(device).type,
        rounds=rounds,
        particles=particles,
        full=full,
        say=lambda text: console.print(text, style="dim", highlight=False),
    )
    show_distill(found, console)
    console.print(f"Written to {out}.", highlight=False)


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise ValueError(f"--batch takes sizes of at least 1 with commas between them, such as 1,10000; got {text!r}.")
    return sizes
