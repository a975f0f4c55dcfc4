"""Tables 3 and 4 beside the paper's numbers, and by scores that were fixed in advance, from the records of several seeds."""

import statistics
from typing import Any

from rich.console import Console

from opu.evaluation.compare import TEACHER_MEASURES
from opu.measures import SYMBOLS, named
from opu.tables import print_table
from opu.terminal import say
from reproduction.cells import mean_and_deviation, notation, number_of
from reproduction.tabular.setups import SETUPS

Record = dict[str, Any]
# The paper's accuracy, AUROC and AUPR for errors, AUROC and AUPR for OOD inputs (by E, or by C for OPU), and seconds.
PAPER: dict[str, dict[str, dict[str, tuple[float, ...]]]] = {
    "blr": {
        "pima": {
            "PG": (64.4, 60.0, 24.2, 87.0, 76.7, 1.01),
            "CA-PG": (62.3, 58.2, 24.2, 80.1, 74.5, 0.18),
            "OPU-PG": (64.4, 59.7, 25.6, 100.0, 100.0, 0.01),
        },
        "spambase": {
            "PG": (92.4, 83.9, 24.3, 54.6, 53.5, 5.94),
            "CA-PG": (85.4, 64.1, 24.2, 71.5, 67.5, 0.36),
            "OPU-PG": (92.4, 83.9, 23.8, 99.7, 99.3, 0.01),
        },
    },
    "gp": {
        "pima": {
            "SGPMC": (79.3, 65.3, 46.4, 96.7, 94.9, 0.003),
            "SVGP": (77.1, 64.3, 43.2, 96.0, 91.1, 0.004),
            "OPU-SGPMC": (79.2, 65.7, 44.4, 100.0, 100.0, 0.010),
        },
        "spambase": {
            "SGPMC": (92.4, 86.7, 37.8, 98.6, 97.6, 0.056),
            "SVGP": (92.1, 86.2, 33.3, 99.2, 98.5, 0.032),
            "OPU-SGPMC": (92.0, 86.5, 39.5, 100.0, 100.0, 0.011),
        },
    },
}
_SCORES: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "teacher": [("best of E, P, MI", TEACHER_MEASURES)],
    "student": [(symbol, named(symbol)) for symbol in ("N", "E", "C")],
}
_IN_PAPER = named("E", "C")


