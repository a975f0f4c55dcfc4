"""Families on the demo's digits: which one fits the teacher's particles, and what students of each reach.

Fits see one half of the particles and are judged on the other. Students start from the teacher's weights.

python -m reproduction.studies.families [--seeds 0 1 2] [--record]
"""

from typing import Any

import numpy as np
import torch

import opu
from opu import measures
from opu.demo import data
from opu.demo.run import Settings, train_teacher
from opu.distributions import fit_logistic_normal
from opu.environment import environment
from opu.evaluation import metrics
from opu.fidelity import compare_families
from opu.files import write_json
from opu.teachers import MCDropout
from reproduction.agreement import agreement
from reproduction.baselines.dirichlet_mixture import draws_of_mixture
from reproduction.studies.options import study_options

NUM_PARTICLES = 500
FAMILIES = ("dirichlet", "logistic_normal")
OTHERS = {
    "dirichlet_mixture": draws_of_mixture,
    "logistic_normal_diagonal": lambda particles: fit_logistic_normal(particles, 0),
    "logistic_normal_two": lambda particles: fit_logistic_normal(particles, 2),
}


@torch.no_grad()
def judged(student: Any, teacher: MCDropout, digits: data.Digits) -> dict[str, Any]:
    """What a student reaches on test inputs and on the OOD sets."""
    q = student(digits.test)
    ours, auroc = measures.all_measures(q, student.novelty), {}
    for name, x in digits.ood.items():
        scores = measures.all_measures(student(x), student.novelty)
        positive = np.repeat([0, 1], [len(digits.test), len(x)])
        both = {m: torch.cat([ours[m], scores[m]]).double().numpy() for m in measures.named("E", "MI", "N")}
        auroc[name] = {measures.SYMBOLS[m]: metrics.auroc(values, positive) for m, values in both.items()}
    return {
        "accuracy": metrics.accuracy(q.mean, digits.test_labels),
        "nll": metrics.negative_log_likelihood(q.mean, digits.test_labels),
        **agreement(teacher, student, digits.test, NUM_PARTICLES),
        "auroc": auroc,
    }


def run(seed: int) -> dict[str, Any]:
    """One seed: the comparison of families, and a student of each."""
    torch.manual_seed(seed)
    digits, settings = data.load(seed), Settings(seed=seed)
    teacher = MCDropout(train_teacher(digits, settings), consistent=True)
    particles = teacher(digits.test, NUM_PARTICLES)
    students = {}
    for family in FAMILIES:
        torch.manual_seed(seed)
        student = opu.students.from_teacher(teacher, family=family)
        recipe = opu.Recipe(epochs=settings.epochs, num_particles=settings.num_particles)
        opu.distill(teacher, student, digits.train, recipe=recipe, held_out=digits.calibration, progress=False)
        students[family] = judged(student, teacher, digits)
    return {"seed": seed, "comparison": compare_families(particles, others=OTHERS).summary(), "students": students}


def main() -> None:
    """Every seed."""
    parser = study_options(__doc__, "study-families.json")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options, runs = parser.parse_args(), []
    torch.set_num_threads(1)
    for seed in options.seeds:
        runs.append(run(seed))
        write_json(options.out, {"runs": runs, "environment": environment()})
        print(runs[-1]["comparison"]["sentence"])
        for family, found in runs[-1]["students"].items():
            print(family, {name: value for name, value in found.items() if name != "auroc"})


if __name__ == "__main__":
    main()
