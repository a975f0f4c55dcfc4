"""Calibrating a student's novelty score."""

import torch
from torch import Tensor, nn

from opu.distributions.dirichlet import Dirichlet
from opu.novelty import FOR_IMAGES, FOR_TABLES, Blend, Novelty
from opu.students.base import as_student


@torch.no_grad()
def calibrate(student: nn.Module, inputs: Tensor, blend: Blend | None = None) -> Novelty:
    """Calibrate a student's novelty score on in-distribution inputs, ideally ones that its teacher was not trained on.

    :func:`opu.distill` does this with its held-out inputs; call it again if there are better ones.

    Args:
        student: The score becomes its ``novelty``.
        inputs: In-distribution inputs, some hundreds.
        blend: What the score is made of; chosen by the shape of the inputs by default.
    """
    student.eval()
    novelty = Novelty.fit(predict_all(student, inputs), blend or (FOR_TABLES if inputs.ndim == 2 else FOR_IMAGES))
    ours = as_student(student)
    ours.saw(inputs)
    ours.set_novelty(novelty)
    return novelty


@torch.no_grad()
def predict_all(student: nn.Module, inputs: Tensor, batch_size: int = 1024) -> Dirichlet:
    """The predicted distributions of all inputs, some at a time."""
    return Dirichlet.cat([student(part) for part in inputs.split(batch_size)])
