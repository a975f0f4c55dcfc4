"""Our numbers beside the paper's, from the records of several seeds: for the terminal and for the documents."""

import statistics
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from reproduction.paper import paper
from reproduction.paper.rows import ROBUST_TABLE, TABLES

Record = dict[str, Any]
LETTERS = {
    "predictive_entropy": "E",
    "least_confidence": "P",
    "negative_log_precision": "C",
    "differential_entropy": "D",
    "mutual_information": "MI",
    "novelty": "N",
}
# The paper shows the best of these for each task; so does the first table, and says so.
_OF_PAPER = {
    "pointwise": ("predictive_entropy", "least_confidence", "differential_entropy"),
    "opu": ("predictive_entropy", "least_confidence", "negative_log_precision"),
}
_OTHERS = ("predictive_entropy", "least_confidence", "differential_entropy")
# The second table fixes the score in advance.
_TEACHER = ("predictive_entropy", "least_confidence", "mutual_information")
NAMES = {
    "misclassification": "errors",
    "omniglot": "Omniglot",
    "semeion": "SEMEION",
    "omniglot_matched": "Omniglot matched",
    "semeion_matched": "SEMEION matched",
    "letters": "EMNIST letters",
    "noise": "noise",
    "shifted": "shifted",
    "photographs": "photographs",
    "held_out_classes": "held-out classes",
}


def as_markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table for a document."""
    rows = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(rows + ["| " + " | ".join(line) + " |" for line in lines])


def show(records: list[Record], times: Record, console: Console | None = None) -> None:
    """Both tables on the terminal."""
    console = console or Console()
    # A narrow terminal may break lines, but no number is cut.
    wide = Console(file=console.file, width=max(console.width, 240))
    shown = {"AUROC, the score fixed in advance": detection(records)}
    if records[0]["table"] in paper.TABLES:
        beside = "Ours (the paper's in brackets): best of the measures that the paper chooses from"
        shown = {beside: beside_the_paper(records, times), **shown}
    if records[0]["table"].endswith(ROBUST_TABLE):
        shown["Our students less their teachers' best of E, P, MI"] = goal(records)
    for title, (header, lines) in shown.items():
        table = Table(title=title, box=SIMPLE, pad_edge=False)
        for name in header:
            table.add_column(name, no_wrap=True, justify="left" if not name else "right")
        for line in lines:
            table.add_row(*line)
        wide.print(table)
    seeds = f"{len(records)} seed{'' if len(records) == 1 else 's'}"
    domains = ", ".join(dict.fromkeys(record["domain"] for record in records))
    console.print(f"Domain {domains}, {records[0]['scale']['name']} scale, {seeds}.")


def beside_the_paper(records: list[Record], times: Record) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the paper's table: accuracy, errors, strangers, and seconds for the test set."""
    table = records[0]["table"]
    numbers = paper.TABLES[table]
    in_paper = {row.name: row.in_paper for row in TABLES[table]}
    tasks = ["misclassification", *[name for name in ("omniglot", "semeion") if name in next(_rows(records))["ood"]]]
    header = ["", "accuracy"]
    header += [f"{NAMES[task]} {metric}" for task in tasks for metric in ("AUROC", "AUPR")]
    lines = []
    for name, rows in _by_row(records):
        theirs = numbers.get(in_paper.get(name) or "")
        accuracy = None if theirs is None else f"{theirs['accuracy']:.1f}"
        line = [name, _beside(spread([row["accuracy"] for row in rows]), accuracy)]
        for task in tasks:
            for position, metric in enumerate(("auroc", "aupr")):
                line.append(_beside(_best(rows, task, metric), _theirs(theirs, task, position)))
        lines.append(
            [*line, _seconds(rows[0]["row"], times["seconds"], with_paper=theirs is not None and table == "mnist")]
        )
    strangers = next(_rows(records))["ood"]
    shares = [part for task in tasks[1:] for part in ("", f"{strangers[task]['base_rate']:.1f}")]
    return [*header, "test set in"], [*lines, ["base rate", "", "", "100 less accuracy", *shares, ""]]


