"""The rivals' table: what each costs, and how well it finds errors and strangers by the score that was fixed for it."""

import math
from typing import Any

from rich.console import Console
from rich.table import Table

from reproduction.paper.table import NAMES, spread

Record = dict[str, Any]
SETS = {name: words for name, words in NAMES.items() if name not in ("misclassification", "held_out_classes")}


def comparison_table(
    records: list[Record], seconds: dict[str, float] | None = None
) -> tuple[list[str], list[list[str]]]:
    """Header and lines; the best of each column of AUROC, but for the trivial detectors, is in bold.

    Args:
        records: One for each seed.
        seconds: For the test set, by row, where they were measured by themselves; else medians over the records.
    """
    header = ["", "accuracy", "NLL", "ECE", "errors", *SETS.values(), "test set in", "parameters"]
    rows = [[row for record in records for row in record["rows"] if row["name"] == name] for name in _names(records)]
    values = [[_values(row) for row in same] for same in rows]
    means = [[sum(column) / len(column) for column in zip(*same, strict=True)] for same in values]
    lines = []
    for same, columns, mean in zip(rows, values, means, strict=True):
        cells = [spread(list(column)) for column in zip(*columns, strict=True)]
        tops = [max(each[place] for each in means if not math.isnan(each[place])) for place in range(len(mean))]
        cells = [f"**{c}**" if round(m, 1) >= round(top, 1) else c for c, m, top in zip(cells, mean, tops, strict=True)]
        quality = [spread([row[key] for row in same]) for key in ("accuracy", "ece")]
        nll = sum(row["nll"] for row in same) / len(same)
        middle = sorted(row["test_seconds"] for row in same)[len(same) // 2]
        taken = middle if seconds is None else seconds[same[0]["name"]]
        costs = [f"{1000 * taken:.3g} ms", f"{same[0]['num_parameters'] / 1e6:.2f} M"]
        name = same[0]["name"] + ("" if len(same) == len(records) else f", {len(same)} seeds")
        lines.append([name, quality[0], f"{nll:.3f}", quality[1], *cells, *costs])
    trivial = [spread([max(record["trivial"][name].values()) for record in records]) for name in SETS]
    return header, [*lines, ["best trivial detector", "", "", "", "", *trivial, "", ""]]


def _names(records: list[Record]) -> list[str]:
    return list(dict.fromkeys(row["name"] for record in records for row in record["rows"]))


def _values(row: Record) -> list[float]:
    """AUROC of errors and of each set of strangers; not a number where a score was none."""
    cells = [row["misclassification"][row["errors"]], *(row["ood"][name][row["strangers"]] for name in SETS)]
    return [math.nan if cell is None else cell["auroc"] for cell in cells]


def show(records: list[Record], console: Console | None = None) -> None:
    """The table in the terminal, in two parts that fit it."""
    console = console or Console()
    # A narrow terminal may break lines, but no number is cut.
    wide = Console(file=console.file, width=max(console.width, 150))
    header, lines = comparison_table(records)
    quality, found = [0, 1, 2, 3, 13, 14], [0, *range(4, 13)]
    for title, columns in (
        ("What each costs", quality),
        ("AUROC: errors, and strangers by the score in the name", found),
    ):
        table = Table(title=title, box=None, padding=(0, 1, 0, 0))
        for place in columns:
            table.add_column(header[place], justify="left" if place == 0 else "right", no_wrap=place == 0)
        for line in lines if columns is found else lines[:-1]:
            table.add_row(*(line[place].replace("**", "") for place in columns))
        wide.print(table)
    console.print(f"{len(records)} seed{'' if len(records) == 1 else 's'}.", highlight=False)
