"""What it takes for the precision of a student of logistic regression to find the paper's strangers.

Link, scaling and optimiser, for the KL, on splits that the tables do not show. It looks at test results: it explains the
paper's numbers and chooses nothing that we recommend.

python -m reproduction.studies.tabular_search [--data pima spambase] [--seeds 100 101] [--out results/study-tabular-search.json]
"""

import argparse
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from opu.distillation.diagnosis import Diverged
from opu.environment import environment
from opu.evaluation.compare import assess
from opu.files import write_json
from opu.prediction import predict_student
from opu.teachers import GibbsSettings, Teacher, polya_gamma
from reproduction.tabular.setups import SETUPS, Prepared, prepare
from reproduction.tabular.students import PAPER, Recipe, distil

GRID = [
    replace(PAPER, standardise=standardise, link=link, sgd=sgd, learning_rate=1e-2 if sgd else 1e-3)
    for standardise, link, sgd in product((True, False), ("exp", "softplus"), (False, True))
]


def one(recipe: Recipe, teacher: Teacher, data: Prepared, seed: int) -> dict[str, Any]:
    """Accuracy, and AUROC of E for errors and of E and C for strangers; nothing where the student diverged."""
    torch.manual_seed(seed)
    try:
        student = distil(recipe, teacher, data)
    except Diverged as error:
        return {"diverged": str(error)}
    found = assess(predict_student(student, data.test), data.test_labels, {
        "gaussian": predict_student(student, data.ood["gaussian"])
    })  # fmt: skip
    strangers = found["ood"]["gaussian"]
    return {
        "accuracy": round(found["accuracy"], 2),
        "errors": round(found["misclassification"]["predictive_entropy"]["auroc"], 2),
        "strangers_E": round(strangers["predictive_entropy"]["auroc"], 2),
        "strangers_C": round(strangers["negative_log_precision"]["auroc"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", default=["pima", "spambase"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101])
    parser.add_argument("--out", type=Path, default=Path("results/study-tabular-search.json"))
    options = parser.parse_args()
    trials: list[dict[str, Any]] = []
    for name in options.data:
        setup = next(each for each in SETUPS["blr"] if (each.data, each.preset) == (name, "paper"))
        for seed in options.seeds:
            data = prepare(setup, seed)
            torch.manual_seed(seed)
            gibbs = GibbsSettings(prior_variance=setup.prior_variance, intercept=setup.intercept, thinning=10)
            teacher = polya_gamma(data.x, data.labels, gibbs)
            for recipe in GRID:
                trials.append(
                    {"data": name, "seed": seed, "recipe": asdict(recipe), **one(recipe, teacher, data, seed)}
                )
                print(trials[-1], flush=True)
                write_json(options.out, {"trials": trials, "environment": environment()})


if __name__ == "__main__":
    main()
