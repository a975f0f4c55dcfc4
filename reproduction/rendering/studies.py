"""The tables of the studies behind baselines, presets and novelty: one function for each study."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opu.tables import markdown_table
from reproduction.cells import mean_and_range
from reproduction.rendering.experiments import accuracies, detection_table
from reproduction.results import read_one

Record = dict[str, Any]


def _study(results: Path, name: str, options: str = "") -> Record:
    module = name.replace("-", "_")
    return read_one(results, f"study-{name}.json", f"python -m reproduction.studies.{module}{options} --record")


def mnist_small(results: Path) -> str:
    """A thin student on few digits, with accuracy and the rate of false alarms."""
    runs = _study(results, "mnist-small")["runs"]
    flagged = mean_and_range([run["flagged_at_5_percent"] for run in runs])
    return f"{detection_table(runs)}\n\n{accuracies(runs)} Fresh digits with a p-value below 5 %: {flagged} %."


def novelty_shares(results: Path) -> str:
    """AUROC of N by the fraction s of false alarms that C may cause, on digits held out for development."""
    return _shares(_study(results, "novelty-shares"))


def novelty_fresh(results: Path) -> str:
    """The same on digits that played no part in the choice."""
    command = (
        "python -m reproduction.studies.novelty_shares --held-out 0 2 4 6 7 --out results/study-novelty-fresh.json"
    )
    return _shares(read_one(results, "study-novelty-fresh.json", command))


def _shares(study: Record) -> str:
    shares = [f"s = {share}" for share in study["runs"][0]["novelty"]]
    cells = [[run["teacher"], run["entropy"], run["precision"], *run["novelty"].values()] for run in study["runs"]]
    names = [f"{run['held_out']}, {run['seed']}" for run in study["runs"]]
    cells.append([statistics.mean(column) for column in zip(*cells, strict=True)])
    lines = [[name, *(f"{cell:.1f}" for cell in line)] for name, line in zip([*names, "**mean**"], cells, strict=True)]
    return markdown_table(["held-out class, seed", "teacher", "student E", "student C", *shares], lines)


def novelty_calibration(results: Path) -> str:
    """How many inputs novelty is calibrated on, and what that does to p-values and to ranks."""
    study = _study(results, "novelty-calibration")
    sets = [name for name in study["runs"][0]["auroc"] if "no tail" not in name]
    lines = []
    for run in study["runs"]:
        rates = ["{:.1f} ({:.1f} to {:.1f})".format(*run["flagged"][rate]) for rate in ("0.01", "0.05")]
        ranks = [f"{run['auroc'][name]:.1f} ({run['auroc'][name + ', no tail']:.1f})" for name in sets]
        lines.append([str(run["size"]), *rates, *ranks])
    return markdown_table(["inputs", "p below 1 %", "p below 5 %", *sets], lines)


def first_steps(results: Path) -> str:
    """Accuracy over the first steps of a distillation, and how low the precision falls."""
    steps = (0, 1, 2, 10, 40)
    header = ["data, divergence, preset", *(f"accuracy after {n}" if n else "before" for n in steps)]
    lines = []
    for case in _study(results, "first-steps")["cases"]:
        traces = [run["trace"] for run in case["runs"]]
        cells = [mean_and_range([trace[n]["accuracy"] for trace in traces]) for n in steps]
        lowest = mean_and_range([min(each["log_precision"] for each in trace) for trace in traces])
        lines.append([f"{case['domain']}, {case['divergence']}, {case['preset']}", *cells, lowest])
    return markdown_table([*header, "lowest log-precision"], lines)


def critic_rate(results: Path) -> str:
    """A student of SGLD by the earth mover's distance: what rate and length do, on held-out digits."""
    trials = _study(results, "critic-rate", " --device cuda")["trials"]
    named = [(["start", "", ""], trials[0]["before"])]
    named += [([f"{t['rate']:g}", t["schedule"], str(t["epochs"])], t["after"]) for t in trials]
    keys = ("accuracy", "errors", "log_precision")
    lines = [[*name, *(f"{seen[key]:.1f}" for key in keys)] for name, seen in named]
    return markdown_table(["rate", "schedule", "epochs", "accuracy", "errors, AUROC", "median log-precision"], lines)


def prior_network(results: Path) -> str:
    """Settings of prior networks, on held-out digits."""
    header = ["network", "target precision", "cross-entropy's weight", "rate"]
    lines = []
    for trial in _study(results, "prior-network", " --device cuda")["trials"]:
        settings = [f"{trial['settings'][key]:g}" for key in ("precision", "cross_entropy", "learning_rate")]
        keys = ("accuracy", "errors", "factor_noise")
        lines.append(
            [trial["network"], *settings, *(mean_and_range([run[key] for run in trial["runs"]]) for key in keys)]
        )
    return markdown_table([*header, "accuracy", "errors, AUROC", "factor noise, AUROC"], lines)


