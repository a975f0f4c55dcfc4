"""Which objective suits many classes: a linear posterior over 1,000 drawn classes, and what each student makes of it.

python -m reproduction.studies.many_classes [--classes 1000] [--steps 1500 6000] [--objectives ...] [--device cuda] [--record]
"""

import itertools
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor

import opu
from opu import measures
from opu.distributions.dirichlet import Dirichlet, kl_divergence
from opu.environment import environment
from opu.files import write_json
from opu.objectives import BaseObjective
from opu.students.links import Softsign, bounds_for
from reproduction.studies.options import study_options

NUM_FEATURES, NUM_INPUTS, NUM_TEST, NUM_SAMPLES, BATCH = 32, 20_000, 1000, 64, 128
OBJECTIVES = (
    "kl",
    "clipped_kl",
    "0.1*clipped_kl + 10*mmd",
    "0.001*clipped_kl + 10*mmd",
    "0.0001*clipped_kl + 10*mmd",
    "10*mmd",
    "proxy",
    "cross_entropy",
    "cross_entropy + 10*mmd",
    "cross_entropy + 0.001*clipped_kl",
    "cross_entropy + 0.0001*clipped_kl",
    "cross_entropy + 0.0001*clipped_kl + 10*mmd",
)


class Linear:
    """Weights that are known up to noise, drawn once: the same draws serve every input."""

    def __init__(self, num_classes: int, device: str, spread: float = 0.2) -> None:
        self.centres = 0.7 * torch.randn(num_classes, NUM_FEATURES).to(device)
        self.weights = self.centres + spread * torch.randn(NUM_SAMPLES, num_classes, NUM_FEATURES).to(device)

    def __call__(self, x: Tensor, num_particles: int) -> Tensor:
        """Log-probabilities of some of the draws."""
        chosen = torch.rand(NUM_SAMPLES, device=x.device).argsort()[:num_particles]
        weights = self.weights[chosen]
        return (weights @ x.T - 0.5 * weights.square().sum(-1, keepdim=True)).mT.log_softmax(-1)


class Proxy(BaseObjective):
    """Reverse KL to a Dirichlet with the teacher's mean and a precision from its spread (Ryabinin et al., 2021)."""

    def __call__(self, x: Tensor, log_particles: Tensor, q: Dirichlet) -> Tensor:
        """One value per input."""
        particles = log_particles.double()
        mean = particles.exp().mean(0)
        spread = (mean * (mean.clamp(min=1e-300).log() - particles.mean(0))).sum(-1).clamp(min=1e-6)
        precision = (mean.shape[-1] - 1) / (2 * spread)
        # One is added to every concentration of the target and, so that both can agree, of the student.
        target = Dirichlet.from_log_concentration((mean * precision[:, None] + 1).log())
        ours = Dirichlet.from_log_concentration((q.log_concentration().exp() + 1).log())
        return kl_divergence(ours, target).to(q.mean.dtype)


def run(name: str, num_steps: int, num_classes: int, device: str) -> dict[str, Any]:
    """One student, and how near it is on fresh inputs and on inputs that are further out."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    teacher, total = Linear(num_classes, device), NUM_INPUTS + NUM_TEST
    x = teacher.centres[torch.randint(num_classes, (total,))] + torch.randn(total, NUM_FEATURES).to(device)
    x, fresh = x[:NUM_INPUTS], x[NUM_INPUTS:]
    fitted = opu.maximum_likelihood(teacher(x[:200], NUM_SAMPLES)).log_precision
    student = opu.students.mlp(NUM_FEATURES, num_classes, (256, 256), link=Softsign(*bounds_for(fitted))).to(device)
    student.start_precision_at(float(fitted.median()))
    began = time.perf_counter()
    recipe = opu.Recipe(
        objective=Proxy() if name == "proxy" else name,
        num_particles=16,
        batch_size=BATCH,
        epochs=max(1, num_steps // (len(x) // BATCH)),
        cuda_graph=device == "cuda",
    )
    opu.distill(teacher, student, x, recipe=recipe, held_out=0.02, progress=False)
    seconds = time.perf_counter() - began
    result: dict[str, Any] = {"objective": name, "steps": num_steps, "seconds": round(seconds, 1)}
    with torch.no_grad():
        for where, inputs in (("fresh", fresh), ("stretched", 2 * fresh)):
            result[where] = beside(student(inputs), teacher(inputs, NUM_SAMPLES))
    return result


def pointwise(num_classes: int, device: str) -> dict[str, Any]:
    """The same of the most likely Dirichlets, fitted input by input: what no student of the KL can be better than."""
    torch.manual_seed(0)
    teacher = Linear(num_classes, device)
    fresh = teacher.centres[torch.randint(num_classes, (200,))] + torch.randn(200, NUM_FEATURES).to(device)
    result: dict[str, Any] = {"objective": "input by input", "steps": 0, "seconds": 0.0}
    for where, inputs in (("fresh", fresh), ("stretched", 2 * fresh)):
        particles = teacher(inputs, NUM_SAMPLES)
        result[where] = beside(opu.maximum_likelihood(particles), particles)
    return result


def beside(q: Dirichlet, particles: Tensor) -> dict[str, Any]:
    """How near predictions are to the teacher's particles."""
    mean = measures.mean(particles)
    ranks = {
        name: float(spearmanr(measure(particles).cpu(), measure(q).cpu()).statistic)
        for name, measure in (("entropy", measures.predictive_entropy), ("information", measures.mutual_information))
    }
    return {
        "total_variation": float((q.mean - mean).abs().sum(-1).mean() / 2),
        "same_class": 100 * float((q.mean.argmax(-1) == mean.argmax(-1)).float().mean()),
        "ranks": ranks,
        "log_precision": float(q.log_precision.median()),
    }


def main() -> None:
    """Run every objective for every number of steps."""
    parser = study_options(__doc__, "study-many-classes.json")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--steps", type=int, nargs="+", default=[1500, 6000])
    parser.add_argument("--objectives", nargs="+", default=OBJECTIVES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    runs = [pointwise(options.classes, options.device)]
    trial = partial(run, num_classes=options.classes, device=options.device)
    wanted = list(itertools.product(options.objectives, options.steps))
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        for result in pool.map(trial, *zip(*wanted, strict=True)):
            runs.append(result)
            print(result, flush=True)
            write_json(options.out, {"classes": options.classes, "runs": runs, "environment": environment()})


if __name__ == "__main__":
    main()
