"""What a bound on each input's gradient does to students of logistic regressions; on tables that no experiment evaluates.

python -m reproduction.studies.clipped_kl [--seeds 0 1 2] [--record]
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import opu
from opu.augment import augment
from opu.environment import environment
from opu.files import write_json
from opu.objectives import ClippedKL, ForwardKL, Objective
from opu.students.links import Sigmoid, bounds_for
from opu.teachers import GibbsSettings, Teacher, polya_gamma
from reproduction.studies.options import study_options
from reproduction.studies.tabular_novelty import TABLES
from reproduction.tabular.setups import Setup, prepare
from reproduction.tabular.students import STANDARDISED

OBJECTIVES: dict[str, Objective] = {
    "plain": ForwardKL(),
    "bound 10": ClippedKL(10.0),
    "bound 3": ClippedKL(3.0),
    "bound 1": ClippedKL(1.0),
}


@torch.no_grad()
def excess(teacher: Teacher, student: opu.students.Student, x: Tensor) -> float:
    """Mean KL of the student's predictions beyond that of the best Dirichlet for each input."""
    log_particles = teacher(x, 500)
    mean_log = log_particles.double().mean(0)
    best = opu.maximum_likelihood(log_particles).log_prob(mean_log)
    return round(float((best - student(x).log_prob(mean_log)).mean()), 4)


def one(table: str, seed: int) -> list[dict[str, Any]]:
    """Each objective's student of one teacher."""
    torch.manual_seed(seed)
    data = prepare(Setup(table, "standardised", "standard"), seed, TABLES[table]())
    teacher = polya_gamma(data.x, data.labels, GibbsSettings(num_samples=500, thinning=10))
    augmented = augment(data.held_out, seed=seed)
    fitted = opu.maximum_likelihood(teacher(data.x[:500], 200)).log_precision
    runs = []
    for name, objective in OBJECTIVES.items():
        torch.manual_seed(seed)
        shape = data.x.shape[1], int(data.labels.max()) + 1, STANDARDISED.hidden
        student = opu.students.mlp(*shape, link=Sigmoid(*bounds_for(fitted))).start_precision_at(float(fitted.median()))
        recipe = replace(STANDARDISED.recipe, objective=objective)
        opu.distill(teacher, student, data.x, recipe=recipe, held_out=data.held_out, progress=False)
        found = {
            "held_out": excess(teacher, student.eval(), data.held_out),
            "augmented": excess(teacher, student, augmented),
        }
        runs.append({"table": table, "seed": seed, "objective": name, **found})
    return runs


def main() -> None:
    """Run every table and seed."""
    parser = study_options(__doc__, "study-clipped-kl.json")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    runs: list[dict[str, Any]] = []
    for table in TABLES:
        for seed in options.seeds:
            runs += one(table, seed)
            print(*runs[-len(OBJECTIVES) :], sep="\n", flush=True)
            write_json(options.out, {"runs": runs, "environment": environment()})


if __name__ == "__main__":
    main()
