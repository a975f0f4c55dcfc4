"""The one module that draws tables: in the terminal, and as Markdown."""

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from opu.terminal import printable


def print_table(
    console: Console, header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None
) -> None:
    """Print a table; the first column is aligned to the left, all others to the right.

    No cell is cut: if the terminal is too narrow, it wraps the lines. Cells are text, as in :func:`opu.terminal.say`.

    Args:
        console: Where to print.
        header: Names of the columns.
        rows: The cells of each row.
        title: A line above the table.
    """
    header, rows = _printable(console, header), [_printable(console, row) for row in rows]
    heading = None if title is None else Text(printable(title, console.encoding))
    table = Table(title=heading, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for place, name in enumerate(header):
        table.add_column(Text(name), no_wrap=True, justify="right" if place else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    needed = sum(max(map(len, column)) + 2 for column in zip(header, *rows, strict=True))
    if needed <= console.width:
        console.print(table, highlight=False)
    else:
        Console(file=console.file, width=needed, soft_wrap=True).print(table, highlight=False)


def _printable(console: Console, cells: Sequence[str]) -> list[str]:
    return [printable(cell, console.encoding) for cell in cells]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