def detection(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of AUROC by a score that was fixed in advance, with the best trivial detector at the end."""
    sets = ["misclassification", *next(_rows(records))["ood"]]
    lines = []
    for name, rows in _by_row(records):
        for label, measures in _fixed(rows[0]):
            cells = [_best(rows, task, "auroc", measures, letter=len(measures) > 1) for task in sets]
            lines.append([f"{name}: {label}", *cells])
    trivial = [spread([max(record["trivial"][task].values()) for record in records]) for task in sets[1:]]
    return ["", *[NAMES[task] for task in sets]], [*lines, ["best trivial detector", "", *trivial]]


def goal(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of our recipe less its teachers: accuracy, and AUROC by N, C and P less their best of E, P and MI."""
    sets = ["misclassification", *next(_rows(records))["ood"]]
    rows = dict(_by_row(records))
    teachers = {same[0]["row"]["teacher"]: same for same in rows.values() if same[0]["row"]["kind"] == "pointwise"}
    lines = []
    for name, ours in rows.items():
        if ours[0]["row"]["preset"] != "robust" or ours[0]["row"]["teacher"] not in teachers:
            continue
        theirs = teachers[ours[0]["row"]["teacher"]]
        accuracy = statistics.mean([row["accuracy"] for row in ours]) - statistics.mean(
            [row["accuracy"] for row in theirs]
        )
        for measure in ("novelty", "negative_log_precision", "least_confidence"):
            cells = [f"{accuracy:+.2f}"]
            for task in sets:
                known = [values for m in _TEACHER if (values := _values(theirs, task, m, "auroc"))]
                reached = _values(ours, task, measure, "auroc")
                gain = None if reached is None else statistics.mean(reached) - max(map(statistics.mean, known))
                cells.append("none" if gain is None else f"{gain:+.1f}")
            lines.append([f"{name}: {LETTERS[measure]}", *cells])
    return ["", "accuracy", *[NAMES[task] for task in sets]], lines


def _fixed(row: Record) -> list[tuple[str, tuple[str, ...]]]:
    kind = row["row"]["kind"]
    if kind == "pointwise":
        own = [("best of E, P, MI", _TEACHER)] if row["row"]["divergence"] == "kl" and not row["row"]["preset"] else []
        return [*own, ("D", ("differential_entropy",)), ("C", ("negative_log_precision",))]
    if kind == "opu":
        return [(LETTERS[m], (m,)) for m in ("predictive_entropy", "negative_log_precision", "novelty")]
    if kind.startswith("bdk") and kind != "bdk_dir":
        return [("E", ("predictive_entropy",))]
    return [(LETTERS[m], (m,)) for m in ("predictive_entropy", "negative_log_precision")]


def _rows(records: list[Record]) -> Any:
    return iter(records[0]["rows"].values())


def _by_row(records: list[Record]) -> list[tuple[str, list[Record]]]:
    """Every row that some seed has, in the order of the table, with the seeds that have it."""
    names = [row.name for row in TABLES[records[0]["table"]]]
    found = [(name, [record["rows"][name] for record in records if name in record["rows"]]) for name in names]
    return [(name, rows) for name, rows in found if rows]


def _values(rows: list[Record], task: str, measure: str, metric: str) -> list[float] | None:
    found = [(row[task] if task == "misclassification" else row["ood"][task]).get(measure) for row in rows]
    known = [entry[metric] for entry in found if entry is not None]
    return known or None


def _best(
    rows: list[Record], task: str, metric: str, measures: tuple[str, ...] | None = None, letter: bool = True
) -> str:
    measures = measures or _OF_PAPER.get(rows[0]["row"]["kind"], _OTHERS)
    candidates = {m: values for m in measures if (values := _values(rows, task, m, metric)) is not None}
    if not candidates:
        return "none"
    best = max(candidates, key=lambda m: statistics.mean(candidates[m]))
    return spread(candidates[best]) + (f" {LETTERS[best]}" if letter else "")


def spread(values: list[float]) -> str:
    """Mean and standard deviation over seeds."""
    mean = f"{statistics.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.1f}"


def _theirs(row: Record | None, task: str, position: int) -> str | None:
    if row is None:
        return None
    pair = row["misclassification"] if task == "misclassification" else row["ood"].get(task)
    return None if pair is None else f"{pair[position][0]:.1f} {pair[position][1]}"


def _beside(ours: str, theirs: str | None) -> str:
    return ours if theirs is None else f"{ours} ({theirs})"


def _seconds(row: Record, seconds: Record, with_paper: bool) -> str:
    if row["kind"] == "pointwise":
        what, how = row["teacher"], "naive_loop"
    else:
        # BDK is one network, and so are BDK-Dir and a prior network on the same layers.
        kind = row["kind"].removesuffix("_errors")
        what, how = kind if kind in seconds else "bdk", "one_pass"
    value = seconds[what][how]
    ours = f"{value:.2f} s" if value >= 0.1 else f"{1e3 * value:.2f} ms"
    return _beside(ours, f"{paper.TEST_SECONDS[what]} s" if with_paper and what in paper.TEST_SECONDS else None)