def bdk(results: Path) -> str:
    """Settings of BDK and BDK-Dir, on held-out digits and on OOD sets that no table has."""
    study = _study(results, "bdk", " --device cuda --jobs 11")
    lines = []
    for row, change in sorted({(trial["row"], trial["change"]) for trial in study["trials"]}):
        same = [trial for trial in study["trials"] if (trial["row"], trial["change"]) == (row, change)]
        columns = [[t["accuracy"] for t in same], [t["errors"] for t in same]]
        columns.append([statistics.mean(t["ood"].values()) for t in same])
        bold = "**" if study["chosen"][row] == change else ""
        lines.append([row, f"{bold}{change}{bold}", *(f"{statistics.mean(column):.2f}" for column in columns)])
    return markdown_table(["row", "change", "accuracy", "errors, AUROC", "OOD, AUROC"], lines)


def clipped_kl(results: Path) -> str:
    """How far students of logistic regressions stay from the best Dirichlets, with and without a bound on gradients."""
    runs = _study(results, "clipped-kl")["runs"]
    names = dict.fromkeys(run["objective"] for run in runs)
    columns = {f"{name}, {words}": (name, key) for key, words in _PLACES.items() for name in names}
    lines = []
    for table in dict.fromkeys(run["table"] for run in runs):
        same = [run for run in runs if run["table"] == table]
        found = [[run[key] for run in same if run["objective"] == name] for name, key in columns.values()]
        lines.append([table, *(f"{statistics.mean(values):.2f}" for values in found)])
    return markdown_table(["table", *columns], lines)


_PLACES = {"held_out": "held out", "augmented": "augmented"}


def tabular_search(results: Path) -> str:
    """What the precision of a student says of the paper's OOD inputs, by link, scaling and optimiser."""
    cases: dict[tuple[str, ...], list[Record]] = {}
    for trial in _study(results, "tabular-search")["trials"]:
        by = trial["recipe"]
        scaled, optimiser = "standardised" if by["standardise"] else "as is", "SGD" if by["sgd"] else "Adam"
        cases.setdefault((trial["data"], scaled, by["link"], optimiser), []).append(trial)
    lines = [
        [
            *case,
            *(", ".join(f"{t[key]:.1f}" if key in t else "diverged" for t in same) for key in ("accuracy", "ood_C")),
        ]
        for case, same in cases.items()
    ]
    return markdown_table(["data", "columns", "link", "optimiser", "accuracy", "OOD by C"], lines)


def tabular_novelty(results: Path) -> str:
    """Candidate scores for rows of a table: how far from the teacher's best measure, over all tables and OOD sets."""
    by_case: dict[tuple[str, str], list[Record]] = {}
    for run in _study(results, "tabular-novelty")["runs"]:
        by_case.setdefault((run["teacher"], run["table"]), []).append(run)
    gaps: dict[str, list[float]] = {}
    for runs in by_case.values():
        for ood, rules in runs[0]["sets"].items():
            means = {rule: statistics.mean(run["sets"][ood][rule] for run in runs) for rule in rules}
            best = max(value for rule, value in means.items() if rule.startswith("teacher "))
            for rule, value in means.items():
                gaps.setdefault(rule, []).append(value - best)
    losses = {rule: statistics.mean(min(gap, 0.0) for gap in each) for rule, each in gaps.items()}
    lines = [
        [rule.replace("_", " "), f"{statistics.mean(gaps[rule]):+.1f}", f"{losses[rule]:.1f}", f"{min(gaps[rule]):.1f}"]
        for rule in sorted(gaps, key=lambda rule: -losses[rule])
    ]
    header = ["score", "mean gap to the teacher's best", "mean of the gaps below 0", "worst gap"]
    cases = "; ".join(f"{teacher} on {table} ({len(runs)} seeds)" for (teacher, table), runs in by_case.items())
    return f"{markdown_table(header, lines)}\n\nOver four OOD sets each: {cases}."


