"""``opu tables``."""

from pathlib import Path
from typing import Annotated

import typer

from opu.cli.checkout import from_checkout


def tables(
    documents: Annotated[list[Path], typer.Argument(help="Markdown files with table markers.")],
    results: Annotated[Path, typer.Option(help="Folder of result files.")] = Path("results"),
) -> None:
    """Render the tables of Markdown documents from result files.

    Needs a source checkout. Each document is rewritten in place, between its
    table markers and nowhere else. A file that does not end in .md, or has no
    markers, is not changed.

    Example: opu tables README.md docs/robust.md
    """
    from_checkout("reproduction.commands").tables(documents, results)
