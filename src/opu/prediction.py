"""What a model predicts for a batch of inputs: class probabilities, and every measure of uncertainty by name."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from opu import measures
from opu.checks import check_inputs
from opu.devices import device_of
from opu.distributions.dirichlet import Dirichlet
from opu.novelty import Novelty
from opu.teachers import Teacher

Scores = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Prediction:
    """Predictions of one model for a batch of inputs.

    Attributes:
        probabilities: Class probabilities.
        scores: Each measure of uncertainty by name, one value per input.
        p_values: The p-value of the novelty score, where that is calibrated.
        by_teacher: Which inputs a cascade passed on to the teacher; None for all other models.
    """

    probabilities: Float[Tensor, "B K"]
    scores: Scores
    p_values: NDArray[np.float64] | None = None
    by_teacher: Bool[Tensor, " B"] | None = None

    @property
    def fraction(self) -> float:
        """Fraction of the inputs that a cascade passed on to the teacher."""
        return 0.0 if self.by_teacher is None else float(self.by_teacher.double().mean())

    def only(self, names: tuple[str, ...]) -> "Prediction":
        """The same prediction with some of its scores."""
        return Prediction(self.probabilities, {m: s for m, s in self.scores.items() if m in names}, self.p_values)


@torch.no_grad()
def predict_student(student: nn.Module, x: Tensor, batch_size: int = 1024) -> Prediction:
    """A student's probabilities and measures, novelty included where it is calibrated."""
    check_inputs(x)
    student.eval()
    device, novelty = device_of(student), novelty_of(student)
    return _joined([_of_dirichlet(student(part.to(device)), novelty) for part in x.split(batch_size)])


@torch.no_grad()
def predict_teacher(teacher: Teacher, x: Tensor, num_particles: int = 500, batch_size: int = 256) -> Prediction:
    """A teacher's probabilities and measures, from its particles."""
    check_inputs(x)
    clouds = (teacher(part, num_particles) for part in x.split(batch_size))
    return _joined([Prediction(measures.mean(each).cpu(), as_arrays(measures.all_measures(each))) for each in clouds])


def novelty_of(student: nn.Module) -> Novelty | None:
    """The calibrated novelty score of a student, if it has one."""
    novelty = getattr(student, "novelty", None)
    return novelty if isinstance(novelty, Novelty) else None


def as_arrays(scores: Mapping[str, Tensor]) -> Scores:
    """Scores as arrays of float64."""
    return {name: s.double().cpu().numpy() for name, s in scores.items()}


def _of_dirichlet(q: Dirichlet, novelty: Novelty | None) -> Prediction:
    p_values = None if novelty is None else novelty.p_value(q).double().cpu().numpy()
    return Prediction(q.mean.cpu(), as_arrays(measures.all_measures(q, novelty)), p_values)


def _joined(parts: list[Prediction]) -> Prediction:
    scores = {name: np.concatenate([part.scores[name] for part in parts]) for name in parts[0].scores}
    found = [part.p_values for part in parts if part.p_values is not None]
    return Prediction(
        torch.cat([part.probabilities for part in parts]), scores, np.concatenate(found) if found else None
    )