def batch_norm(results: Path) -> str:
    """Students of a network with batch norm, by where they start and by what their statistics do; means over seeds."""
    by_case: dict[str, list[Record]] = {}
    for run in _study(results, "batch-norm")["runs"]:
        by_case.setdefault(run["variation"], []).append(run)
    columns: dict[str, tuple[str, Callable[[Record], float]]] = {
        "accuracy lost, points": (".2f", lambda run: run["accuracy"]["teacher"] - run["accuracy"]["student"]),
        "KL from the teacher's mean": (".4f", lambda run: run["kl"]),
        "median log-precision": (".2f", lambda run: run["log_precision"]["student"]),
        "that of the best Dirichlets": (".2f", lambda run: run["log_precision"]["best fit"]),
        "rank correlation with it": (".2f", lambda run: run["rank_correlation"]),
        "held-out classes, AUROC of N": (".1f", lambda run: run["auroc"]["student"]["novelty"]),
        "of C": (".1f", lambda run: run["auroc"]["student"]["negative_log_precision"]),
        "of the teacher's best": (".1f", lambda run: max(run["auroc"]["teacher"].values())),
    }
    lines = [
        [case, *(format(statistics.mean(map(value, runs)), digits) for digits, value in columns.values())]
        for case, runs in by_case.items()
    ]
    return markdown_table(["start, batch norm", *columns], lines)


def selection(results: Path) -> str:
    """Rules that choose an epoch, over small runs: how often what they keep is worse or better than the last epoch."""
    study = _study(results, "selection")
    runs, measures = study["runs"], [key for key in study["runs"][0]["rules"]["last"]["mean"] if key != "errors"]
    kl = measures[1]
    lines = []
    for rule in (name for name in runs[0]["rules"] if name != "last"):
        found = [run["rules"][rule] for run in runs]
        early = min(found[i]["epoch"] / run["epochs"] for i, run in enumerate(runs))
        counts = [f"{_beyond_noise(found, key, 1)} / {_beyond_noise(found, key, -1)}" for key in measures]
        last = [run["rules"]["last"]["mean"][kl] for run in runs]
        worst = max(each["mean"][kl] / before for each, before in zip(found, last, strict=True))
        other = sum(each["epoch"] < run["epochs"] for each, run in zip(found, runs, strict=True))
        lines.append([rule, str(other), f"{100 * early:.0f}", *counts, f"{worst:.2f}"])
    header = ["epoch kept", "not the last", "earliest, % of the run", *(f"{key}: worse / better" for key in measures)]
    shaken = [run["rules"] for run in study["shaken"]]
    means = [statistics.mean(run[rule]["mean"][kl] for run in shaken) for rule in ("ours", "last")]
    caption = (
        f"{len(runs)} runs; of {len(shaken)} more, whose weights are shaken in the second half, our rule keeps the epochs "
        f"{', '.join(str(run['ours']['epoch']) for run in shaken)} of {study['shaken'][0]['epochs']}, with a KL of "
        f"{means[0]:.2f} instead of the last epoch's {means[1]:.1f}."
    )
    return f"{markdown_table([*header, 'largest KL, times that of the last'], lines)}\n\n{caption}"


def _beyond_noise(found: list[Record], key: str, sign: int) -> int:
    """In how many runs a rule's epoch differs from the last by more than two standard errors, upwards or downwards."""
    return sum(sign * each["less_last"][key] > 2 * each["standard_error"][key] for each in found)


def reliability(results: Path) -> str:
    """How often each attack broke what is promised, in the version before the promises were made and now."""
    command = "python -m reproduction.studies.reliability, beside the sources of an older version"
    before = read_one(results, "study-reliability-before.json", command)
    now = _study(results, "reliability")
    broken = {each["promise"]: each for each in before["outcomes"]}
    lines = [
        [each["promise"], str(each["cases"]), _broken(broken.get(each["promise"])), _broken(each)]
        for each in now["outcomes"]
    ]
    commits = [each["environment"]["commit"][:7] for each in (before, now)]
    return markdown_table(["what should hold", "cases", *(f"broken in {commit}" for commit in commits)], lines)


def _broken(outcome: Record | None) -> str:
    if outcome is None:  # a version without what is attacked
        return "-"
    return str(outcome["broken"]) if outcome["broken"] == 0 else f"**{outcome['broken']}**"


TABLES: dict[str, Callable[[Path], str]] = {
    "mnist-small": mnist_small,
    "novelty-shares": novelty_shares,
    "novelty-fresh": novelty_fresh,
    "novelty-calibration": novelty_calibration,
    "first-steps": first_steps,
    "critic-rate": critic_rate,
    "prior-network": prior_network,
    "bdk": bdk,
    "clipped-kl": clipped_kl,
    "tabular-search": tabular_search,
    "tabular-novelty": tabular_novelty,
    "batch-norm": batch_norm,
    "selection": selection,
    "reliability": reliability,
}
