"""The tables of ``docs/log.md`` on the robust recipe and on novelty for images."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reproduction.rendering.shared import read

_ROBUST_SETTINGS = {
    "mc_dropout": "MC dropout",
    "sgld": "SGLD",
    "held_out_classes": "two digits left out",
    "emnist": "47 classes",
    "ensemble": "ensemble",
    "emnist_ensemble": "ensemble, 47 classes",
}
_NOT_SETS = (
    "setting",
    "seed",
    "variation",
    "link",
    "accuracy",
    "balanced_accuracy",
    "total_variation",
    "honest",
    "log_precision",
    "errors",
    "coverage",
)

_SAME = 0.1


def robust_table(number: int) -> Callable[[Path], str]:
    """One change of the robust recipe a line: the mean's distance, and gaps to the teacher's best, setting by setting."""
    file = "study-robust.json" if number == 1 else f"study-robust-{number}.json"

    def table(results: Path) -> str:
        command = f"python -m reproduction.studies.robust_recipe --device cuda --jobs 15 --round {number}"
        (study,) = read(results, file, command)
        settings = [name for name in _ROBUST_SETTINGS if any(t["setting"] == name for t in study["trials"])]
        lines = [
            "| change | " + " | ".join(_ROBUST_SETTINGS[name] for name in settings) + " |",
            "| --- |" + " --- |" * len(settings),
        ]
        for name in dict.fromkeys(trial["variation"] for trial in study["trials"]):
            cells = []
            for setting in settings:
                same = [t for t in study["trials"] if t["variation"] == name and t["setting"] == setting]
                cells.append(_robust_cell(same))
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    return table


def _robust_cell(trials: list[dict[str, Any]]) -> str:
    if not trials:
        return ""
    variation = statistics.mean(100 * t["total_variation"] for t in trials)
    errors, plain = (statistics.mean(t["errors"][m] - t["errors"]["teacher"] for t in trials) for m in ("N", "P"))
    sets = [name for name in trials[0] if name not in _NOT_SETS]
    gaps = [statistics.mean(t[name]["N"] - t[name]["teacher"] for t in trials) for name in sets]
    # Nothing is told apart by a precision that is the same for the middle eighty percent.
    lost = sum(t["log_precision"][-1] - t["log_precision"][0] < _SAME for t in trials)
    cell = f"{variation:.1f}; {errors:+.1f} ({plain:+.1f}); {statistics.mean(gaps):+.1f} ({min(gaps):+.1f})"
    if "balanced_accuracy" in trials[0]:  # looked at since the sixth round
        kept = statistics.mean(t["balanced_accuracy"][0] - t["balanced_accuracy"][1] for t in trials)
        cell = f"{kept:+.1f}; {cell}"
    if "coverage" in trials[0]:  # the first rounds did not look at intervals
        cell += f"; {statistics.mean(t['coverage'] for t in trials):.0f} %"
    return f"{cell}, precision lost on {lost} of {len(trials)}" if lost else cell


def fidelity_bench(results: Path) -> str:
    """How long a report takes."""
    (found,) = read(results, "bench-fidelity.json", "python -m benchmarks.fidelity")
    machine = found["environment"]
    return (
        f"A report on {found['inputs']:,} inputs with {found['particles']} particles and {found['classes']} classes takes "
        f"{found['seconds']:.0f} s ({machine['threads']} threads, {machine['cpu']}; `python -m benchmarks.fidelity`)."
    )


def robust_scores_table(results: Path) -> str:
    """What novelty could be made of, for the students of the first round that were made by the recipe as it was."""
    (study,) = read(
        results, "study-robust.json", "python -m reproduction.studies.robust_recipe --device cuda --jobs 15"
    )
    trials = {t["setting"]: t for t in study["trials"] if t["variation"] == "default"}
    settings = {name: words for name, words in _ROBUST_SETTINGS.items() if name in trials}
    lines = ["| score | " + " | ".join(settings.values()) + " |", "| --- |" + " --- |" * len(settings)]
    ranked = []
    for name in trials["mc_dropout"]["errors"]:
        if name != "teacher" and "log alpha" not in name:
            cells, lost = [], 0.0
            for setting in settings:
                trial = trials[setting]
                sets = [each for each in trial if each not in _NOT_SETS]
                errors = trial["errors"][name] - trial["errors"]["teacher"]
                gaps = [trial[each][name] - trial[each]["teacher"] for each in sets]
                lost += sum(min(0.0, gap) for gap in [errors, *gaps])
                cells.append(f"{errors:+.1f}; {statistics.mean(gaps):+.1f} ({min(gaps):+.1f})")
            ranked.append((lost, f"| {name} | " + " | ".join(cells) + " |"))
    return "\n".join([*lines, *(line for _, line in sorted(ranked, reverse=True))])


def small_recipe_table(results: Path) -> str:
    """Objectives on small digits: distances to the teacher, and the held-out digit."""
    (study,) = read(results, "study-small-recipe.json", "python -m reproduction.studies.small_recipe")
    head = (
        "objective",
        "amortisation",
        "total variation",
        "MI, rank correlation",
        "ECE",
        "coverage",
        "N less teacher",
        "E",
        "C",
    )
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " --- |" * (len(head) - 1)]
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
        for measure in ("novelty", "predictive_entropy", "negative_log_precision"):
            gaps = [run["auroc"][measure] - run["teacher"] for run in runs]
            cells.append(f"{statistics.mean(gaps):+.1f} ({min(gaps):+.1f} to {max(gaps):+.1f})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    digits = ", ".join(str(d) for d in dict.fromkeys(run["held_out"] for run in study["runs"]))
    return "\n".join(lines) + f"\n\nDigits left out in turn: {digits}."


def calibration_table(results: Path) -> str:
    """How many inputs novelty is calibrated on, and what that does to p-values and to ranks."""
    (study,) = read(results, "study-novelty-calibration.json", "python -m reproduction.studies.novelty_calibration")
    sets = [name for name in study["runs"][0]["auroc"] if "no tail" not in name]
    head = ["inputs", "p below 1 %", "p below 5 %", *sets]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " --- |" * (len(head) - 1)]
    for run in study["runs"]:
        rates = ["{:.1f} ({:.1f} to {:.1f})".format(*run["flagged"][rate]) for rate in ("0.01", "0.05")]
        ranks = [f"{run['auroc'][name]:.1f} ({run['auroc'][name + ', no tail']:.1f})" for name in sets]
        lines.append("| " + " | ".join([str(run["size"]), *rates, *ranks]) + " |")
    return "\n".join(lines)


def class_counts_table(results: Path) -> str:
    """The same problem with fewer classes: at which number of them an objective loses the mean."""
    counts = read(
        results, "study-many-classes-*.json", "python -m reproduction.studies.many_classes --classes 100 --steps 1500"
    )
    lines = [
        "| classes | objective | total variation | same class | E | MI | log-precision (best) |",
        "| --- |" + " --- |" * 6,
    ]
    for study in sorted(counts, key=lambda each: each["classes"]):
        best, *runs = study["runs"]
        for run in runs:
            seen = run["fresh"]
            cells = [f"{seen['total_variation']:.2f}", f"{seen['same_class']:.0f}"]
            cells += [f"{seen['ranks'][name]:.2f}" for name in ("entropy", "information")]
            cells.append(f"{seen['log_precision']:.1f} ({best['fresh']['log_precision']:.1f})")
            lines.append(f"| {study['classes']} | {run['objective']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def many_classes_table(results: Path) -> str:
    """Objectives with a thousand classes: how near means, classes and rankings are, on fresh inputs and further out."""
    (study,) = read(results, "study-many-classes.json", "python -m reproduction.studies.many_classes --device cuda")
    head = [
        "objective",
        *(f"{what}{where}" for where in ("", ", stretched") for what in ("total variation", "same class", "E", "MI")),
        "log-precision",
        "seconds",
    ]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " --- |" * (len(head) - 1)]
    for run in study["runs"]:
        cells = []
        for where in ("fresh", "stretched"):
            seen = run[where]
            cells += [f"{seen['total_variation']:.2f}", f"{seen['same_class']:.0f}"]
            cells += [f"{seen['ranks'][name]:.2f}" for name in ("entropy", "information")]
        best = f" ({run['log_precision']:.1f})" if "log_precision" in run else ""
        cells += [f"{run['fresh']['log_precision']:.1f}{best}", f"{run['seconds']:.0f}"]
        name = f"{run['objective']}, {run['steps']} steps" if run.get("steps") else run["objective"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
