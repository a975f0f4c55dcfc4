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
    """The demo over several seeds, with accuracy and speed."""
    runs = _read(results, "demo-seed*.json", "for s in 0 1 2 3 4; do opu demo --seed $s --out runs/demo-$s; done")
    accuracy = {who: _spread([run["accuracy"][who] for run in runs]) for who in ("teacher", "student")}
    speed, vectorised = (statistics.median(run["speedup"][how] for run in runs) for how in ("naive_loop", "vectorised"))
    threads = runs[0]["environment"]["threads"]
    return (
        f"{_detection_table(runs)}\n\n"
        f"Accuracy: teacher {accuracy['teacher']}, student {accuracy['student']}. One pass of the student is {speed:.0f} "
        f"times as fast as {runs[0]['speedup']['num_particles']} passes in a loop and {vectorised:.0f} times as fast as the "
        f"same passes vectorised (medians; {threads} thread{'' if threads == 1 else 's'}, {runs[0]['environment']['cpu']})."
    )


def mnist_small_table(results: Path) -> str:
    """A thin student on few digits, with accuracy and the rate of false alarms."""
    (study,) = _read(results, "study-mnist-small.json", "python -m benchmarks.mnist_small")
    runs = study["runs"]
    accuracy = {who: _spread([run["accuracy"][who] for run in runs]) for who in ("teacher", "student")}
    return (
        f"{_detection_table(runs)}\n\n"
        f"Accuracy: teacher {accuracy['teacher']}, student {accuracy['student']}. Fresh digits with a p-value below 5 %: "
        f"{_spread([run['flagged_at_5_percent'] for run in runs])} %."
    )


