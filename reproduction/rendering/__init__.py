"""Tables in Markdown from result files, written between markers in the documents; no number is typed by hand.

A document holds ``<!-- table: NAME -->`` and ``<!-- end -->``; what stands between them is rendered from ``results/``.
"""

import re
from collections.abc import Callable
from pathlib import Path

from reproduction.cells import notation
from reproduction.rendering import bench, experiments, families, recipes, studies

_ROOMS = (experiments, recipes, studies, families, bench)
TABLES: dict[str, Callable[[Path], str]] = {name: table for room in _ROOMS for name, table in room.TABLES.items()}
_MARKER = re.compile(r"^<!-- (?:table: (?P<table>.*?)|end) -->[ \t]*\r?$", re.MULTILINE)


def has_markers(text: str) -> bool:
    """Whether a document asks for tables."""
    return _MARKER.search(text) is not None


def render(text: str, results: Path, document: str = "a document") -> str:
    """A document with all its tables rendered from result files, and with its own kind of line ends.

    Args:
        text: The document. Each marker has a line of its own, and every table has an end.
        results: Folder of result files.
        document: Its name, for messages.
    """
    end_of_line = "\r\n" if "\r\n" in text else "\n"
    parts, kept = [], 0
    for begin, end in _pairs(text, document):
        name = begin["table"]
        if name not in TABLES:
            raise ValueError(f"{document} asks for the table {name!r}; those that exist are {', '.join(TABLES)}.")
        table = f"\n{_with_notation(TABLES[name](results))}\n".replace("\n", end_of_line)
        parts += [text[kept : begin.end()].removesuffix("\r"), table]
        kept = end.start()
    return "".join([*parts, text[kept:]])


def _pairs(text: str, document: str) -> list[tuple[re.Match[str], re.Match[str]]]:
    """Where each table begins and ends."""
    found: list[tuple[re.Match[str], re.Match[str]]] = []
    begin = None
    for marker in _MARKER.finditer(text):
        if marker["table"] is not None:
            if begin is not None:
                break
            begin = marker
        elif begin is None:
            line = text.count("\n", 0, marker.start()) + 1
            raise ValueError(f"the <!-- end --> in line {line} closes no table in {document}; remove it.")
        else:
            found, begin = [*found, (begin, marker)], None
    if begin is not None:
        raise ValueError(
            f"the table {begin['table']!r} in {document} has no <!-- end --> of its own; add it on a line below the table."
        )
    return found


def _with_notation(table: str) -> str:
    """The table, with the symbols of its measures spelt out in its caption."""
    key = notation(table)
    if not key:
        return table
    has_caption = not table.splitlines()[-1].startswith("|")
    return table + (" " if has_caption else "\n\n") + key
