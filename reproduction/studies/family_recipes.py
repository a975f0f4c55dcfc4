"""How a logistic-normal student is distilled best: candidates by what they reach on held-out digits.

MNIST, judged on training digits that no teacher saw, and on OOD sets that no table has. Coverage is the share of the
teacher's particles within the 90 % interval of the predicted class, by decile of the predictive entropy.

python -m reproduction.studies.family_recipes [--device cuda] [--teachers mc_dropout] [--seeds 0] [--record]
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

import opu
from opu import measures
from opu.environment import environment
from opu.evaluation import metrics
from opu.fidelity.coverage import by_decile, class_coverage
from opu.files import write_json
from reproduction.studies.development import Development, development
from reproduction.studies.options import study_options

NUM_PARTICLES = 500
CANDIDATES: dict[str, dict[str, str]] = {
    "Dirichlet": {"family": "dirichlet", "objective": "0.1*clipped_kl + 10*mmd"},
    "KL/K + CE + 10 MMD": {"family": "logistic_normal(4)", "objective": "0.1*kl + cross_entropy + 10*mmd"},
    "KL/K + CE + 100 MMD": {"family": "logistic_normal(4)", "objective": "0.1*kl + cross_entropy + 100*mmd"},
    "KL/K + CE": {"family": "logistic_normal(4)", "objective": "0.1*kl + cross_entropy"},
    "KL/K + 10 MMD": {"family": "logistic_normal(4)", "objective": "0.1*kl + 10*mmd"},
    "0.3 KL/K + CE + 10 MMD": {"family": "logistic_normal(4)", "objective": "0.03*kl + cross_entropy + 10*mmd"},
    "KL/K + CE + 10 MMD, rank 0": {"family": "logistic_normal(0)", "objective": "0.1*kl + cross_entropy + 10*mmd"},
    "KL/K + CE + 10 MMD, rank 2": {"family": "logistic_normal(2)", "objective": "0.1*kl + cross_entropy + 10*mmd"},
    "KL/K + CE + 10 MMD, rank 8": {"family": "logistic_normal(8)", "objective": "0.1*kl + cross_entropy + 10*mmd"},
}


def distilled(data: Development, teacher: Any, choice: dict[str, str], device: str, seed: int) -> tuple[Any, float]:
    """A student of the candidate, and the seconds that it took."""
    torch.manual_seed(1000 + seed)
    models = data.models
    options = {name: choice[name] for name in ("family", "link") if name in choice}
    student = opu.students.mlp(784, 10, models.scale.hidden, **options).to(models.device).start_mean_from(teacher)
    if choice["family"] == "dirichlet":
        student.fit_bounds(teacher, data.calibration[:500], NUM_PARTICLES)
    recipe = replace(models.scale.preset("robust").recipe, objective=choice["objective"], cuda_graph=device == "cuda")
    begin = time.perf_counter()
    opu.distill(teacher, student, models.domain.x, recipe=recipe, held_out=data.calibration, progress=False)
    return student.eval(), time.perf_counter() - begin


@torch.no_grad()
def judged(data: Development, teacher: Any, student: Any) -> dict[str, Any]:
    """What the student reaches on fresh digits and on the OOD sets."""
    particles = torch.cat([teacher(part, NUM_PARTICLES) for part in data.fresh.split(500)], 1)
    q = student(data.fresh)
    theirs, ours = measures.all_measures(particles), measures.all_measures(q, student.novelty)
    mean = measures.mean(particles)
    wrong = (q.mean.argmax(-1).cpu() != data.labels).numpy()
    found: dict[str, Any] = {
        "accuracy": {
            "teacher": 100 * float((mean.argmax(-1).cpu() == data.labels).float().mean()),
            "student": 100 * (1 - wrong.mean()),
        },
        "nll": float(torch.nn.functional.nll_loss(q.mean.cpu().clamp(min=1e-12).log(), data.labels)),
        "total_variation": float((q.mean - mean).abs().sum(-1).mean() / 2),
        "squared_mmd": float(opu.objectives.ExactMMD()(data.fresh, particles, q).mean()),
        "coverage": by_decile(theirs["predictive_entropy"], class_coverage(q, particles)["predicted"]),
        "coverage_runner_up": by_decile(theirs["predictive_entropy"], class_coverage(q, particles)["runner_up"]),
        "rank_correlation": {
            m: float(spearmanr(ours[m].cpu(), theirs[m].cpu()).statistic) for m in measures.named("E", "C", "MI")
        },
        "mi": {
            "student": float(ours["mutual_information"].mean()),
            "teacher": float(theirs["mutual_information"].mean()),
        },
        "errors": {m: metrics.auroc(values.double().cpu().numpy(), wrong) for m, values in ours.items()},
        "ood": {},
    }
    for name, x in data.ood.items():
        outside = measures.all_measures(student(x), student.novelty)
        positive = np.repeat([0, 1], [len(data.fresh), len(x)])
        both = {m: torch.cat([ours[m], outside[m]]).double().cpu().numpy() for m in ours}
        found["ood"][name] = {
            measures.SYMBOLS[m]: round(metrics.auroc(values, positive), 2) for m, values in both.items()
        }
        theirs_outside = measures.mutual_information(torch.cat([teacher(part, 200) for part in x.split(500)], 1))
        both_mi = torch.cat([theirs["mutual_information"], theirs_outside]).double().cpu().numpy()
        found["ood"][name]["teacher MI"] = round(metrics.auroc(both_mi, positive), 2)
    return found


def main() -> None:
    """Every candidate for every teacher and seed."""
    parser = study_options(__doc__, "study-family-recipes.json")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--small", action="store_true", help="A small version that takes minutes.")
    parser.add_argument("--teachers", nargs="+", default=["mc_dropout"])
    parser.add_argument("--candidates", nargs="+", default=list(CANDIDATES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    runs = []
    for seed in options.seeds:
        data = development(seed, Path("runs") / "family-recipes" / f"seed{seed}", options.device, options.small)
        for name in options.teachers:
            teacher = data.models.teacher(name)
            for candidate in options.candidates:
                student, seconds = distilled(data, teacher, CANDIDATES[candidate], options.device, seed)
                row = {"teacher": name, "seed": seed, "candidate": candidate, "seconds": seconds}
                runs.append(row | judged(data, teacher, student))
                write_json(options.out, {"runs": runs, "environment": environment()})
                print(_line(runs[-1]), flush=True)


def _line(run: dict[str, Any]) -> str:
    names = ("accuracy", "nll", "total_variation", "squared_mmd", "rank_correlation", "mi", "coverage")
    return f"{run['teacher']}, {run['candidate']}, {run['seconds']:.0f} s: { {name: run[name] for name in names} }"


if __name__ == "__main__":
    main()
