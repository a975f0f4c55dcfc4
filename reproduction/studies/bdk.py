"""Settings of BDK and BDK-Dir, judged on held-out digits and on strangers that no table has; no evaluated set is seen.

The rule, fixed before the first run: of the settings whose accuracy is within 0.1 of the best, the highest average AUROC by
entropy, of errors and of strangers in equal parts.

python -m reproduction.studies.bdk [--device cuda] [--jobs 12] [--seeds 10 11] [--small] [--out results/study-bdk.json]
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import opu
from opu.environment import environment
from opu.evaluation import metrics
from opu.files import rounded, write_json
from opu.objectives import CrossEntropy, parse
from opu.prediction import predict_student
from reproduction.baselines import CategoricalStudent, ConcentrationStudent
from reproduction.studies.robust_recipe import Bench, bench_here, in_order


@dataclass(frozen=True)
class Settings:
    """One baseline; the defaults are the recipe of our own student."""

    kind: str
    teacher: str = "sgld"
    objective: str = "kl"
    learning_rate: float = 1e-3
    epochs: int = 40
    fraction: float = 0.5
    started: bool = True
    noise: float = 0.03


CHANGES: dict[str, dict[str, Any]] = {
    "as our student": {},
    "rate 3e-4": {"learning_rate": 3e-4},
    "rate 3e-3": {"learning_rate": 3e-3},
    "augmented 0.25": {"fraction": 0.25},
    "augmented 0.75": {"fraction": 0.75},
    "from random weights": {"started": False},
    "80 epochs": {"epochs": 80},
}
BASES = {"BDK-SGLD": Settings("bdk"), "BDK-MCDP": Settings("bdk", "mc_dropout"), "BDK-DIR-SGLD": Settings("bdk_dir")}
TRIALS = {
    (row, change): replace(base, **added)
    for change, added in CHANGES.items()
    for row, base in BASES.items()
    if change != "80 epochs" or row != "BDK-DIR-SGLD"
}
TRIALS |= {
    ("BDK-DIR-SGLD", "steady kl"): Settings("bdk_dir", objective="clipped_kl"),
    ("BDK-DIR-SGLD", "0.1 kl + 10 mmd"): Settings("bdk_dir", objective="0.1*kl + 10*mmd"),
    ("BDK-SGLD (online)", "as our student"): Settings("bdk_online"),
    ("BDK-SGLD (online)", "noise 0.1"): Settings("bdk_online", noise=0.1),
    ("BDK-SGLD (online)", "noise 0.3"): Settings("bdk_online", noise=0.3),
    ("BDK-SGLD (online)", "rate 3e-3"): Settings("bdk_online", learning_rate=3e-3),
}


def trial(name: tuple[str, str], of: tuple[str, int, Path, str, bool], teacher: dict[str, Any]) -> dict[str, Any]:
    """One baseline, and how it does."""
    here, settings = bench_here(*of), TRIALS[name]
    here.models.teacher(settings.teacher)  # first, since it seeds for itself
    torch.manual_seed(1000 + of[1])
    student = distilled(here, settings, small=of[-1])
    inside = predict_student(student, here.fresh)
    entropy = inside.scores["predictive_entropy"]
    wrong = (inside.probabilities.argmax(-1) != here.labels).numpy()
    found = {}
    for stranger, x in here.strangers.items():
        both = np.concatenate([entropy, predict_student(student, x).scores["predictive_entropy"]])
        found[stranger] = metrics.auroc(both, np.arange(len(both)) >= len(entropy))
    return rounded(
        {
            "row": name[0],
            "change": name[1],
            "seed": of[1],
            "commit": environment()["commit"],
            "settings": asdict(settings),
            "accuracy": 100 * float(1 - wrong.mean()),
            "nll": metrics.negative_log_likelihood(inside.probabilities, here.labels),
            "errors": metrics.auroc(entropy, wrong),
            "strangers": found,
        }
    )


def distilled(here: Bench, settings: Settings, small: bool) -> nn.Module:
    """The trained baseline."""
    models = here.models
    preset = replace(models.scale.preset("robust"), learning_rate=settings.learning_rate)
    preset = replace(preset, epochs=1 if small else settings.epochs)
    if settings.kind == "bdk_online":
        return models.online_student(preset, settings.noise)
    net = models.started(settings.teacher) if settings.started else models.classifier()
    categorical = settings.kind == "bdk"
    student = CategoricalStudent(net) if categorical else ConcentrationStudent(net)
    opu.distill(
        models.teacher(settings.teacher),
        student,
        models.domain.x,
        objective=CrossEntropy() if categorical else parse(settings.objective),
        num_particles=preset.num_particles,
        augmented_fraction=settings.fraction,
        epochs=preset.epochs,
        batch_size=preset.batch_size,
        learning_rate=preset.learning_rate,
        held_out=here.calibration,
        graph=models.device.type == "cuda",
        progress=False,
    )
    return student


def chosen(trials: list[dict[str, Any]]) -> dict[str, str]:
    """By row, the change that the rule picks."""
    picked = {}
    for row in {t["row"]: None for t in trials}:
        of_row = [t for t in trials if t["row"] == row]
        changes = {t["change"]: [s for s in of_row if s["change"] == t["change"]] for t in of_row}
        accuracy = {change: statistics.mean(t["accuracy"] for t in each) for change, each in changes.items()}
        able = [change for change in changes if accuracy[change] >= max(accuracy.values()) - 0.1]
        picked[row] = max(able, key=lambda change: statistics.mean(map(_worth, changes[change])))
    return picked


def _worth(result: dict[str, Any]) -> float:
    return (result["errors"] + statistics.mean(result["strangers"].values())) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="Trials at a time.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11], help="Ones that the tables do not use.")
    parser.add_argument("--rows", nargs="+", help="Only these rows.")
    parser.add_argument("--small", action="store_true", help="Tries the whole out in minutes.")
    parser.add_argument("--out", type=Path, default=Path("results/study-bdk.json"))
    options = parser.parse_args()
    # Long ones first, so that nothing waits at the end.
    names = sorted(TRIALS, key=lambda name: (TRIALS[name].kind != "bdk_online", -TRIALS[name].epochs))
    names = [name for name in names if not options.rows or name[0] in options.rows]
    context = multiprocessing.get_context("spawn")
    # A run that was stopped goes on where it was.
    trials: list[dict[str, Any]] = json.loads(options.out.read_text())["trials"] if options.out.exists() else []
    done = {(t["row"], t["change"], t["seed"]) for t in trials}
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(options.jobs, context) as pool:
        benches = [
            (setting, seed, Path(folder), options.device, options.small)
            for setting in dict.fromkeys(TRIALS[name].teacher for name in names)
            for seed in options.seeds
            if any((*name, seed) not in done for name in names if TRIALS[name].teacher == setting)
        ]
        wanted = [
            (name, of)
            for name in names
            for of in benches
            if of[0] == TRIALS[name].teacher and (*name, of[1]) not in done
        ]
        for result in in_order(pool, options.jobs, benches, wanted, trial):
            trials.append(result)
            print({key: result[key] for key in ("row", "change", "accuracy", "errors")}, flush=True)
            trials.sort(key=lambda t: (list(TRIALS).index((t["row"], t["change"])), t["seed"]))
            write_json(options.out, {"trials": trials, "chosen": chosen(trials), "environment": environment()})


if __name__ == "__main__":
    main()