def beside_the_paper(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the paper's preset: errors by E, OOD inputs by E and, for students, by C."""
    header = ["", "accuracy", "errors AUROC (E)", "errors AUPR (E)", "OOD AUROC", "OOD AUPR"]
    lines = []
    for data, parts in _parts(records, "paper"):
        for row in parts[0]["rows"]:
            theirs = PAPER[records[0]["table"]][data][row.split(" ")[0]]
            found, lost = _found(parts, row)
            if not found:
                lines.append([f"{data}: {row}", lost, *[""] * 5])
                continue
            picked = "C" if row.startswith("OPU") else "E"
            measures = [m for m in _IN_PAPER if m in found[0]["ood"]["gaussian"]]
            cells = [_beside([each["accuracy"] for each in found], theirs[0])]
            for position, metric in enumerate(("auroc", "aupr"), 1):
                values = [each["misclassification"][_IN_PAPER[0]][metric] for each in found]
                cells.append(_beside(values, theirs[position]))
            for position, metric in enumerate(("auroc", "aupr"), 3):
                ours = ", ".join(
                    f"{mean_and_deviation([each['ood']['gaussian'][m][metric] for each in found])} {SYMBOLS[m]}"
                    for m in measures
                )
                cells.append(f"{ours} ({theirs[position]:.1f} {picked})")
            lines.append([f"{data}: {row}{lost and f' ({lost})'}", *cells, _times(found, theirs[5])])
        lines.append(_trivial_line(data, parts))
    return [*header, "fit, then test set in"], lines


def _trivial_line(name: str, parts: list[Record]) -> list[str]:
    values = mean_and_deviation([part["trivial"]["gaussian"]["negative_part"] for part in parts])
    return [f"{name}: negative part", "", "", "", values, "", ""]


def _times(found: list[Record], theirs: float) -> str:
    fit = statistics.median(each["fit_seconds"] for each in found)
    predict = statistics.median(each["predict_seconds"] for each in found)
    return f"{fit:.1f} s, {1e3 * predict:.3g} ms ({theirs:g} s)"


def detection(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of our own preset: accuracy, and AUROC by a score that was fixed in advance."""
    header: list[str] = []
    lines = []
    for data, parts in _parts(records, "standardised"):
        sets = ["misclassification", *parts[0]["trivial"]]
        header = ["", "accuracy", "errors", *sets[1:]]
        for row in parts[0]["rows"]:
            found, lost = _found(parts, row)
            if not found:
                lines.append([f"{data}: {row}", lost, *[""] * len(sets)])
                continue
            for label, measures in _SCORES["student" if row.startswith("OPU") else "teacher"]:
                name = f"{data}: {row}, {label}{lost and f' ({lost})'}"
                accuracy = mean_and_deviation([each["accuracy"] for each in found])
                lines.append([name, accuracy, *(_best(found, task, measures) for task in sets)])
        best = [mean_and_deviation([max(part["trivial"][task].values()) for part in parts]) for task in sets[1:]]
        lines.append([f"{data}: best trivial detector", "", "", *best])
    return header, lines


def show(records: list[Record], console: Console | None = None) -> None:
    """Print both tables, and the warnings that the runs gave."""
    console = console or Console()
    titles = ("Ours (the paper's in brackets), preset paper", "AUROC, the score fixed in advance, preset standardised")
    for title, (header, lines) in zip(titles, (beside_the_paper(records), detection(records)), strict=True):
        if lines:
            print_table(console, header, lines, title=title)
    say(console, f"{number_of(len(records), 'seed')}. {notation('E, P, MI, C, N')}")
    for name in dict.fromkeys(name for record in records for name in record["parts"]):
        parts = [record["parts"][name] for record in records if name in record["parts"]]
        noticed = [part["warnings"][0] for part in parts if part["warnings"]]
        if noticed:
            text = f"Noticed in {name}, {len(noticed)} of {len(parts)} seeds, such as: {noticed[0]}"
            say(console, text)


def _parts(records: list[Record], preset: str) -> list[tuple[str, list[Record]]]:
    """The data sets, and the records of all seeds that have them, in the order of the table."""
    setups = [setup for setup in SETUPS[records[0]["table"]] if setup.preset == preset]
    found = [(each.data, [r["parts"][each.name] for r in records if each.name in r["parts"]]) for each in setups]
    return [(data, parts) for data, parts in found if parts]


def gaps(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """The student less the teacher, seed by seed: accuracy, errors by E, OOD sets by N against the teacher's best."""
    header: list[str] = []
    lines = []
    for data, parts in _parts(records, "standardised"):
        teacher, *_, student = parts[0]["rows"]
        pairs = [(p["rows"][teacher], p["rows"][student]) for p in parts if _found([p], student)[0]]
        sets = list(parts[0]["trivial"])
        header = ["student less teacher", "accuracy", "errors (E)", *sets]
        cells = [_difference([s["accuracy"] - t["accuracy"] for t, s in pairs])]
        for task in ("misclassification", *sets):
            (ours,) = named("E" if task == "misclassification" else "N")
            theirs = _best_measure([teacher_row for teacher_row, _ in pairs], task)
            cells.append(_difference([_auroc(s, task, ours) - _auroc(t, task, theirs) for t, s in pairs]))
        lines.append([f"{data}: {student}", *cells])
    return header, lines


def _best_measure(rows: list[Record], task: str) -> str:
    return max(TEACHER_MEASURES, key=lambda measure: statistics.mean(_auroc(row, task, measure) for row in rows))


def _auroc(row: Record, task: str, measure: str) -> float:
    cells = row[task] if task == "misclassification" else row["ood"][task]
    return float(cells[measure]["auroc"])


def _difference(values: list[float]) -> str:
    spread_of = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):+.1f}{spread_of} ({sum(v >= 0 for v in values)} of {len(values)})"


