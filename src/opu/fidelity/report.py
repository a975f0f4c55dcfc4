"""The fidelity report: how well a student stands for its teacher, input by input and in total, and what to change."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import spearmanr
from torch import Tensor, nn

from opu import measures
from opu.checks import check_inputs, check_labels, check_particles
from opu.distributions.dirichlet import Dirichlet
from opu.distributions.kernels import Kernel
from opu.evaluation import metrics
from opu.fidelity.gaps import Gaps, gaps, in_double
from opu.teachers import Teacher

LEVEL = 0.9
NUM_WORST = 8
# A mean distance that a reader would call none; the sentence changes there and nothing else does.
NEGLIGIBLE = 0.01

ADVICE = {
    "noise": "the particles themselves: draw more of them, since the student is about as near as they can tell",
    "family": "the family: no Dirichlet fits these clouds, so a richer family is needed, and a larger network would not help",
    "amortisation": "amortisation: a Dirichlet could be nearer, so train longer, or take a larger network or wider inputs",
    "network": "amortisation, on inputs that it has seen as well: train longer, or give the student a larger network",
    "inputs": "amortisation, on inputs that it has not seen: give it more of them, or wider ones",
}


@dataclass(frozen=True)
class Fidelity:
    """What a report holds.

    Attributes:
        gaps: Distances to the teacher's particles, for each input.
        total_variation: Between the two class probabilities, for each input.
        mutual_information: Of teacher and student, for each input.
        covered: Share of the teacher's particles within the student's credible intervals, for each input.
        summary: All of it in a few numbers, ready for a json file.
        sentence: What dominates, and what to change.
    """

    gaps: Gaps
    total_variation: Float[Tensor, " B"]
    mutual_information: dict[str, Float[Tensor, " B"]]
    covered: Float[Tensor, " B"]
    summary: dict[str, Any]
    sentence: str

    def worst(self, number: int = NUM_WORST) -> list[int]:
        """The inputs on which amortisation costs most, the worst first."""
        order: list[int] = self.gaps.amortisation.argsort(descending=True)[:number].tolist()
        return order


def report(
    student: nn.Module,
    teacher: Teacher,
    inputs: Tensor,
    *,
    labels: Tensor | None = None,
    seen: Tensor | None = None,
    num_particles: int = 500,
    kernel: Kernel | None = None,
) -> Fidelity:
    """Compare a student with its teacher.

    Args:
        student: Prediction with a Dirichlet.
        teacher: Asked for ``num_particles`` particles of every input.
        inputs: Best ones that neither has seen.
        labels: Of the inputs, where calibration is wanted.
        seen: Inputs that the student was trained on; with them the report can tell a small network from narrow inputs.
        num_particles: For each input.
        kernel: Of the MMD; exponential unless given.
    """
    check_inputs(inputs)
    if labels is not None:
        labels = torch.as_tensor(labels)
    q, log_particles = _answers(student, teacher, inputs, num_particles)
    check_particles(log_particles, num_rows=len(inputs), num_classes=q.num_classes)
    if labels is not None:
        labels, _ = check_labels(labels, len(inputs), q.num_classes)
    distances = gaps(q, log_particles, kernel)
    elsewhere = None
    if seen is not None:
        check_inputs(seen, "seen inputs")
        elsewhere = gaps(*_answers(student, teacher, seen, num_particles), kernel)
    ours, theirs = q.mean.double(), measures.mean(log_particles.double())
    information = {"teacher": measures.mutual_information(log_particles), "student": measures.mutual_information(q)}
    held = covered(q, log_particles)
    variation = (ours - theirs).abs().sum(-1) / 2
    dominant = _dominant(distances, elsewhere)
    summary: dict[str, Any] = {
        "num_inputs": len(inputs),
        "num_particles": len(log_particles),
        "mmd": {
            name: _mean(getattr(distances, name)) for name in ("total", "noise", "family", "amortisation", "bound")
        },
        "squared": distances.squared_parts(),
        "total_variation": _mean(variation),
        "same_class": 100 * _mean((ours.argmax(-1) == theirs.argmax(-1)).double()),
        "spearman_of_mutual_information": _spearman(**information),
        "coverage": {"level": LEVEL, "of_teacher": 100 * _mean(held)},
        "dominant": dominant,
    }
    if elsewhere is not None:
        summary["amortisation_on_seen_inputs"] = _mean(elsewhere.amortisation)
    if labels is not None:
        who = {"teacher": theirs.cpu(), "student": ours.cpu()}
        summary["calibration"] = {name: calibration(p, labels.cpu()) for name, p in who.items()}
    return Fidelity(distances, variation, information, held, summary, _sentence(summary))


def calibration(probabilities: Float[Tensor, "B K"], labels: Tensor, num_bins: int = 10) -> dict[str, Any]:
    """Accuracy, NLL, ECE, and the bins of a reliability diagram: confidence, accuracy and count of each that is not empty."""
    confidence, predicted = probabilities.double().max(-1)
    right = (predicted == labels).double()
    place = (confidence * num_bins).long().clamp(max=num_bins - 1)
    bins = []
    for number in range(num_bins):
        inside = place == number
        if bool(inside.any()):
            bins.append([_mean(confidence[inside]), _mean(right[inside]), int(inside.sum())])
    return {
        "accuracy": metrics.accuracy(probabilities, labels),
        "nll": metrics.negative_log_likelihood(probabilities, labels),
        "ece": metrics.calibration_error(probabilities, labels),
        "bins": bins,
    }


@torch.no_grad()
def _answers(student: nn.Module, teacher: Teacher, inputs: Tensor, num_particles: int) -> tuple[Dirichlet, Tensor]:
    student.eval()
    device = next(student.parameters()).device
    answers, clouds = [], []
    for part in inputs.split(1000):
        answers.append(student(part.to(device)))
        clouds.append(teacher(part, num_particles).to(device))
    q = Dirichlet.from_logits(torch.cat([a.log_mean for a in answers]), torch.cat([a.log_precision for a in answers]))
    return q, torch.cat(clouds, 1)


def covered(q: Dirichlet, log_particles: Float[Tensor, "S B K"]) -> Float[Tensor, " B"]:
    """Share of an input's particles within its credible intervals, averaged over classes."""
    # In float64: in float32 a particle at a corner and the end of its interval would both round to 1.
    low, high = (end.double().to(log_particles.device) for end in in_double(q).marginals().interval(LEVEL))
    parts = zip(log_particles.split(64), strict=True)
    inside = [((p.double().exp() >= low) & (p.double().exp() <= high)).double().sum(0) for (p,) in parts]
    return torch.stack(inside).sum(0).mean(-1) / len(log_particles)


