"""The weights of KL and MMD on few small images, with students that start from random weights.

As in ``novelty_shares`` the digit 9, which the demo evaluates, takes no part. Far OOD inputs are not looked at.

python -m reproduction.studies.small_recipe [--held-out 1 3 5 8] [--jobs 2] [--record]
"""

import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
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
from opu.measures import named
from opu.prediction import predict_student, predict_teacher
from reproduction.studies.novelty_shares import both, development_digits
from reproduction.studies.options import study_options

OBJECTIVES = (
    "0.1*kl + 10*mmd",
    "0.01*kl + 10*mmd",
    "0.1*clipped_kl + 10*mmd",
    "0.03*clipped_kl + 10*mmd",
    "0.01*clipped_kl + 10*mmd",
    "10*mmd",
    "clipped_kl",
)
SOFTSIGN = ", softsign link"
VARIATIONS = (*OBJECTIVES, *(f"{weight}*clipped_kl + 10*mmd{SOFTSIGN}" for weight in (0.1, 0.03, 0.01)))


def run(held_out: int, variation: str) -> dict[str, Any]:
    """One student; its gaps to the teacher, and how it finds the digit that was left out, beside the teacher's best."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits, settings = development_digits(0, held_out), Settings()
    teacher = opu.teachers.MCDropout(train_teacher(digits, settings, num_classes=8), consistent=True)
    link = "softsign" if variation.endswith(SOFTSIGN) else "sigmoid"
    student = opu.students.mlp(64, 8, (settings.hidden, settings.hidden), link=link)
    recipe = opu.Recipe(
        objective=variation.removesuffix(SOFTSIGN),
        epochs=settings.epochs,
        num_particles=settings.num_particles,
        start_from_teacher=False,
    )
    opu.distill(teacher, student, digits.train, recipe=recipe, held_out=digits.calibration, progress=False)
    sets = digits.test, digits.ood["held_out"]
    positive = np.repeat([False, True], [len(x) for x in sets])
    theirs = [predict_teacher(teacher, x, 500).scores for x in sets]
    ours = [predict_student(student, x).scores for x in sets]
    found = fidelity.report(student, teacher, digits.test, labels=digits.test_labels, num_particles=200).summary
    (precision,) = named("C")
    return {
        "held_out": held_out,
        "objective": variation,
        "teacher": max(metrics.auroc(both(theirs, m), positive) for m in TEACHER_MEASURES),
        "auroc": {m: metrics.auroc(both(ours, m), positive) for m in ours[0]},
        "log_precision": float(-np.median(ours[0][precision])),
        "fidelity": found,
    }


def main() -> None:
    """Run every digit and variation."""
    parser = study_options(__doc__, "study-small-recipe.json")
    parser.add_argument("--held-out", type=int, nargs="+", default=[1, 3, 5, 8])
    parser.add_argument("--jobs", type=int, default=1, help="Number of runs at a time.")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        wanted = list(itertools.product(options.held_out, VARIATIONS))
        runs = list(pool.map(run, *zip(*wanted, strict=True)))
    write_json(options.out, {"runs": runs, "environment": environment()})


if __name__ == "__main__":
    main()
