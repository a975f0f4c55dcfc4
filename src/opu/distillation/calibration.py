"""Calibrating a student's novelty score."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from opu.batches import Batch, fit_to, split, take, tensors
from opu.distributions import SimplexDistribution, cat
from opu.inputs.source import NONE
from opu.novelty import FOR_IMAGES, FOR_TABLES, Blend, Novelty
from opu.students.base import as_student
from opu.students.reading import batches_for


@torch.no_grad()
def calibrate(student: nn.Module, inputs: Any, blend: Blend | None = None) -> Novelty:
    """Calibrate a student's novelty score on in-distribution inputs, ideally ones that its teacher was not trained on.

    :func:`opu.distill` does this with its held-out inputs; call it again if there are better ones.

    Args:
        student: The score becomes its ``novelty``.
        inputs: In-distribution inputs, some hundreds, of any kind that :func:`opu.distill` takes. Rows with NaN or infinite
            values are refused. P-values are never below ``1 / (n + 1)``, so flagging below 0.01 needs a hundred.
        blend: What the score is made of; chosen by the shape of the inputs by default.
    """
    return calibrate_on(student, list(batches_for(as_student(student), inputs)), blend)


@torch.no_grad()
def calibrate_on(student: nn.Module, batches: list[Batch], blend: Blend | None = None) -> Novelty:
    """The same for inputs that are batches already."""
    if not batches:
        raise ValueError(NONE)
    student.eval()
    ours = as_student(student)
    novelty = Novelty.fit(predict_all(student, batches), blend or default_blend(batches[0]))
    ours.saw(take(batches[0], slice(0, 1)), ours.columns())
    ours.set_novelty(novelty)
    return novelty


def default_blend(example: Batch) -> Blend:
    """What novelty is made of by default: a table has one axis of features, and its numbers are not integers."""
    parts = tensors(example).values()
    return FOR_TABLES if all(t.ndim <= 2 and t.is_floating_point() for t in parts) else FOR_IMAGES


@torch.no_grad()
def predict_all(student: nn.Module, batches: Iterable[Batch], batch_size: int = 1024) -> SimplexDistribution:
    """The predicted distributions of all inputs, some at a time."""
    parts = (part for batch in batches for part in split(batch, batch_size))
    return cat([student(fit_to(part, student)) for part in parts])