def _dominant(distances: Gaps, elsewhere: Gaps | None) -> str:
    parts = distances.squared_parts()
    largest = max(parts, key=parts.__getitem__)
    if largest != "amortisation" or elsewhere is None:
        return largest
    # Half of the gap gone on inputs that were trained on: the network can do it, and has not been shown enough.
    narrow = 2 * _mean(elsewhere.amortisation) < _mean(distances.amortisation)
    return "inputs" if narrow else "network"


def _sentence(summary: dict[str, Any]) -> str:
    squared, distances = summary["squared"], summary["mmd"]
    total = max(sum(squared.values()), 1e-300)
    if distances["total"] < NEGLIGIBLE:
        return f"The student is as good as its teacher's particles: the mean distance is {distances['total']:.2g}."
    name = summary["dominant"]
    part = name if name in squared else "amortisation"
    return f"{100 * squared[part] / total:.0f} % of the squared distance is due to {ADVICE[name]}."


def _mean(values: Tensor) -> float:
    return float(values.double().mean())


def _spearman(teacher: Tensor, student: Tensor) -> float | None:
    if len(teacher) < 3 or float(teacher.std()) == 0 or float(student.std()) == 0:
        return None
    return float(spearmanr(np.asarray(teacher.cpu()), np.asarray(student.cpu())).statistic)
