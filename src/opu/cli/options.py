"""Options that several commands share, and how their texts are read."""

import re
from pathlib import Path
from typing import Annotated

import typer

Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
Seeds = Annotated[str, typer.Option(help="Which seeds, such as 0,1,2.")]
Rows = Annotated[str, typer.Option(help="Only rows whose name contains one of these texts, such as robust,BDK.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]
Quick = Annotated[bool, typer.Option(help="A small version that takes minutes on two CPU cores.")]
ResultFolder = Annotated[Path, typer.Option(help="Folder for results; a run that was stopped goes on there.")]
Header = Annotated[bool, typer.Option(help="Whether the first line holds names; otherwise columns are 1, 2, ...")]


def as_seeds(text: str) -> list[int]:
    """Seeds from a text such as ``0,1,2``."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--seeds takes whole numbers with commas between them, such as 0,1,2; got {text!r}."
        ) from None
    if min(numbers) < 0:
        raise ValueError(f"seeds must be 0 or more; got {min(numbers)}.")
    return numbers


def as_sizes(text: str) -> list[int]:
    """Batch sizes from a text such as ``1,10000``."""
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise ValueError(f"--batch takes sizes of at least 1 with commas between them, such as 1,10000; got {text!r}.")
    return sizes


def as_texts(text: str) -> list[str]:
    """Texts with commas between them; a comma within brackets belongs to its text."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]