def _detection_table(runs: list[dict[str, Any]]) -> str:
    rows = [
        f"| AUROC, mean of {len(runs)} seeds (range) | teacher, best of E, P, MI | **student N** | student E | student C | "
        "best trivial |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    cells = {"its own errors": [_cells(run["misclassification"]) for run in runs]}
    for name in runs[0]["ood"]:
        cells[name.replace("_", " ")] = [_cells(run["ood"][name]) for run in runs]
    rows += [f"| {name} | " + " | ".join(map(_spread, zip(*each, strict=True))) + " |" for name, each in cells.items()]
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
    """AUROC of N by the share of false alarms that C may cause, on digits held out for development."""
    return _shares(_read(results, "study-novelty-shares.json", "python -m benchmarks.novelty_shares"))


def fresh_shares_table(results: Path) -> str:
    """The same on digits that played no part in the choice."""
    return _shares(
        _read(results, "study-novelty-fresh.json", "python -m benchmarks.novelty_shares --held-out 0 2 4 6 7")
    )


def _shares(studies: list[dict[str, Any]]) -> str:
    (study,) = studies
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


def first_steps_table(results: Path) -> str:
    """Accuracy over the first steps of a distillation, and how low the precision falls."""
    (study,) = _read(results, "study-first-steps.json", "python -m benchmarks.first_steps")
    steps = (0, 1, 2, 10, 40)
    head = "| data, divergence, preset | " + " | ".join(f"accuracy after {n}" if n else "before" for n in steps)
    rows = [head + " | lowest log-precision |", "| --- |" + " --- |" * (len(steps) + 1)]
    for case in study["cases"]:
        traces = [run["trace"] for run in case["runs"]]
        cells = [_spread([trace[n]["accuracy"] for trace in traces]) for n in steps]
        lowest = _spread([min(each["log_precision"] for each in trace) for trace in traces])
        name = f"{case['domain']}, {case['divergence']}, {case['preset']}"
        rows.append(f"| {name} | " + " | ".join([*cells, lowest]) + " |")
    return "\n".join(rows)


def critic_rate_table(results: Path) -> str:
    """A student of SGLD by the earth mover's distance: what rate and length do, on held-out digits."""
    (study,) = _read(results, "study-critic-rate.json", "python -m benchmarks.critic_rate --device cuda")
    rows = ["| rate | schedule | epochs | accuracy | errors, AUROC | median log-precision |", "| --- |" + " --- |" * 5]
    trials = study["trials"]
    named = [(["start", "", ""], trials[0]["before"])]
    named += [([f"{t['rate']:g}", t["schedule"], str(t["epochs"])], t["after"]) for t in trials]
    for name, seen in named:
        cells = [f"{seen['accuracy']:.1f}", f"{seen['errors']:.1f}", f"{seen['log_precision']:.1f}"]
        rows.append("| " + " | ".join([*name, *cells]) + " |")
    return "\n".join(rows)


def prior_network_table(results: Path) -> str:
    """Settings of prior networks, on held-out digits."""
    (study,) = _read(results, "study-prior-network.json", "python -m benchmarks.prior_network --device cuda")
    rows = [
        "| network | target precision | cross-entropy's weight | rate | accuracy | errors, AUROC | factor noise, AUROC |",
        "| --- |" + " --- |" * 6,
    ]
    for trial in study["trials"]:
        by = trial["settings"]
        name = [trial["network"], *(f"{by[key]:g}" for key in ("precision", "cross_entropy", "learning_rate"))]
        cells = [_spread([run[key] for run in trial["runs"]]) for key in ("accuracy", "errors", "factor_noise")]
        rows.append("| " + " | ".join([*name, *cells]) + " |")
    return "\n".join(rows)


def one_seed_seconds(results: Path) -> str:
    """How long one seed of a table takes, alone on a machine."""
    (run,) = _read(results, "mnist-one-seed.json", "opu reproduce mnist --seeds 5 --device cuda, timed")
    longest = sorted(run["rows"], key=lambda name: -run["rows"][name])[:3]
    return (
        f"One seed of all {len(run['rows'])} MNIST rows, alone on one {run['environment']['gpu']}: {run['seconds']} s. "
        "The longest: " + ", ".join(f"{name} ({run['rows'][name]:.0f} s)" for name in longest) + "."
    )


# The README shows few of the rows: the divergence that the paper recommends, our own recipe, and the baselines.
_SHORT: tuple[str, ...] = ("MCDP-MMD", "OPU-MCDP-MMD (paper)", "OPU-MCDP-MMD (paper-sgd)", "OPU-MCDP (robust)")
_SHORT += ("SGLD-MMD", "OPU-SGLD-MMD (paper)", "OPU-SGLD-MMD (paper-sgd)", "OPU-SGLD (robust)")
_SHORT += ("BDK-SGLD (online)", "BDK-SGLD (broadened)", "BDK-DIR-SGLD (broadened)", "DPN (VGG)")
_SUMMARY: tuple[str, ...] = (
    "MCDP-KL: best of E, P, MI",
    "OPU-MCDP-MMD (paper-sgd): C",
    "OPU-MCDP (robust): N",
    "BDK-MCDP (broadened): E",
)
_SUMMARY += (
    "SGLD-KL: best of E, P, MI",
    "OPU-SGLD-MMD (paper-sgd): C",
    "OPU-SGLD (robust): N",
    "BDK-SGLD (broadened): E",
)
_SUMMARY += ("DPN (VGG): E", "best trivial detector")


def reproduced(table: str, part: str, only: tuple[str, ...] | None = None) -> Callable[[Path], str]:
    """A table of a reproduced experiment, ``beside`` the paper's or ``detection`` by fixed scores: all its rows, or some."""

    def render_it(results: Path) -> str:
        from opu.experiments.table import as_markdown, beside_the_paper, detection

        command = f"opu reproduce {table} --seeds 0,1,2 --out runs/reproduce, and copy the files it leaves there"
        records = _read(results, f"{table}-full-seed*.json", command)
        (times,) = _read(results, f"{table}-full-times.json", command)
        header, rows = beside_the_paper(records, times) if part == "beside" else detection(records)
        lines = as_markdown(header, [row for row in rows if only is None or row[0] in only])
        made = records[0]["environment"]
        seeds = ", ".join(str(record["seed"]) for record in records)
        return (
            f"{lines}\n\nDomain `{records[0]['domain']}`, seeds {seeds}; mean ± standard deviation over seeds; "
            f"{made['gpu'] or made['cpu']}, torch {made['versions']['torch']}."
        )

    return render_it


TABLES: dict[str, Callable[[Path], str]] = {
    "demo": demo_table,
    "bench-objectives": bench_table,
    "novelty-shares": shares_table,
    "novelty-fresh": fresh_shares_table,
    "mnist-small": mnist_small_table,
    "first-steps": first_steps_table,
    "critic-rate": critic_rate_table,
    "prior-network": prior_network_table,
    "mnist-one-seed": one_seed_seconds,
    "mnist-beside": reproduced("mnist", "beside"),
    "mnist-beside-short": reproduced("mnist", "beside", _SHORT),
    "mnist-detection": reproduced("mnist", "detection"),
    "mnist-detection-short": reproduced("mnist", "detection", _SUMMARY),
    "emnist-beside": reproduced("emnist", "beside"),
    "emnist-detection": reproduced("emnist", "detection"),
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
