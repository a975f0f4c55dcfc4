"""The fidelity report: how close a student is to its teacher, per input and in total, and what to change."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import spearmanr
from torch import Tensor, nn

from opu import measures
from opu.batches import Batch, check_batch, fit_to, num_rows, split
from opu.checks import check_labels, check_particles
from opu.devices import device_of
from opu.distributions import SimplexDistribution, cat
from opu.distributions.dirichlet import Dirichlet
from opu.distributions.kernels import Kernel
from opu.evaluation import metrics
from opu.fidelity.coverage import LEVEL, by_decile, class_coverage, deciles, distinct_members
from opu.fidelity.families import FEWEST_MEMBERS, FamilyComparison, compare_families
from opu.fidelity.gaps import Gaps, gaps
from opu.fidelity.log_odds import LogOdds, log_odds
from opu.teachers import Teacher

NUM_WORST = 8
NEGLIGIBLE = 0.01  # below this mean distance, the sentence names no cause

ADVICE = {
    "noise": "Monte-Carlo noise: the student is as close as this number of particles can show; draw more of them",
    "family": "the family: no {family} fits these particles, so a larger network would not help",
    "amortisation": "amortisation: train longer, use a larger network, or distil on more inputs",
    "network": "amortisation, on training inputs too: train longer, or use a larger network",
    "inputs": "amortisation, on new inputs only: distil on more inputs, or augment them more",
}

NAMES = {"dirichlet": "Dirichlet", "logistic_normal": "logistic-normal"}


@dataclass(frozen=True)
class Fidelity:
    """A fidelity report.

    Attributes:
        gaps: Distances from the teacher's particles, per input.
        total_variation: Total variation between the class probabilities of teacher and student, per input.
        mutual_information: Mutual information of teacher and student, per input.
        covered: Fraction of the teacher's particles within the student's credible intervals, per input.
        coverage: The same for the predicted class and the runner-up, as :func:`opu.fidelity.coverage.class_coverage` has it.
        log_odds: Teacher and student in the log-odds of the class that the teacher predicts.
        families: The families side by side, fitted to the teacher's particles; None if fewer than three of them differ.
        summary: Averages over the inputs, ready for a json file.
        sentence: What causes most of the distance, and what to change.
    """

    gaps: Gaps
    total_variation: Float[Tensor, " B"]
    mutual_information: dict[str, Float[Tensor, " B"]]
    covered: Float[Tensor, " B"]
    coverage: dict[str, Float[Tensor, " B"]]
    log_odds: LogOdds
    families: FamilyComparison | None
    summary: dict[str, Any]
    sentence: str

    def worst(self, number: int = NUM_WORST) -> list[int]:
        """The inputs with the largest amortisation gap, the largest first."""
        order: list[int] = self.gaps.amortisation.argsort(descending=True)[:number].tolist()
        return order


def report(
    student: nn.Module,
    teacher: Teacher,
    inputs: Batch,
    *,
    labels: Tensor | None = None,
    seen: Batch | None = None,
    num_particles: int = 500,
    kernel: Kernel | None = None,
) -> Fidelity:
    """Compare a student with its teacher.

    Args:
        student: A module that predicts Dirichlets or logistic-normals.
        teacher: Source of the particles.
        inputs: Inputs to compare on, ideally ones that neither was trained on.
        labels: Classes of the inputs; with them the report has the calibration of both.
        seen: Inputs that the student was distilled on; with them the report can tell a small network from too few inputs.
        num_particles: Number of particles per input.
        kernel: Kernel of the MMD; by default the exponential one.
    """
    check_batch(inputs)
    q, log_particles = _predict(student, teacher, inputs, num_particles)
    check_particles(log_particles, num_rows=num_rows(inputs), num_classes=q.num_classes)
    if labels is not None:
        labels, _ = check_labels(torch.as_tensor(labels), num_rows(inputs), q.num_classes)
    distances, on_seen = gaps(q, log_particles, kernel), None
    if seen is not None:
        check_batch(seen, "seen inputs")
        on_seen = gaps(*_predict(student, teacher, seen, num_particles), kernel)
    ours, theirs = q.mean.double(), measures.mean(log_particles.double())
    information = {"teacher": measures.mutual_information(log_particles), "student": measures.mutual_information(q)}
    inside = covered(q, log_particles)
    members, families = distinct_members(log_particles), None
    judges = log_particles if members is None else members  # an ensemble's members count alike, however often they come
    coverage = class_coverage(q, judges)
    odds = log_odds(q, log_particles)
    if members is None or len(members) >= FEWEST_MEMBERS:
        families = compare_families(log_particles, None if isinstance(q, Dirichlet) else q.rank, kernel=kernel)
    variation = (ours - theirs).abs().sum(-1) / 2
    names = ("total", "noise", "family", "amortisation", "bound")
    summary: dict[str, Any] = {
        "num_inputs": num_rows(inputs),
        "num_particles": len(log_particles),
        "num_members": None if members is None else len(members),
        "family": "dirichlet" if isinstance(q, Dirichlet) else "logistic_normal",
        "mmd": {name: _mean(getattr(distances, name)) for name in names},
        "squared": distances.squared_parts(),
        "total_variation": _mean(variation),
        "same_class": 100 * _mean(ours.argmax(-1) == theirs.argmax(-1)),
        "spearman_of_mutual_information": _spearman(**information),
        "log_odds": odds.medians(),
        "coverage": _coverage(inside, coverage, measures.predictive_entropy(judges)),
        "families": None if families is None else families.summary(),
        "dominant": _dominant(distances, on_seen),
    }
    if on_seen is not None:
        summary["amortisation_on_seen_inputs"] = _mean(on_seen.amortisation)
    if labels is not None:
        models = {"teacher": theirs.cpu(), "student": ours.cpu()}
        summary["calibration"] = {name: calibration(p, labels.cpu()) for name, p in models.items()}
    sentence = _sentence(summary)
    return Fidelity(distances, variation, information, inside, coverage, odds, families, summary, sentence)


def calibration(probabilities: Float[Tensor, "B K"], labels: Tensor) -> dict[str, Any]:
    """Accuracy, NLL, ECE, and the bins of a reliability diagram."""
    return {
        "accuracy": metrics.accuracy(probabilities, labels),
        "nll": metrics.negative_log_likelihood(probabilities, labels),
        "ece": metrics.calibration_error(probabilities, labels),
        "bins": metrics.reliability(probabilities, labels),
    }


def covered(q: SimplexDistribution, log_particles: Float[Tensor, "S B K"]) -> Float[Tensor, " B"]:
    """Fraction of an input's particles within its credible intervals, averaged over classes.

    Particles are taken as they are, as in all recorded reports; :func:`opu.fidelity.coverage.class_coverage` normalises
    them again, which adds those that float32 has rounded to 1.
    """
    # In float32, a particle at a corner and the end of its interval would both be rounded to 1.
    low, high = (end.to(log_particles.device) for end in q.to(torch.float64).interval(LEVEL))
    parts = (part.double().exp() for part in log_particles.split(64))
    counts = torch.stack([((part >= low) & (part <= high)).sum(0) for part in parts]).sum(0)
    return counts.double().mean(-1) / len(log_particles)


def _coverage(inside: Tensor, coverage: dict[str, Tensor], entropy: Tensor) -> dict[str, Any]:
    """In percent: of all classes, of the predicted one and the runner-up, and by decile of the teacher's entropy."""
    parts = ("predicted", "runner_up", "below", "above")
    return {
        "level": LEVEL,
        "of_teacher": 100 * _mean(inside),
        "predicted": 100 * _mean(coverage["predicted"]),
        "runner_up": 100 * _mean(coverage["runner_up"]),
        "by_decile": {
            "num_inputs": [len(rows) for rows in deciles(entropy)],
            **{part: [100 * share for share in by_decile(entropy, coverage[part])] for part in parts},
        },
    }


