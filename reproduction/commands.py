"""What ``opu reproduce``, ``opu compare`` and ``opu tables`` do."""

from pathlib import Path

from rich.console import Console

from opu.files import write_atomically
from opu.terminal import say


def reproduce(table: str, out: Path, seeds: list[int], rows: list[str], device: str, quick: bool) -> None:
    """Run a table of the paper and print it beside the paper's numbers, or draw the paper's figure.

    Args:
        table: Name of a table, or ``figure``.
        out: Folder for results; a run that was stopped goes on there.
        seeds: Which seeds; the figure is drawn for the first.
        rows: Only rows whose name contains one of these texts; all rows if there are none.
        device: ``cpu``, ``cuda`` or ``auto``.
        quick: A small version for two CPU cores.
    """
    from reproduction.paper import figure, reproduce, summary
    from reproduction.paper.rows import TABLES
    from reproduction.tabular import reproduce as tabular
    from reproduction.tabular import summary as tabular_summary
    from reproduction.tabular.setups import SETUPS

    if table == "figure":
        if rows or quick:
            raise ValueError("the figure is drawn whole, so --rows and --quick do not go with it; leave them out.")
        figure.draw(out, seed=seeds[0])
    elif table in SETUPS:
        records = tabular.reproduce_tabular(table, out, seeds=seeds, rows=rows, quick=quick, device=device)
        tabular_summary.show(records)
    elif table in TABLES:
        summary.show(*reproduce.reproduce(table, out, seeds=seeds, rows=rows, device=device, quick=quick))
    else:
        raise ValueError(f"what can be reproduced is {', '.join([*TABLES, *SETUPS])} and figure; got {table!r}.")


def compare(out: Path, seeds: list[int], rows: list[str], device: str, quick: bool) -> None:
    """Run the comparison with other methods and print it; the arguments are those of :func:`reproduce`."""
    from reproduction.comparison.run import run_comparison
    from reproduction.comparison.summary import show

    show(run_comparison(out, seeds=seeds, rows=rows, device=device, quick=quick))


def tables(documents: list[Path], results: Path, console: Console | None = None) -> None:
    """Render the tables of Markdown documents from result files.

    All documents are rendered before the first is written, and one that does not change is not written. Links stay links.

    Args:
        documents: Files that end in ``.md``, with markers such as ``<!-- table: demo -->``; one without any is left alone.
        results: Folder of result files.
        console: Where to name those without markers.
    """
    from reproduction.rendering import has_markers, render

    texts = {document: _read(document) for document in dict.fromkeys(documents)}
    marked = {document: text for document, text in texts.items() if has_markers(text)}
    without = ", ".join(str(document) for document in texts if document not in marked)
    if not marked:
        raise ValueError(f"{without} holds no table marker, such as <!-- table: demo -->; nothing was written.")
    rendered = {document: render(text, results, str(document)) for document, text in marked.items()}
    for document, text in rendered.items():
        if text != marked[document]:
            real = document.resolve()
            mode = real.stat().st_mode
            write_atomically(real, text.encode())
            real.chmod(mode)
    if without:
        say(console or Console(), f"Left alone, since they hold no table marker: {without}.")


def _read(document: Path) -> str:
    if document.suffix != ".md":
        raise ValueError(f"a document is a Markdown file, whose name must end in .md; got {document.name}.")
    if not document.is_file():
        raise ValueError(f"there is no file {document}; give a Markdown document.")
    try:
        text = document.read_bytes().decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ValueError(f"{document} is not text in UTF-8, so it is no document; nothing was written.")
    return text
