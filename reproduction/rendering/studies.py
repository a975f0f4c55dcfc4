"""The tables of ``docs/log.md``: one function for each study."""

import statistics
from pathlib import Path
from typing import Any

from reproduction.rendering.shared import detection_table, read, spread


def mnist_small_table(results: Path) -> str:
    """A thin student on few digits, with accuracy and the rate of false alarms."""
    (study,) = read(results, "study-mnist-small.json", "python -m reproduction.studies.mnist_small")
    runs = study["runs"]
    accuracy = {who: spread([run["accuracy"][who] for run in runs]) for who in ("teacher", "student")}
    return (
        f"{detection_table(runs)}\n\n"
        f"Accuracy: teacher {accuracy['teacher']}, student {accuracy['student']}. Fresh digits with a p-value below 5 %: "
        f"{spread([run['flagged_at_5_percent'] for run in runs])} %."
    )


def bench_table(results: Path) -> str:
    """Exact against sampled MMD."""
    (bench,) = read(results, "bench-objectives.json", "python -m benchmarks.objectives")
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
    return _shares(read(results, "study-novelty-shares.json", "python -m reproduction.studies.novelty_shares"))


def fresh_shares_table(results: Path) -> str:
    """The same on digits that played no part in the choice."""
    return _shares(
        read(results, "study-novelty-fresh.json", "python -m reproduction.studies.novelty_shares --held-out 0 2 4 6 7")
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
    (study,) = read(results, "study-first-steps.json", "python -m reproduction.studies.first_steps")
    steps = (0, 1, 2, 10, 40)
    head = "| data, divergence, preset | " + " | ".join(f"accuracy after {n}" if n else "before" for n in steps)
    rows = [head + " | lowest log-precision |", "| --- |" + " --- |" * (len(steps) + 1)]
    for case in study["cases"]:
        traces = [run["trace"] for run in case["runs"]]
        cells = [spread([trace[n]["accuracy"] for trace in traces]) for n in steps]
        lowest = spread([min(each["log_precision"] for each in trace) for trace in traces])
        name = f"{case['domain']}, {case['divergence']}, {case['preset']}"
        rows.append(f"| {name} | " + " | ".join([*cells, lowest]) + " |")
    return "\n".join(rows)


def critic_rate_table(results: Path) -> str:
    """A student of SGLD by the earth mover's distance: what rate and length do, on held-out digits."""
    (study,) = read(results, "study-critic-rate.json", "python -m reproduction.studies.critic_rate --device cuda")
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
    (study,) = read(results, "study-prior-network.json", "python -m reproduction.studies.prior_network --device cuda")
    rows = [
        "| network | target precision | cross-entropy's weight | rate | accuracy | errors, AUROC | factor noise, AUROC |",
        "| --- |" + " --- |" * 6,
    ]
    for trial in study["trials"]:
        by = trial["settings"]
        name = [trial["network"], *(f"{by[key]:g}" for key in ("precision", "cross_entropy", "learning_rate"))]
        cells = [spread([run[key] for run in trial["runs"]]) for key in ("accuracy", "errors", "factor_noise")]
        rows.append("| " + " | ".join([*name, *cells]) + " |")
    return "\n".join(rows)


def bdk_table(results: Path) -> str:
    """Settings of BDK and BDK-Dir, on held-out digits and on strangers that no table has."""
    (study,) = read(results, "study-bdk.json", "python -m reproduction.studies.bdk --device cuda --jobs 11")
    rows = ["| row | change | accuracy | errors, AUROC | strangers, AUROC |", "| --- |" + " --- |" * 4]
    for row, change in sorted({(t["row"], t["change"]) for t in study["trials"]}):
        same = [t for t in study["trials"] if (t["row"], t["change"]) == (row, change)]
        found = [[statistics.mean(t["strangers"].values()) for t in same]]
        cells = [statistics.mean(each) for each in ([[t[key] for t in same] for key in ("accuracy", "errors")] + found)]
        chosen = "**" if study["chosen"][row] == change else ""
        rows.append(f"| {row} | {chosen}{change}{chosen} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    return "\n".join(rows)


def steady_kl_table(results: Path) -> str:
    """How far students of logistic regressions stay from the best Dirichlets, with and without a bound on gradients."""
    (study,) = read(results, "study-steady-kl.json", "python -m reproduction.studies.clipped_kl")
    names = list(dict.fromkeys(run["objective"] for run in study["runs"]))
    head = " | ".join(f"{name}, {where}" for where in ("held out", "augmented") for name in names)
    rows = [f"| table | {head} |", "| --- |" + " --- |" * (2 * len(names))]
    for table in dict.fromkeys(run["table"] for run in study["runs"]):
        runs = [run for run in study["runs"] if run["table"] == table]
        cells = [
            f"{statistics.mean(run[where] for run in runs if run['objective'] == name):.2f}"
            for where in ("held_out", "augmented")
            for name in names
        ]
        rows.append(f"| {table} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def tabular_search_table(results: Path) -> str:
    """What the precision of a student says of the paper's strangers, by link, scaling and optimiser."""
    (study,) = read(results, "study-tabular-search.json", "python -m reproduction.studies.tabular_search")
    rows = ["| data | columns | link | optimiser | accuracy | strangers by C |", "| --- |" + " --- |" * 5]
    cases: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for trial in study["trials"]:
        by = trial["recipe"]
        scaled, optimiser = "standardised" if by["standardise"] else "as is", "SGD" if by["sgd"] else "Adam"
        name = (trial["data"], scaled, by["link"], optimiser)
        cases.setdefault(name, []).append(trial)
    for case, trials in cases.items():
        cells = [
            ", ".join(f"{t[key]:.1f}" if key in t else "diverged" for t in trials)
            for key in ("accuracy", "strangers_C")
        ]
        rows.append(f"| {' | '.join([*case, *cells])} |")
    return "\n".join(rows)


def tabular_novelty_table(results: Path) -> str:
    """Candidate scores for rows of a table: how far from the teacher's best measure, over all tables and strangers."""
    (study,) = read(results, "study-tabular-novelty.json", "python -m reproduction.studies.tabular_novelty")
    by_case: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in study["runs"]:
        by_case.setdefault((run["teacher"], run["table"]), []).append(run)
    gaps: dict[str, list[float]] = {}
    for runs in by_case.values():
        for strangers in runs[0]["sets"]:
            means = {
                rule: statistics.mean(run["sets"][strangers][rule] for run in runs)
                for rule in runs[0]["sets"][strangers]
            }
            best = max(value for rule, value in means.items() if rule.startswith("teacher "))
            for rule, value in means.items():
                gaps.setdefault(rule, []).append(value - best)
    rows = [
        "| score | mean gap to the teacher's best | mean of the gaps below 0 | worst gap |",
        "| --- | --- | --- | --- |",
    ]
    ranked = sorted(gaps, key=lambda rule: -statistics.mean(min(gap, 0.0) for gap in gaps[rule]))
    for rule in ranked:
        short = statistics.mean(min(gap, 0.0) for gap in gaps[rule])
        name = rule.replace("_", " ")
        rows.append(f"| {name} | {statistics.mean(gaps[rule]):+.1f} | {short:.1f} | {min(gaps[rule]):.1f} |")
    cases = "; ".join(f"{teacher} on {table} ({len(runs)} seeds)" for (teacher, table), runs in by_case.items())
    return "\n".join(rows) + f"\n\nOver four kinds of strangers each: {cases}."
