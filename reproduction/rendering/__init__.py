"""Tables in Markdown from result files, written between markers in the documents; no number is typed by hand.

A document holds ``<!-- table: NAME -->`` and ``<!-- end -->``; what stands between them is rendered from ``results/``.
"""

import re
from collections.abc import Callable
from pathlib import Path

from reproduction.cells import notation
from reproduction.rendering import bench, experiments, recipes, studies

TABLES: dict[str, Callable[[Path], str]] = {**experiments.TABLES, **recipes.TABLES, **studies.TABLES, **bench.TABLES}
_BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(text: str, results: Path) -> str:
    """A document with all its tables rendered from result files.

    Args:
        text: The document.
        results: Folder of result files.
    """

    def fill(block: re.Match[str]) -> str:
        name = block[2]
        if name not in TABLES:
            raise ValueError(f"a document asks for the table {name!r}; those that exist are {', '.join(TABLES)}.")
        return f"{block[1]}{_with_notation(TABLES[name](results))}\n{block[3]}"

    return _BLOCK.sub(fill, text)


def _with_notation(table: str) -> str:
    """The table, with the symbols of its measures spelt out in its caption."""
    key = notation(table)
    if not key:
        return table
    has_caption = not table.splitlines()[-1].startswith("|")
    return table + (" " if has_caption else "\n\n") + key
