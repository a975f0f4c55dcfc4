"""Options that several commands share, and how their texts are read."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
Seeds = Annotated[str, typer.Option(help="Which seeds, such as 0,1,2.")]
Rows = Annotated[str, typer.Option(help="Only rows whose name contains one of these texts, such as robust,BDK.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]
Quick = Annotated[bool, typer.Option(help="A small version that takes minutes on two CPU cores.")]
ResultFolder = Annotated[Path, typer.Option(help="Folder for results; a run that was stopped goes on there.")]
Separator = Annotated[str | None, typer.Option("--sep", help="What stands between two values, such as ';' or tab.")]
Header = Annotated[bool, typer.Option(help="Whether the first line holds names; otherwise columns are 1, 2, ...")]


def as_numbers(option: str, text: str, least: int) -> list[int]:
    """Whole numbers with commas between them, none below a bound."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < least:
        raise ValueError(
            f"{option} takes whole numbers of at least {least} with commas between them, such as 1,2,3; got {text!r}."
        )
    return numbers


def as_seeds(text: str) -> list[int]:
    """Seeds from a text such as ``0,1,2``."""
    return as_numbers("--seeds", text, least=0)


def as_names(texts: Sequence[str]) -> list[str]:
    """Names from an option that is given several times, or once with commas between the names."""
    names = (part.strip() for text in texts for part in text.split(","))
    return list(dict.fromkeys(name for name in names if name))


def as_texts(text: str) -> list[str]:
    """Texts with commas between them; a comma within brackets belongs to its text."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]
