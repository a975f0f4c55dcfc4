"""What the robust recipe hangs on, one change at a time; judged on held-out inputs and on strangers that no table has.

python -m reproduction.studies.robust_recipe [--device cuda] [--jobs 12] [--settings mc_dropout sgld] [--round 2]
    [--variations default trunk] [--seeds 10] [--small] [--out results/study-robust.json]
"""

import argparse
import itertools
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import opu
from reproduction.studies.robust_scores import candidates
from reproduction.studies.robust_strangers import strangers
from reproduction.studies.robust_variations import (
    FITTED,
    FOR_EMNIST,
    KINDS,
    ROUNDS,
    Joined,
    Variation,
    objective,
)
from opu import measures
from opu.evaluation import metrics
from opu.distributions.dirichlet import Dirichlet
from opu.environment import environment
from opu.evaluation.compare import TEACHER_MEASURES
from reproduction.paper import domains
from reproduction.paper.models import Models, Scale, opening
from reproduction.paper.reproduce import FULL, QUICK, QUICK_SIZES
from opu.fidelity.report import covered
from opu.files import write_json
from opu.augment.transforms import one_of
from opu.students import Student

HELD_OUT_DIGITS = (3, 7)
ROUNDS_TOGETHER = {name: variation for each in ROUNDS.values() for name, variation in each.items()}
SETTINGS = ("mc_dropout", "sgld", "held_out_classes", "emnist", "ensemble", "emnist_ensemble")


@dataclass(frozen=True)
class Bench:
    """A domain, its teacher, and what the teacher says of the inputs that judge."""

    models: Models
    calibration: Tensor
    fresh: Tensor
    labels: Tensor
    strangers: dict[str, Tensor]

    @property
    def teacher(self) -> Any:
        """The setting's, which names the folder."""
        setting = self.models.folder.name
        kind = "ensemble" if "ensemble" in setting else "sgld" if setting.startswith("sgld") else "mc_dropout"
        return self.models.teacher(kind)


def bench(setting: str, seed: int, folder: Path, device: str, small: bool) -> Bench:
    """The same for every process: held-out inputs in two halves, one that calibrates and a fresh one that judges."""
    table = "emnist" if setting.startswith("emnist") else "mnist"
    domain = domains.DOMAINS[table]()
    scale: Scale = FULL[table]
    if small:
        domain, scale = domain.small(*QUICK_SIZES[table]), QUICK[table]
    left_out = torch.empty(0)
    if setting == "held_out_classes":
        left_out = domain.held_out[torch.isin(domain.held_out_labels, torch.tensor(HELD_OUT_DIGITS))]
        domain = domain.without(HELD_OUT_DIGITS)
    half = len(domain.held_out) // 2
    fresh = domain.held_out[half:]
    ood = strangers(fresh, digits=table == "mnist", seed=seed)
    if len(left_out):
        ood = {"held-out classes": left_out}
    where = torch.device(device)
    domain = domain.to(where)
    own = folder / f"{setting}-seed{seed}"
    own.mkdir(parents=True, exist_ok=True)
    models = Models(domain, scale, seed, own, where, progress=False)
    ood = {name: x.to(where) for name, x in ood.items()}
    return Bench(models, domain.held_out[:half], domain.held_out[half:], domain.held_out_labels[half:].cpu(), ood)


def answers_of_teacher(setting: str, seed: int, folder: Path, device: str, small: bool) -> dict[str, Any]:
    """Trains the teacher, which stays in the folder; its probabilities and measures."""
    here = bench(setting, seed, folder, device, small)
    teacher, result = here.teacher, {}
    with torch.no_grad():
        for name, x in {"fresh": here.fresh, **here.strangers}.items():
            parts = [teacher(part, here.models.scale.num_particles) for part in x.split(1000)]
            scores = {m: torch.cat([getattr(measures, m)(p) for p in parts]).cpu().numpy() for m in TEACHER_MEASURES}
            result[name] = {"mean": torch.cat([measures.mean(p) for p in parts]).cpu(), "scores": scores}
    return result


@cache
def bench_here(*of: Any) -> Bench:
    return bench(*of)


