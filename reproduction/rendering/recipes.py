"""The tables of the studies behind the robust recipe and its objectives."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opu.measures import named
from opu.tables import markdown_table
from reproduction.results import read, read_one

Record = dict[str, Any]
_SETTINGS = {
    "mc_dropout": "MC dropout",
    "sgld": "SGLD",
    "held_out_classes": "two digits left out",
    "emnist": "47 classes",
    "ensemble": "ensemble",
    "emnist_ensemble": "ensemble, 47 classes",
}
# Entries of a trial that are not OOD sets.
_NOT_SETS = (
    *("setting", "seed", "variation", "link", "accuracy", "balanced_accuracy"),
    *("total_variation", "honest", "log_precision", "errors", "coverage"),
)
_SAME = 0.1


def robust_round(number: int) -> Callable[[Path], str]:
    """One round of changes to the recipe, a change a line: the mean's distance, and gaps to the teacher's best.

    These rounds are frozen: their candidates belong to earlier versions of the library, and no command makes them today.
    """
    file = f"study-robust-{number}.json"

    def table(results: Path) -> str:
        trials = read_one(results, file, f"git checkout results/{file}, since no command makes it today")["trials"]
        settings = [name for name in _SETTINGS if any(trial["setting"] == name for trial in trials)]
        lines = []
        for change in dict.fromkeys(trial["variation"] for trial in trials):
            same = [[t for t in trials if (t["variation"], t["setting"]) == (change, each)] for each in settings]
            lines.append([_as_code(change), *map(_robust_cell, same)])
        return markdown_table(["change", *(_SETTINGS[name] for name in settings)], lines)

    return table


def _robust_cell(trials: list[Record]) -> str:
    if not trials:
        return ""
    distance = statistics.mean(100 * t["total_variation"] for t in trials)
    errors, plain = (statistics.mean(t["errors"][m] - t["errors"]["teacher"] for t in trials) for m in ("N", "P"))
    sets = [name for name in trials[0] if name not in _NOT_SETS]
    gaps = [statistics.mean(t[name]["N"] - t[name]["teacher"] for t in trials) for name in sets]
    cell = f"{distance:.1f}; {errors:+.1f} ({plain:+.1f}); {statistics.mean(gaps):+.1f} ({min(gaps):+.1f})"
    if "balanced_accuracy" in trials[0]:  # since the sixth round
        kept = statistics.mean(t["balanced_accuracy"][0] - t["balanced_accuracy"][1] for t in trials)
        cell = f"{kept:+.1f}; {cell}"
    if "coverage" in trials[0]:
        cell += f"; {statistics.mean(t['coverage'] for t in trials):.0f} %"
    # A precision that is the same for the middle eighty percent of the inputs tells nothing apart.
    lost = sum(t["log_precision"][-1] - t["log_precision"][0] < _SAME for t in trials)
    return f"{cell}, precision lost on {lost} of {len(trials)}" if lost else cell


def small_recipe(results: Path) -> str:
    """Objectives on small digits: distances to the teacher, and the held-out digit."""
    study = read_one(results, "study-small-recipe.json", "python -m reproduction.studies.small_recipe --record")
    header = ["objective", "amortisation", "total variation", "MI, rank correlation", "ECE", "coverage"]
    lines = []
    for name in dict.fromkeys(run["objective"] for run in study["runs"]):
        runs = [run for run in study["runs"] if run["objective"] == name]
        found = [run["fidelity"] for run in runs]
        cells = [
            f"{statistics.mean(f['mmd']['amortisation'] for f in found):.3f}",
            f"{statistics.mean(f['total_variation'] for f in found):.3f}",
            f"{statistics.mean(f['spearman_of_mutual_information'] for f in found):.2f}",
            f"{statistics.mean(f['calibration']['student']['ece'] for f in found):.1f}",
            f"{statistics.mean(f['coverage']['of_teacher'] for f in found):.0f}",
        ]
        for measure in named("N", "E", "C"):
            gaps = [run["auroc"][measure] - run["teacher"] for run in runs]
            cells.append(f"{statistics.mean(gaps):+.1f} ({min(gaps):+.1f} to {max(gaps):+.1f})")
        lines.append([_as_code(name), *cells])
    digits = ", ".join(str(d) for d in dict.fromkeys(run["held_out"] for run in study["runs"]))
    return f"{markdown_table([*header, 'N less teacher', 'E', 'C'], lines)}\n\nDigits left out in turn: {digits}."


def class_counts(results: Path) -> str:
    """Objectives by number of classes: at which number of them an objective loses the mean."""
    out = "results/study-many-classes-100.json"
    command = f"python -m reproduction.studies.many_classes --classes 100 --steps 1500 --out {out}"
    header = ["classes", "objective", "total variation", "same class", "E", "MI", "log-precision (best)"]
    lines = []
    for study in sorted(read(results, "study-many-classes-*.json", command), key=lambda each: each["classes"]):
        best, *runs = study["runs"]
        for run in runs:
            precision = f"{run['fresh']['log_precision']:.1f} ({best['fresh']['log_precision']:.1f})"
            lines.append([str(study["classes"]), _as_code(run["objective"]), *_nearness(run["fresh"]), precision])
    return markdown_table(header, lines)


def many_classes(results: Path) -> str:
    """Objectives with a thousand classes, on fresh inputs and further out."""
    command = "python -m reproduction.studies.many_classes --device cuda --record"
    study = read_one(results, "study-many-classes.json", command)
    what = ["total variation", "same class", "E", "MI"]
    header = ["objective", *what, *(f"{name}, stretched" for name in what), "log-precision", "seconds"]
    lines = []
    for run in study["runs"]:
        name = f"{run['objective']}, {run['steps']} steps" if run.get("steps") else run["objective"]
        costs = [f"{run['fresh']['log_precision']:.1f}", f"{run['seconds']:.0f}"]
        lines.append([_as_code(name), *_nearness(run["fresh"]), *_nearness(run["stretched"]), *costs])
    return markdown_table(header, lines)


def _as_code(name: str) -> str:
    """A sum of objectives as code, since Markdown would read its asterisks as emphasis."""
    objective, comma, rest = name.partition(",")
    return f"`{objective}`{comma}{rest}" if "*" in objective or "_" in objective else name


def _nearness(seen: Record) -> list[str]:
    ranks = [f"{seen['ranks'][name]:.2f}" for name in ("entropy", "information")]
    return [f"{seen['total_variation']:.2f}", f"{seen['same_class']:.0f}", *ranks]


TABLES: dict[str, Callable[[Path], str]] = {
    **{f"robust-{number}": robust_round(number) for number in (4, 5, 6)},
    "small-recipe": small_recipe,
    "class-counts": class_counts,
    "many-classes": many_classes,
}
