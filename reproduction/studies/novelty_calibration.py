"""How many inputs novelty needs to be calibrated on, whether its p-values are right, and what its tail is good for.

A small student of MC dropout on MNIST. Calibration inputs are drawn many times over from training digits that neither the
teacher nor the student has seen; p-values are counted on others of them. OOD sets are those of ``development``.

python -m reproduction.studies.novelty_calibration [--record]
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import opu
from opu import measures
from opu.distillation.calibration import predict_all
from opu.distributions.dirichlet import Dirichlet
from opu.environment import environment
from opu.evaluation import metrics
from opu.files import write_json
from opu.novelty import FOR_IMAGES, Novelty
from opu.students import Student
from reproduction.paper import domains
from reproduction.paper.domains import Domain
from reproduction.paper.models import Models
from reproduction.paper.reproduce import QUICK
from reproduction.studies.development import ood_sets
from reproduction.studies.options import study_options

SIZES = (20, 50, 100, 200, 500, 1000, 2000, 5000)
RATES = (0.01, 0.05)
NUM_DRAWS = 40
NUM_TRAINED = 10_000
NUM_FRESH = 20_000


def distilled(domain: Domain) -> Student:
    """A small student of MC dropout."""
    with tempfile.TemporaryDirectory() as folder:
        models = Models(domain, QUICK["mnist"], 0, Path(folder), torch.device("cpu"), False)
        teacher = models.teacher("mc_dropout")
    student = opu.students.mlp(784, domain.num_classes, (200, 200), link="sigmoid").start_mean_from(teacher)
    recipe = opu.Recipe(
        objective="0.1*kl + 10*mmd", num_particles=16, epochs=10, batch_size=256, start_from_teacher=False
    )
    opu.distill(teacher, student, domain.x, recipe=recipe, held_out=domain.held_out, progress=False)
    return student


def without_tail(novelty: Novelty, q: Dirichlet) -> NDArray[np.float64]:
    """N with both measures cut at the largest calibration value: what lies beyond ties."""
    entropy = measures.predictive_entropy(q).double().clamp(max=float(novelty.entropy[-1]))
    precision = (-q.log_precision.double()).clamp(max=float(novelty.dispersion[-1]))
    n = len(novelty.entropy)
    parts = []
    for values, calibration, share in (
        (entropy, novelty.entropy, 1 - FOR_IMAGES.share),
        (precision, novelty.dispersion, FOR_IMAGES.share),
    ):
        beyond = n - torch.searchsorted(calibration, values, right=False)
        parts.append(-torch.log((beyond + 1) / (n + 1)) + np.log(share))
    return torch.maximum(*parts).numpy()


def calibrated_on(size: int, fresh: Dirichlet, pool: Dirichlet, ood: dict[str, Dirichlet]) -> dict[str, Any]:
    """Rates of false alarms and AUROC over many draws of this number of calibration inputs."""
    flagged: dict[float, list[float]] = {rate: [] for rate in RATES}
    auroc: dict[str, list[float]] = {}
    for number in range(NUM_DRAWS):
        rows = torch.randperm(len(pool), generator=torch.Generator().manual_seed(number))[:size]
        novelty = Novelty.fit(pool[rows])
        p = novelty.p_value(fresh)
        for rate in RATES:
            flagged[rate].append(100 * float((p <= rate).double().mean()))
        if number < 5:
            for name, q in ood.items():
                inside, outside = novelty(fresh[:2000]).double().numpy(), novelty(q).double().numpy()
                auroc.setdefault(name, []).append(_apart(inside, outside))
                cut = _apart(without_tail(novelty, fresh[:2000]), without_tail(novelty, q))
                auroc.setdefault(f"{name}, no tail", []).append(cut)
    return {
        "size": size,
        "flagged": {str(rate): [statistics.mean(v), min(v), max(v)] for rate, v in flagged.items()},
        "auroc": {name: round(statistics.mean(v), 2) for name, v in auroc.items()},
    }


def _apart(inside: NDArray[np.float64], outside: NDArray[np.float64]) -> float:
    positive = np.repeat([False, True], [len(inside), len(outside)])
    return round(metrics.auroc(np.concatenate([inside, outside]).astype(float), positive), 2)


def main() -> None:
    """Train one student, and calibrate it on more and more inputs."""
    options = study_options(__doc__, "study-novelty-calibration.json").parse_args()
    torch.manual_seed(0)
    whole = domains.mnist()
    domain = whole.small(NUM_TRAINED, 1000, 300)
    student = distilled(domain)
    predicted = predict_all(student, [whole.x[NUM_TRAINED:]])
    ood = {name: predict_all(student, [x]) for name, x in ood_sets(domain.test, seed=0).items()}
    fresh, pool = predicted[:NUM_FRESH], predicted[NUM_FRESH:]
    runs = [calibrated_on(size, fresh, pool, ood) for size in SIZES]
    write_json(options.out, {"draws": NUM_DRAWS, "fresh": NUM_FRESH, "runs": runs, "environment": environment()})


if __name__ == "__main__":
    main()