def trial(name: str, of: tuple[str, int, Path, str, bool], teacher: dict[str, Any]) -> dict[str, Any]:
    """One student, and how it does beside its teacher."""
    here, variation, seed = bench_here(*of), ROUNDS_TOGETHER[name], of[1]
    _ = here.teacher  # first, since it seeds for itself
    torch.manual_seed(1000 + seed)
    student = distilled(here, variation, small=of[-1])
    with torch.no_grad():
        answers = {name: _dirichlet(student, x) for name, x in {"fresh": here.fresh, **here.strangers}.items()}
        ordinary = _dirichlet(student, here.calibration)
        some = here.fresh[:500]
        held = covered(_dirichlet(student, some), here.teacher(some, here.models.scale.num_particles))
    if name in KEPT:
        _keep(of, name, {"calibration": ordinary, **answers}, here, teacher)
    scores = {n: candidates(q, ordinary) for n, q in answers.items()}
    p_values = scores["fresh"].pop("p_value")
    mean, theirs = answers["fresh"].mean.cpu(), teacher["fresh"]["mean"]
    wrong, their_wrong = (m.argmax(-1) != here.labels for m in (mean, theirs))
    result: dict[str, Any] = {
        "setting": of[0],
        "seed": seed,
        "variation": name,
        "link": str(student.link),
        "accuracy": [_percent(1 - wrong.float().mean()), _percent(1 - their_wrong.float().mean())],
        "balanced_accuracy": [_balanced(m, here.labels) for m in (mean, theirs)],
        "total_variation": round(float((mean - theirs).abs().sum(-1).mean() / 2), 5),
        "coverage": _percent(held.mean()),
        "honest": {str(rate): _percent((p_values < rate).mean()) for rate in (0.01, 0.05)},
        "log_precision": [
            round(float(g), 2) for g in answers["fresh"].log_precision.cpu().quantile(torch.tensor([0.1, 0.5, 0.9]))
        ],
    }
    best = {m: _auroc(teacher["fresh"]["scores"][m], their_wrong.numpy()) for m in TEACHER_MEASURES}
    result["errors"] = {"teacher": max(best.values())} | {
        m: _auroc(s, wrong.numpy()) for m, s in scores["fresh"].items()
    }
    for set_name in here.strangers:
        outside, inside = teacher[set_name]["scores"], teacher["fresh"]["scores"]
        result[set_name] = {"teacher": max(_apart(inside[m], outside[m]) for m in TEACHER_MEASURES)} | {
            m: _apart(scores["fresh"][m], scores[set_name][m]) for m in scores["fresh"]
        }
    return result


KEPT = ("default", "kl 0.01 + mmd", "precision 0.1 + mmd", "trunk, kl 0.01 + mmd")


def _keep(
    of: tuple[str, int, Path, str, bool], name: str, answers: dict[str, Dirichlet], here: Bench, teacher: Any
) -> None:
    """Everything that a score could be made of, where the environment names a folder for it."""
    if "OPU_KEEP" in os.environ:
        arrays = {f"{part}/log_mean": q.log_mean.cpu().numpy() for part, q in answers.items()}
        arrays |= {f"{part}/log_precision": q.log_precision.cpu().numpy() for part, q in answers.items()}
        arrays |= {f"{part}/{m}": s for part, each in teacher.items() for m, s in each["scores"].items()}
        arrays |= {"labels": here.labels.numpy(), "teacher_mean": teacher["fresh"]["mean"].numpy()}
        file = f"{of[0]}-{name.replace(' ', '_').replace(',', '').replace('+', 'and')}-seed{of[1]}.npz"
        np.savez_compressed(Path(os.environ["OPU_KEEP"]) / file, **arrays)