@torch.no_grad()
def _predict(
    student: nn.Module, teacher: Teacher, inputs: Batch, num_particles: int
) -> tuple[SimplexDistribution, Tensor]:
    student.eval()
    device, parts = device_of(student), list(split(inputs, 1000))
    q = cat([student(fit_to(part, student)) for part in parts])
    if isinstance(q, Dirichlet):
        q = Dirichlet.from_logits(q.log_mean, q.log_precision)  # a user's own student may be normalised only roughly
    return q, torch.cat([teacher(part, num_particles).to(device) for part in parts], 1)


def _dominant(distances: Gaps, on_seen: Gaps | None) -> str:
    parts = distances.squared_parts()
    largest = max(parts, key=parts.__getitem__)
    if largest != "amortisation" or on_seen is None:
        return largest
    # If the gap is less than half as large on training inputs, the network is large enough but has seen too few inputs.
    return "inputs" if 2 * _mean(on_seen.amortisation) < _mean(distances.amortisation) else "network"


def _sentence(summary: dict[str, Any]) -> str:
    squared, distance, cause = summary["squared"], summary["mmd"]["total"], summary["dominant"]
    if distance < NEGLIGIBLE:
        return f"In MMD, the student is as good as its teacher's particles: the mean distance is {distance:.2g}."
    part, advice = squared.get(cause, squared["amortisation"]), ADVICE[cause].format(family=NAMES[summary["family"]])
    return f"{100 * part / max(sum(squared.values()), 1e-300):.0f} % of the squared distance is due to {advice}."


def _mean(values: Tensor) -> float:
    return float(values.double().mean())


def _spearman(teacher: Tensor, student: Tensor) -> float | None:
    if len(teacher) < 3 or any(bool((values == values[0]).all()) for values in (teacher, student)):
        return None
    return float(spearmanr(np.asarray(teacher.cpu()), np.asarray(student.cpu())).statistic)
