"""The comparison's table: what each method costs, and how well it finds errors and OOD inputs by its fixed scores."""

import math
import statistics
from typing import Any

from rich.console import Console

from opu.tables import print_table
from opu.terminal import say
from reproduction.cells import mean_and_deviation, notation, number_of
from reproduction.paper.summary import NAMES

Record = dict[str, Any]
SETS = {name: words for name, words in NAMES.items() if name not in ("misclassification", "held_out_classes")}
# Columns of quality and cost; all others are AUROC.
_COSTS = ["accuracy", "NLL", "ECE", "test set in", "parameters"]


def comparison_table(
    records: list[Record], seconds: dict[str, float] | None = None
) -> tuple[list[str], list[list[str]]]:
    """Header and lines; the best of each column of AUROC, apart from the trivial detectors, is in bold.

    Args:
        records: One record for each seed.
        seconds: Seconds for the test set by row, if they were measured by themselves; else medians over the records.
    """
    header = ["", "accuracy", "NLL", "ECE", "errors", *SETS.values(), "test set in", "parameters"]
    names = dict.fromkeys(row["name"] for record in records for row in record["rows"])
    rows = {name: [row for record in records for row in record["rows"] if row["name"] == name] for name in names}
    columns = {name: list(zip(*map(_auroc, same), strict=True)) for name, same in rows.items()}
    means = {name: [statistics.fmean(column) for column in each] for name, each in columns.items()}
    best = [max(mean for mean in column if not math.isnan(mean)) for column in zip(*means.values(), strict=True)]
    lines = []
    for name, same in rows.items():
        cells = [
            f"**{mean_and_deviation(values)}**" if round(mean, 1) >= round(top, 1) else mean_and_deviation(values)
            for values, mean, top in zip(columns[name], means[name], best, strict=True)
        ]
        accuracy, ece = (mean_and_deviation([row[key] for row in same]) for key in ("accuracy", "ece"))
        nll = f"{statistics.fmean(row['nll'] for row in same):.3f}"
        taken = statistics.median_high(row["test_seconds"] for row in same) if seconds is None else seconds[name]
        costs = [f"{1000 * taken:.3g} ms", f"{same[0]['num_parameters'] / 1e6:.2f} M"]
        incomplete = "" if len(same) == len(records) else f", {number_of(len(same), 'seed')}"
        lines.append([name + incomplete, accuracy, nll, ece, *cells, *costs])
    trivial = [mean_and_deviation([max(record["trivial"][name].values()) for record in records]) for name in SETS]
    return header, [*lines, ["best trivial detector", "", "", "", "", *trivial, "", ""]]


def _auroc(row: Record) -> list[float]:
    """AUROC of errors and of each OOD set; not a number if a score was none."""
    cells = [row["misclassification"][row["error_score"]], *(row["ood"][name][row["ood_score"]] for name in SETS)]
    return [math.nan if cell is None else cell["auroc"] for cell in cells]


def show(records: list[Record], console: Console | None = None) -> None:
    """Print the table in two parts."""
    console = console or Console()
    header, lines = comparison_table(records)
    lines = [[cell.replace("**", "") for cell in line] for line in lines]
    costs = [place for place, name in enumerate(header) if not name or name in _COSTS]
    found = [place for place, name in enumerate(header) if name not in _COSTS]
    for title, places, shown in (
        ("Quality and cost", costs, lines[:-1]),
        ("AUROC: errors by P (by N for our students), OOD sets by the score in the name", found, lines),
    ):
        print_table(console, [header[p] for p in places], [[line[p] for p in places] for line in shown], title=title)
    say(console, f"{number_of(len(records), 'seed')}. {notation('E, P, MI, C, N')}")