def distilled(here: Bench, variation: Variation, small: bool) -> Student:
    """A student by a variation, with its novelty calibrated on the first half of the held-out inputs."""
    models, cuda = here.models, here.models.device.type == "cuda"
    hidden = models.scale.hidden if small or models.domain.name != "mnist" else variation.hidden
    shape = {"link": variation.link.removesuffix(FITTED), "shared_trunk": variation.shared_trunk}
    if models.domain.name == "mnist":
        student = opu.students.mlp(784, models.domain.num_classes, hidden, **shape)
    else:
        student = opu.students.lenet(models.domain.num_classes, **shape)
    if variation.joined:
        student.precision_net = Joined(student.precision_net, student.mean_net)
    student = student.to(models.device)
    if variation.link.endswith(FITTED):
        student.fit_bounds(here.teacher, models.domain.held_out[:500], models.scale.num_particles)
    if variation.started:
        student.start_mean_from(opening(here.teacher))
    epochs = variation.epochs if models.domain.name == "mnist" else variation.epochs // 2
    opu.distill(
        here.teacher,
        student,
        models.domain.x,
        objective=objective(variation.objective),
        num_particles=variation.num_particles,
        augment=one_of(*(transform for kind, transform in KINDS.items() if kind != variation.without)),
        augmented_fraction=variation.fraction,
        epochs=1 if small else epochs,
        batch_size=variation.batch_size,
        learning_rate=variation.learning_rate,
        held_out=here.calibration,
        graph=cuda,
        progress=False,
    )
    return student


def _dirichlet(student: Student, x: Tensor) -> Dirichlet:
    parts = [student(part) for part in x.split(2000)]
    return Dirichlet.from_logits(torch.cat([q.log_mean for q in parts]), torch.cat([q.log_precision for q in parts]))


def _apart(inside: np.ndarray, outside: np.ndarray) -> float:
    return _auroc(np.concatenate([inside, outside]), np.repeat([False, True], [len(inside), len(outside)]))


def _auroc(scores: np.ndarray, positive: np.ndarray) -> float:
    return round(metrics.auroc(scores.astype(float), positive), 2)


def _balanced(mean: Tensor, labels: Tensor) -> float:
    """Accuracy with every class of the same weight: EMNIST's training part has them in very different numbers."""
    right = (mean.argmax(-1) == labels).float()
    return _percent(torch.stack([right[labels == k].mean() for k in labels.unique()]).mean())


def _percent(share: Any) -> float:
    return round(100 * float(share), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="Trials at a time.")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--round", type=int, default=1, choices=ROUNDS)
    parser.add_argument("--variations", nargs="+", help="All of the round unless given.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10], help="Ones that the tables do not use.")
    parser.add_argument("--small", action="store_true", help="Tries the whole out in minutes.")
    parser.add_argument("--out", type=Path, default=Path("results/study-robust.json"))
    options = parser.parse_args()
    options.variations = options.variations or list(ROUNDS[options.round])
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool,
    ):
        benches = [
            (setting, seed, Path(folder), options.device, options.small)
            for setting in options.settings
            for seed in options.seeds
        ]
        wanted = [
            (name, of)
            for name, of in itertools.product(options.variations, benches)
            if not of[0].startswith("emnist") or name in FOR_EMNIST
        ]
        trials: list[dict[str, Any]] = []
        for result in in_order(pool, options.jobs, benches, wanted, trial):
            trials.append(result)
            print({key: result[key] for key in ("variation", "setting", "accuracy", "errors")}, flush=True)
            trials.sort(key=lambda t: (options.variations.index(t["variation"]), t["setting"], t["seed"]))
            write_json(options.out, {"trials": trials, "environment": environment()})


def in_order(
    pool: ProcessPoolExecutor, jobs: int, benches: list[Any], wanted: list[Any], trial: Callable[..., dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Every trial when it is done. Each starts as soon as its teacher is there, the first that are wanted first."""
    running: dict[Future[Any], Any] = {pool.submit(answers_of_teacher, *of): of for of in benches}
    teachers: dict[Any, dict[str, Any]] = {}
    while running or wanted:
        ready = [each for each in wanted if each[1] in teachers]
        for name, of in ready[: max(0, jobs - len(running))]:
            wanted.remove((name, of))
            running[pool.submit(trial, name, of, teachers[of])] = None
        for done in wait(running, return_when=FIRST_COMPLETED).done:
            of = running.pop(done)
            if of is None:
                yield done.result()
            else:
                teachers[of] = done.result()


if __name__ == "__main__":
    main()
