"""Settings of the prior-network baseline, judged on held-out digits alone; no evaluated set is seen.

python -m reproduction.studies.prior_network [--device cuda] [--seeds 0 1 2] [--epochs 12] [--record]
"""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from opu.environment import environment
from opu.evaluation import metrics
from opu.files import write_json
from opu.measures import named
from opu.prediction import predict_student
from reproduction.baselines import FactorNoise
from reproduction.paper import classifiers
from reproduction.paper.domains import Domain, mnist
from reproduction.paper.prior_networks import PriorNetworkSettings, train_prior_network
from reproduction.studies.options import study_options

(ENTROPY,) = named("E")
_CHOSEN = PriorNetworkSettings()
GRID = {
    "mlp": [
        replace(_CHOSEN, precision=precision, cross_entropy=weight)
        for precision in (100.0, 1000.0)
        for weight in (0.0, 10.0, 100.0)
    ],
    "vgg": [replace(_CHOSEN, learning_rate=rate) for rate in (1e-3, 3e-4)]
    + [replace(_CHOSEN, learning_rate=3e-4, cross_entropy=0.0)],
}


def judge(name: str, settings: PriorNetworkSettings, domain: Domain, seed: int) -> dict[str, Any]:
    """Accuracy, and AUROC of the entropy for errors and for fresh OOD inputs of the kind seen in training."""
    torch.manual_seed(seed)
    net: nn.Module = (classifiers.vgg if name == "vgg" else classifiers.mlp)(10).to(domain.x.device)
    student = train_prior_network(net, domain.x, domain.labels, settings)
    inside = predict_student(student, domain.held_out)
    outside = predict_student(student, FactorNoise.fit(domain.x).like(domain.held_out))
    entropy = inside.scores[ENTROPY]
    both = np.concatenate([entropy, outside.scores[ENTROPY]])
    wrong = inside.predicted != domain.held_out_labels.cpu().numpy()
    return {
        "seed": seed,
        "accuracy": round(100 * float(1 - wrong.mean()), 2),
        "errors": round(metrics.auroc(entropy, wrong), 2),
        "factor_noise": round(metrics.auroc(both, np.arange(len(both)) >= len(entropy)), 2),
    }


def main() -> None:
    """Run every setting and seed."""
    parser = study_options(__doc__, "study-prior-network.json")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=_CHOSEN.epochs)
    parser.add_argument("--networks", nargs="+", default=list(GRID))
    options = parser.parse_args()
    domain = mnist().to(torch.device(options.device))
    trials: list[dict[str, Any]] = []
    for name in options.networks:
        for settings in (replace(each, epochs=options.epochs) for each in GRID[name]):
            runs = [judge(name, settings, domain, seed) for seed in options.seeds]
            trials.append({"network": name, "settings": asdict(settings), "runs": runs})
            print(name, asdict(settings), runs, flush=True)
            write_json(options.out, {"trials": trials, "environment": environment()})


if __name__ == "__main__":
    main()
