"""Tables in Markdown from result files, written between markers in the documents; no number is typed by hand.

A document holds ``<!-- table: NAME -->`` and ``<!-- end -->``; what stands between them is rendered from ``results/``.
"""

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEACHER_MEASURES = ("predictive_entropy", "least_confidence", "mutual_information")
_BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(text: str, results: Path) -> str:
    """A document with all its tables made anew."""

    def fill(block: re.Match[str]) -> str:
        name = block[2]
        if name not in TABLES:
            raise ValueError(f"a document asks for the table {name!r}; those that exist are {', '.join(TABLES)}.")
        return f"{block[1]}{TABLES[name](results)}\n{block[3]}"

    return _BLOCK.sub(fill, text)


def demo_table(results: Path) -> str:
    """The demo over several seeds: AUROC of the teacher's best measure, of the student's novelty, of trivial detectors."""
    runs = _read(results, "demo-seed*.json", "for s in 0 1 2 3 4; do opu demo --seed $s --out runs/demo-$s; done")
    rows = [
        f"| AUROC, mean of {len(runs)} seeds (range) | teacher, best of E, P, MI | **student N** | student E | student C | "
        "best trivial |",
    ]
    rows.append("| --- | --- | --- | --- | --- | --- |")
    tables: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "its own errors": lambda run: run["misclassification"]
    }
    for name in runs[0]["ood"]:
        tables[name.replace("_", " ")] = lambda run, name=name: run["ood"][name]  # type: ignore[misc]
    for name, pick in tables.items():
        cells = [_cells(pick(run)) for run in runs]
        rows.append(f"| {name} | " + " | ".join(_spread(column) for column in zip(*cells, strict=True)) + " |")
    accuracy = {who: _spread([run["accuracy"][who] for run in runs]) for who in ("teacher", "student")}
    speed = [run["speedup"]["naive_loop"] for run in runs]
    vectorised = [run["speedup"]["vectorised"] for run in runs]
    rows += [
        "",
        f"Accuracy: teacher {accuracy['teacher']}, student {accuracy['student']}. One pass of the student is "
        f"{statistics.median(speed):.0f} times as fast as {runs[0]['speedup']['num_particles']} passes in a loop and "
        f"{statistics.median(vectorised):.0f} times as fast as the same passes vectorised (medians; "
        f"{runs[0]['environment']['threads']} threads, {runs[0]['environment']['cpu']}).",
    ]
    return "\n".join(rows)


def bench_table(results: Path) -> str:
    """Exact against sampled MMD."""
    (bench,) = _read(results, "bench-objectives.json", "python -m benchmarks.objectives")
    size = bench["settings"]
    rows = [
        f"| {size['inputs']} inputs x {size['particles']} particles x {size['classes']} classes | sampled MMD | exact MMD | "
        "ratio (range) | exact value | sampled value |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in bench["kernels"].items():
        low, high = row["ratio_range"]
        rows.append(
            f"| {name}, {row['terms']} terms | {1e3 * row['sampled_seconds']:.0f} ms | {1e3 * row['exact_seconds']:.1f} ms | "
            f"**{row['ratio']:.0f}x** ({low:.0f} to {high:.0f}) | {row['exact_value']:.5f} | "
            f"{row['sampled_value']:.5f} +- {row['standard_error']:.5f} |"
        )
    return "\n".join(rows)


def shares_table(results: Path) -> str:
    """How the share of false alarms that C may cause changes the AUROC of N on classes held out for development."""
    (study,) = _read(results, "study-novelty-shares.json", "python -m benchmarks.novelty_shares")
    shares = list(study["runs"][0]["novelty"])
    rows = [
        "| held-out class, seed | teacher | student E | student C | " + " | ".join(f"share {s}" for s in shares) + " |"
    ]
    rows.append("| --- |" + " --- |" * (3 + len(shares)))
    for run in study["runs"]:
        cells = [run["teacher"], run["entropy"], run["precision"], *run["novelty"].values()]
        rows.append(f"| {run['held_out']}, {run['seed']} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |")
    means = [[run["teacher"], run["entropy"], run["precision"], *run["novelty"].values()] for run in study["runs"]]
    rows.append("| **mean** | " + " | ".join(f"{statistics.mean(c):.1f}" for c in zip(*means, strict=True)) + " |")
    return "\n".join(rows)


TABLES: dict[str, Callable[[Path], str]] = {
    "demo": demo_table,
    "bench-objectives": bench_table,
    "novelty-shares": shares_table,
}


def _read(results: Path, pattern: str, command: str) -> list[dict[str, Any]]:
    paths = sorted(results.glob(pattern))
    if not paths:
        raise ValueError(f"there is no {pattern} in {results}; make it with: {command}.")
    return [json.loads(path.read_text()) for path in paths]


def _cells(row: dict[str, Any]) -> list[float | None]:
    def auroc(model: str, measure: str) -> float | None:
        entry = row[model][measure]
        return None if entry is None else float(entry["auroc"])

    def best(model: str, names: Any) -> float | None:
        values = [value for value in (auroc(model, name) for name in names) if value is not None]
        return max(values, default=None)

    student = [auroc("student", m) for m in ("novelty", "predictive_entropy", "negative_log_precision")]
    return [best("teacher", TEACHER_MEASURES), *student, best("trivial", row["trivial"])]


def _spread(values: Any) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "no errors"
    return f"{statistics.mean(known):.1f} ({min(known):.1f} to {max(known):.1f})"