def mixing(records: list[Record]) -> str:
    """The least effective sample size and the largest R-hat over seeds, part by part, in one sentence."""
    found = []
    for preset in ("paper", "standardised"):
        for data, parts in _parts(records, preset):
            each = [part["mixing"] for part in parts]
            if "least_ess" in each[0]:
                sizes, r_hats = [m["least_ess"] for m in each], [m["r_hat"] for m in each]
            else:
                sizes = [kind["min_ess"] for m in each for kind in m.values()]
                r_hats = [kind["max_r_hat"] for m in each for kind in m.values()]
            found.append(f"{data} ({preset}) {min(sizes):,.0f} and {max(r_hats):.2f}")
    return "Least effective sample size and largest R-hat, over seeds: " + "; ".join(found) + "."


def bound(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """How SVGP's evidence bound per row rose, as averages over windows of steps, and whether it converged."""
    header = ["", "first window", "second", "fourth", "last but one", "last", "steps", "converged"]
    lines = []
    for preset in ("paper", "standardised"):
        for data, parts in _parts(records, preset):
            runs = [part["rows"]["SVGP"]["training"] for part in parts]
            means = [statistics.mean(run["elbo"][place] for run in runs) for place in (0, 1, 3, -2, -1)]
            steps = [run["steps"] for run in runs]
            still = f"{sum(run['converged'] for run in runs)} of {len(runs)}"
            cells = [f"{mean:.4f}" for mean in means]
            lines.append([f"{data} ({preset})", *cells, f"{min(steps):,} to {max(steps):,}", still])
    return header, lines


def speed(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """How much faster the student is, with the teacher's sampling left out and with it charged to one test set."""
    header = ["", "teacher samples for", "teacher's test set", "student's test set", "ratio", "ratio, sampling charged"]
    lines = []
    for data, parts in _parts(records, "standardised"):
        teacher, *_, student = parts[0]["rows"]
        both = [(part["rows"][teacher], part["rows"][student]) for part in parts if _found([part], student)[0]]
        if not both:
            continue
        fit = statistics.median(t["fit_seconds"] for t, _ in both)
        slow, fast = (statistics.median(pair[i]["predict_seconds"] for pair in both) for i in (0, 1))
        plain = statistics.median(t["predict_seconds"] / s["predict_seconds"] for t, s in both)
        charged = statistics.median((t["predict_seconds"] + t["fit_seconds"]) / s["predict_seconds"] for t, s in both)
        cells = [f"{fit:.1f} s", f"{1e3 * slow:.3g} ms", f"{1e3 * fast:.3g} ms", _ratio(plain), _ratio(charged)]
        lines.append([f"{data}: {teacher}", *cells])
    return header, lines


def _ratio(value: float) -> str:
    return f"{value:,.0f}x" if value >= 10 else f"{value:.1f}x"


def _found(parts: list[Record], row: str) -> tuple[list[Record], str]:
    """A row's results over seeds, and how many seeds have none because the student diverged."""
    every = [part["rows"][row] for part in parts if row in part["rows"]]
    found = [each for each in every if "diverged" not in each]
    return found, f"diverged on {len(every) - len(found)} of {len(every)} seeds" if len(found) < len(every) else ""


def _best(found: list[Record], task: str, measures: tuple[str, ...]) -> str:
    def values(measure: str) -> list[float]:
        cells = [(each[task] if task == "misclassification" else each["ood"][task])[measure] for each in found]
        return [cell["auroc"] for cell in cells if cell is not None]

    best = max(measures, key=lambda m: statistics.mean(values(m)))
    return mean_and_deviation(values(best)) + (f" {SYMBOLS[best]}" if len(measures) > 1 else "")


def _beside(values: list[float], theirs: float) -> str:
    return f"{mean_and_deviation(values)} ({theirs:.1f})"
