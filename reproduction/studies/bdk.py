"""Settings of BDK and BDK-Dir, judged on held-out digits and on OOD sets that no table has; no evaluated set is seen.

The rule, fixed before the first run: of the settings whose accuracy is within 0.1 of the best, the highest average AUROC by
entropy, of errors and of OOD inputs in equal parts.

python -m reproduction.studies.bdk [--device cuda] [--jobs 12] [--seeds 10 11] [--small] [--record]
"""

import json
import multiprocessing
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import opu
from opu.environment import environment
from opu.evaluation import metrics
from opu.files import rounded, write_json
from opu.measures import named
from opu.objectives import CrossEntropy
from opu.prediction import predict_student
from reproduction.baselines import CategoricalStudent, ConcentrationStudent
from reproduction.results import in_todays_words
from reproduction.studies.development import Development, development
from reproduction.studies.options import study_options

(ENTROPY,) = named("E")


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
    ("BDK-DIR-SGLD", "clipped kl"): Settings("bdk_dir", objective="clipped_kl"),
    ("BDK-DIR-SGLD", "0.1 kl + 10 mmd"): Settings("bdk_dir", objective="0.1*kl + 10*mmd"),
    ("BDK-SGLD (online)", "as our student"): Settings("bdk_online"),
    ("BDK-SGLD (online)", "noise 0.1"): Settings("bdk_online", noise=0.1),
    ("BDK-SGLD (online)", "noise 0.3"): Settings("bdk_online", noise=0.3),
    ("BDK-SGLD (online)", "rate 3e-3"): Settings("bdk_online", learning_rate=3e-3),
}


@cache
def development_here(seed: int, folder: Path, device: str, small: bool) -> Development:
    """The data of a seed, once for each process; teachers lie in the folder."""
    return development(seed, folder / f"seed{seed}", device, small)


def train_teacher(name: str, seed: int, *where: Any) -> None:
    """Train a teacher, which is kept in the folder."""
    development_here(seed, *where).models.teacher(name)


def trial(name: tuple[str, str], seed: int, folder: Path, device: str, small: bool) -> dict[str, Any]:
    """One baseline, and how it does."""
    here, settings = development_here(seed, folder, device, small), TRIALS[name]
    here.models.teacher(settings.teacher)  # first, since it seeds for itself
    torch.manual_seed(1000 + seed)
    student = distilled(here, settings, small)
    inside = predict_student(student, here.fresh)
    entropy = inside.scores[ENTROPY]
    wrong = inside.predicted != here.labels.numpy()
    ood = {}
    for which, x in here.ood.items():
        both = np.concatenate([entropy, predict_student(student, x).scores[ENTROPY]])
        ood[which] = metrics.auroc(both, np.arange(len(both)) >= len(entropy))
    return rounded(
        {
            "row": name[0],
            "change": name[1],
            "seed": seed,
            "commit": environment()["commit"],
            "settings": asdict(settings),
            "accuracy": 100 * float(1 - wrong.mean()),
            "nll": metrics.negative_log_likelihood(torch.from_numpy(inside.probabilities), here.labels),
            "errors": metrics.auroc(entropy, wrong),
            "ood": ood,
        }
    )


def distilled(here: Development, settings: Settings, small: bool) -> nn.Module:
    """The trained baseline."""
    models = here.models
    preset = models.scale.preset("robust")
    preset = preset.changed(learning_rate=settings.learning_rate, epochs=1 if small else settings.epochs)
    if settings.kind == "bdk_online":
        return models.online_student(preset, settings.noise)
    net = models.started(settings.teacher) if settings.started else models.classifier()
    categorical = settings.kind == "bdk"
    student = CategoricalStudent(net) if categorical else ConcentrationStudent(net)
    recipe = replace(
        preset.recipe,
        objective=CrossEntropy() if categorical else settings.objective,
        augmented_fraction=settings.fraction,
        cuda_graph=models.device.type == "cuda",
    )
    teacher = models.teacher(settings.teacher)
    opu.distill(teacher, student, models.domain.x, recipe=recipe, held_out=here.calibration, progress=False)
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
    return (result["errors"] + statistics.mean(result["ood"].values())) / 2


def main() -> None:
    """Run all trials that are not in the file yet."""
    parser = study_options(__doc__, "study-bdk.json")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="Number of trials at a time.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11], help="Seeds that the tables do not use.")
    parser.add_argument("--rows", nargs="+", help="Only these rows.")
    parser.add_argument("--small", action="store_true", help="A small version that takes minutes.")
    options = parser.parse_args()
    # Long ones first, so that nothing waits at the end.
    names = sorted(TRIALS, key=lambda name: (TRIALS[name].kind != "bdk_online", -TRIALS[name].epochs))
    names = [name for name in names if not options.rows or name[0] in options.rows]
    # A run that was stopped goes on where it was.
    trials: list[dict[str, Any]] = []
    if options.out.exists():
        trials = in_todays_words(json.loads(options.out.read_text()))["trials"]
    done = {(t["row"], t["change"], t["seed"]) for t in trials}
    wanted = [(name, seed) for name, seed in product(names, options.seeds) if (*name, seed) not in done]
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(options.jobs, context) as pool:
        where = (Path(folder), options.device, options.small)
        teachers = dict.fromkeys((TRIALS[name].teacher, seed) for name, seed in wanted)
        for trained in [pool.submit(train_teacher, *teacher, *where) for teacher in teachers]:
            trained.result()
        for finished in as_completed([pool.submit(trial, name, seed, *where) for name, seed in wanted]):
            result = finished.result()
            trials.append(result)
            print({key: result[key] for key in ("row", "change", "accuracy", "errors")}, flush=True)
            trials.sort(key=lambda t: (list(TRIALS).index((t["row"], t["change"])), t["seed"]))
            write_json(options.out, {"trials": trials, "chosen": chosen(trials), "environment": environment()})


if __name__ == "__main__":
    main()
