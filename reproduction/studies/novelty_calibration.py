"""How many inputs novelty needs to be calibrated on, whether its p-values are honest, and what its tail is good for.

A small student of MC dropout on MNIST. Calibration inputs are drawn many times over from training digits that neither the
teacher nor the student has seen; p-values are counted on others of them. Strangers are those of `robust_strangers`.

python -m reproduction.studies.novelty_calibration [--out results/study-novelty-calibration.json]
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from opu import measures
from opu.distributions.dirichlet import Dirichlet
from opu.environment import environment
from opu.files import write_json
from opu.novelty import FOR_IMAGES, Novelty
from reproduction.paper import domains
from reproduction.paper.models import Models
from reproduction.paper.reproduce import QUICK
from reproduction.studies.robust_recipe import _apart, _dirichlet, distilled
from reproduction.studies.robust_strangers import strangers
from reproduction.studies.robust_variations import Variation

SIZES = (20, 50, 100, 200, 500, 1000, 2000, 5000)
RATES = (0.01, 0.05)
NUM_DRAWS = 40
NUM_TRAINED = 10_000
NUM_FRESH = 20_000


def tailless(novelty: Novelty, q: Dirichlet) -> np.ndarray:
    """N with both measures cut at the largest ordinary value: what lies beyond ties."""
    entropy = measures.predictive_entropy(q).double().clamp(max=float(novelty.entropy[-1]))
    precision = (-q.log_precision.double()).clamp(max=float(novelty.dispersion[-1]))
    n = len(novelty.entropy)
    parts = []
    for values, ordinary, share in (
        (entropy, novelty.entropy, 1 - FOR_IMAGES.share),
        (precision, novelty.dispersion, FOR_IMAGES.share),
    ):
        beyond = n - torch.searchsorted(ordinary, values, right=False)
        parts.append(-torch.log((beyond + 1) / (n + 1)) + np.log(share))
    return torch.maximum(*parts).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/study-novelty-calibration.json"))
    options = parser.parse_args()
    torch.manual_seed(0)
    whole = domains.mnist()
    domain = whole.small(NUM_TRAINED, 1000, 300)
    unseen = whole.x[NUM_TRAINED:]
    with tempfile.TemporaryDirectory() as folder:
        models = Models(domain, QUICK["mnist"], 0, Path(folder), torch.device("cpu"), False)
        bench = _Bench(models, domain.held_out)
        student = distilled(bench, Variation(hidden=(200, 200), epochs=10, num_particles=16), small=False)  # type: ignore[arg-type]
    with torch.no_grad():
        answers = _dirichlet(student, unseen)
        ood = {n: _dirichlet(student, x) for n, x in strangers(domain.test, digits=True, seed=0).items()}
    fresh, pool = answers[:NUM_FRESH], answers[NUM_FRESH:]
    runs = [_size(size, fresh, pool, ood) for size in SIZES]
    write_json(options.out, {"draws": NUM_DRAWS, "fresh": NUM_FRESH, "runs": runs, "environment": environment()})


class _Bench:
    """What `distilled` asks for."""

    def __init__(self, models: Models, calibration: torch.Tensor) -> None:
        self.models, self.calibration, self.teacher = models, calibration, models.teacher("mc_dropout")


def _size(size: int, fresh: Dirichlet, pool: Dirichlet, ood: dict[str, Dirichlet]) -> dict[str, Any]:
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
                cut = _apart(tailless(novelty, fresh[:2000]), tailless(novelty, q))
                auroc.setdefault(f"{name}, no tail", []).append(cut)
    return {
        "size": size,
        "flagged": {str(rate): [statistics.mean(v), min(v), max(v)] for rate, v in flagged.items()},
        "auroc": {name: round(statistics.mean(v), 2) for name, v in auroc.items()},
    }


if __name__ == "__main__":
    main()
