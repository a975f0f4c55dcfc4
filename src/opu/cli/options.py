"""Options that several commands share, and how their texts are read."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
Seeds = Annotated[str, typer.Option(help="Seeds to run, such as 0,1,2.")]
Rows = Annotated[
    str, typer.Option(help="Only rows whose name contains one of these texts, such as robust,BDK; else all.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto (cuda if there is one).")]
Quick = Annotated[bool, typer.Option("--quick", help="Run a small version, which takes minutes on two CPU cores.")]
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


def device_type(name: str) -> str:
    """``cpu`` or ``cuda``, from what the user chose."""
    from opu.devices import choose_device  # imports torch, which help and mistakes do without

    return choose_device(name).type


def as_names(texts: Sequence[str]) -> list[str]:
    """Names from an option that is given several times, or once with commas between the names."""
    names = (part.strip() for text in texts for part in text.split(","))
    return list(dict.fromkeys(name for name in names if name))


def as_texts(text: str) -> list[str]:
    """Texts with commas between them; a comma within brackets belongs to its text."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def as_floats(option: str, text: str, count: int | None = None) -> tuple[float, ...]:
    """Numbers with commas between them; so many of them, if a count is given."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or count not in (None, len(numbers)):
        wanted = "numbers" if count is None else f"{count} numbers"
        raise ValueError(f"{option} takes {wanted} with commas between them, such as 0,1; got {text!r}.")
    return numbers
