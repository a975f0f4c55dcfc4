"""Our numbers beside the paper's, from the records of several seeds: for the terminal and for the documents."""

import statistics
from typing import Any

from rich.console import Console

from opu.evaluation.compare import TEACHER_MEASURES
from opu.measures import SYMBOLS, named
from opu.tables import print_table
from opu.terminal import say
from reproduction.cells import mean_and_deviation, notation, number_of
from reproduction.paper import numbers
from reproduction.paper.rows import ROBUST_TABLE, TABLES

Record = dict[str, Any]
# The paper shows the best of these for each task; so does the first table, and says so.
_IN_PAPER = {"pointwise": named("E", "P", "D"), "opu": named("E", "P", "C")}
_OTHERS = named("E", "P", "D")
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


def show(records: list[Record], times: Record, console: Console | None = None) -> None:
    """Print the tables that belong to the records."""
    console = console or Console()
    shown = {"AUROC, the score fixed in advance": detection(records)}
    if records[0]["table"] in numbers.TABLES:
        beside = "Ours (the paper's in brackets): best of the measures that the paper chooses from"
        shown = {beside: beside_the_paper(records, times), **shown}
    if records[0]["table"].endswith(ROBUST_TABLE):
        shown["Our students less their teachers' best of E, P, MI"] = goal(records)
    for title, (header, lines) in shown.items():
        print_table(console, header, lines, title=title)
    domains = ", ".join(dict.fromkeys(record["domain"] for record in records))
    say(console, f"Domain {domains}, {records[0]['scale']['name']} scale, {number_of(len(records), 'seed')}.")
    say(console, notation("E, P, MI, D, C, N"))


def beside_the_paper(records: list[Record], times: Record) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the paper's table: accuracy, errors, OOD sets, and seconds for the test set."""
    table = records[0]["table"]
    published = numbers.TABLES[table]
    in_paper = {row.name: row.in_paper for row in TABLES[table]}
    tasks = ["misclassification", *[name for name in ("omniglot", "semeion") if name in next(_rows(records))["ood"]]]
    header = ["", "accuracy"]
    header += [f"{NAMES[task]} {metric}" for task in tasks for metric in ("AUROC", "AUPR")]
    lines = []
    for name, rows in _by_row(records):
        theirs = published.get(in_paper.get(name) or "")
        accuracy = None if theirs is None else f"{theirs['accuracy']:.1f}"
        line = [name, _beside(mean_and_deviation([row["accuracy"] for row in rows]), accuracy)]
        for task in tasks:
            for position, metric in enumerate(("auroc", "aupr")):
                line.append(_beside(_best(rows, task, metric), _theirs(theirs, task, position)))
        lines.append(
            [*line, _seconds(rows[0]["row"], times["seconds"], with_paper=theirs is not None and table == "mnist")]
        )
    ood = next(_rows(records))["ood"]
    rates = [part for task in tasks[1:] for part in ("", f"{ood[task]['base_rate']:.1f}")]
    return [*header, "test set in"], [*lines, ["base rate", "", "", "100 less accuracy", *rates, ""]]


def detection(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of AUROC by a score that was fixed in advance, with the best trivial detector at the end."""
    sets = ["misclassification", *next(_rows(records))["ood"]]
    lines = []
    for name, rows in _by_row(records):
        for label, measures in _fixed(rows[0]):
            cells = [_best(rows, task, "auroc", measures, letter=len(measures) > 1) for task in sets]
            lines.append([f"{name}: {label}", *cells])
    trivial = [mean_and_deviation([max(record["trivial"][task].values()) for record in records]) for task in sets[1:]]
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
        for measure in named("N", "C", "P"):
            cells = [f"{accuracy:+.2f}"]
            for task in sets:
                known = [values for m in TEACHER_MEASURES if (values := _values(theirs, task, m, "auroc"))]
                reached = _values(ours, task, measure, "auroc")
                gain = None if reached is None else statistics.mean(reached) - max(map(statistics.mean, known))
                cells.append("none" if gain is None else f"{gain:+.1f}")
            lines.append([f"{name}: {SYMBOLS[measure]}", *cells])
    return ["", "accuracy", *[NAMES[task] for task in sets]], lines


def _fixed(row: Record) -> list[tuple[str, tuple[str, ...]]]:
    """The scores of the second table, fixed in advance: a label, and the measures of which the best counts."""
    kind = row["row"]["kind"]
    if kind == "pointwise":
        own = row["row"]["divergence"] == "kl" and not row["row"]["preset"]
        return [*([("best of E, P, MI", TEACHER_MEASURES)] if own else []), *_singly("D", "C")]
    if kind == "opu":
        return _singly("E", "C", "N")
    return _singly("E") if kind in ("bdk", "bdk_online") else _singly("E", "C")


def _singly(*symbols: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(symbol, named(symbol)) for symbol in symbols]


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
    measures = measures or _IN_PAPER.get(rows[0]["row"]["kind"], _OTHERS)
    candidates = {m: values for m in measures if (values := _values(rows, task, m, metric)) is not None}
    if not candidates:
        return "none"
    best = max(candidates, key=lambda m: statistics.mean(candidates[m]))
    return mean_and_deviation(candidates[best]) + (f" {SYMBOLS[best]}" if letter else "")


def _theirs(row: Record | None, task: str, position: int) -> str | None:
    if row is None:
        return None
    pair = row["misclassification"] if task == "misclassification" else row["ood"].get(task)
    return None if pair is None else f"{pair[position][0]:.1f} {pair[position][1]}"


def _beside(ours: str, theirs: str | None) -> str:
    return ours if theirs is None else f"{ours} ({theirs})"


def _seconds(row: Record, seconds: Record, with_paper: bool) -> str:
    if row["kind"] == "pointwise":
        what, kind = row["teacher"], "naive_loop"
    else:
        # BDK is one network, and so are BDK-Dir and a prior network on the same layers.
        network = row["kind"].removesuffix("_errors")
        what, kind = network if network in seconds else "bdk", "one_pass"
    value = seconds[what][kind]
    ours = f"{value:.2f} s" if value >= 0.1 else f"{1e3 * value:.2f} ms"
    return _beside(ours, f"{numbers.TEST_SECONDS[what]} s" if with_paper and what in numbers.TEST_SECONDS else None)
