"""What ``opu reproduce``, ``opu compare`` and ``opu tables`` do."""

from pathlib import Path

from opu.files import write_atomically


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


def tables(documents: list[Path], results: Path) -> None:
    """Render the tables of Markdown documents from result files.

    Args:
        documents: Files with markers such as ``<!-- table: demo -->``.
        results: Folder of result files.
    """
    from reproduction.rendering import render

    for document in documents:
        write_atomically(document, render(document.read_text(), results).encode())
