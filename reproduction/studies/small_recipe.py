"""The weights of KL and MMD on few small images, with networks that start anywhere: fidelity and held-out digits.

As in `reproduction.studies.novelty_shares` the digit 9, which the demo evaluates, takes no part. Far strangers are not looked at.

python -m reproduction.studies.small_recipe [--held-out 1 3 5 8] [--jobs 2] [--out results/study-small-recipe.json]
"""

import argparse
import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import opu
from opu import fidelity
from opu.demo.run import Settings, train_teacher
from opu.environment import environment
from opu.evaluation import metrics
from opu.evaluation.compare import TEACHER_MEASURES
from opu.files import write_json
from opu.prediction import predict_student, predict_teacher
from reproduction.studies.novelty_shares import development_digits

OBJECTIVES = (
    "0.1*kl + 10*mmd",
    "0.01*kl + 10*mmd",
    "0.1*clipped_kl + 10*mmd",
    "0.03*clipped_kl + 10*mmd",
    "0.01*clipped_kl + 10*mmd",
    "10*mmd",
    "clipped_kl",
)
SLOW = ", slow bounds"
VARIATIONS = (*OBJECTIVES, *(f"{weight}*clipped_kl + 10*mmd{SLOW}" for weight in (0.1, 0.03, 0.01)))


def run(held_out: int, variation: str) -> dict[str, Any]:
    """One student; its gaps to the teacher, and how it finds the digit that was left out, beside the teacher's best."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits, settings = development_digits(0, held_out), Settings()
    teacher = opu.teachers.MCDropout(train_teacher(digits, settings, num_classes=8), consistent=True)
    link = "softsign" if variation.endswith(SLOW) else "sigmoid"
    student = opu.students.mlp(64, 8, (settings.hidden, settings.hidden), link=link)
    opu.distill(
        teacher,
        student,
        digits.train,
        objective=variation.removesuffix(SLOW),
        held_out=digits.calibration,
        epochs=settings.epochs,
        num_particles=settings.num_particles,
        progress=False,
    )
    strangers = digits.ood["held_out"]
    positive = np.repeat([False, True], [len(digits.test), len(strangers)])
    theirs, ours = (
        [answers(x).scores for x in (digits.test, strangers)]
        for answers in (lambda x: predict_teacher(teacher, x, 500), lambda x: predict_student(student, x))
    )
    auroc = {m: metrics.auroc(np.concatenate([part[m] for part in ours]), positive) for m in ours[0]}
    best = max(metrics.auroc(np.concatenate([part[m] for part in theirs]), positive) for m in TEACHER_MEASURES)
    found = fidelity.report(student, teacher, digits.test, labels=digits.test_labels, num_particles=200).summary
    return {
        "held_out": held_out,
        "objective": variation,
        "teacher": best,
        "auroc": auroc,
        "log_precision": float(-np.median(ours[0]["negative_log_precision"])),
        "fidelity": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--held-out", type=int, nargs="+", default=[1, 3, 5, 8])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/study-small-recipe.json"))
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        wanted = list(itertools.product(options.held_out, VARIATIONS))
        runs = list(pool.map(run, *zip(*wanted, strict=True)))
    write_json(options.out, {"runs": runs, "environment": environment()})


if __name__ == "__main__":
    main()
