"""A student with every measure of uncertainty behind it, as one network of operators that every runtime has."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from opu.batches import Batch, rebuild
from opu.distributions.dirichlet import Dirichlet
from opu.export.gamma import HIGHEST, LOWEST, Table
from opu.export.ranks import NoveltyRanks
from opu.measures import MEASURES, Measure, named
from opu.novelty import Novelty
from opu.students import Student
from opu.students.impute import Prepare

CLOSED_FORM = named("E", "EE", "MI", "D")
_READ_OFF = named("P", "C")  # anyone can read these off the probabilities and the log-precision


def output_names(calibrated: bool) -> tuple[str, ...]:
    """The outputs of a file in their order; measures without a closed form of ours come last."""
    ranked = (*named("N"), "novelty_p_value") if calibrated else ()
    return ("probabilities", "log_precision", *CLOSED_FORM, *ranked, *(measure.name for measure in _others()))


def _others() -> list[Measure]:
    known = (*CLOSED_FORM, *_READ_OFF, *named("N"))
    return [measure for measure in MEASURES.values() if measure.name not in known]


class StudentWithMeasures(nn.Module):
    """A student with the preparation of its inputs before it and all measures behind it.

    From the logits on everything is computed in float64, as in the library, and rounded at the end.

    Args:
        student: A trained student. It is not changed.
        prepare: From raw inputs to those that the student was distilled on.
        like: A batch of inputs, if they are not one tensor: a dict, tuple or dataclass of tensors.
    """

    def __init__(
        self, student: Student, prepare: Callable[[Tensor], Tensor] | None = None, like: Batch | None = None
    ) -> None:
        super().__init__()
        self.student, self.prepare = student, prepare
        self.like = None if isinstance(like, Tensor) else like
        self.names = output_names(calibrated=student.novelty is not None)
        self.closed_form = ClosedForm(student.novelty)
        self.others = _others()
        self.eval()

    def forward(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """One tensor for each of ``names``, from the tensors of a batch in the order of :func:`opu.batches.tensors`."""
        x = parts[0] if self.like is None else rebuild(self.like, parts)
        logits, log_precision = self.student.heads(x if self.prepare is None else self.prepare(x))
        exact = logits.double(), log_precision.double()
        mean, found = self.closed_form(*exact)
        if self.closed_form.novelty is not None and isinstance(self.prepare, Prepare):
            ranks = self.closed_form.novelty.marked(found[:, -2:], self.prepare.unexpected(x))
            found = torch.cat([found[:, :-2], ranks], -1)
        others = [measure(Dirichlet.from_logits(*exact)).to(logits.dtype) for measure in self.others]
        return mean.to(logits.dtype), log_precision, *found.to(logits.dtype).unbind(-1), *others


class ClosedForm(nn.Module):
    r"""Entropies, mutual information and novelty from logits and log-precision.

    A runtime pays for every operator, whatever its size. Therefore :math:`\alpha_0` is treated as one more class whose mean
    is 1: all measures are then sums over classes of a few functions, and one product with a constant matrix gives them all.
    """

    def __init__(self, novelty: Novelty | None) -> None:
        super().__init__()
        self.table = Table()
        self.novelty = None if novelty is None else NoveltyRanks(novelty)
        self.tilt = 0.0 if novelty is None else float(novelty.blend[1])

    def forward(
        self, logits: Float64[Tensor, "B K"], log_precision: Float64[Tensor, " B"]
    ) -> tuple[Float64[Tensor, "B K"], Float64[Tensor, "B measures"]]:
        """The mean, and one column for each of ``CLOSED_FORM``, novelty and its p-value."""
        log_mean = nn.functional.pad(logits.log_softmax(-1), (0, 1))
        mean = log_mean.exp()
        u = log_mean + log_precision.unsqueeze(-1)  # ln alpha
        inside = u.clamp(LOWEST, HIGHEST)
        functions = self.table(inside)
        excess = functions[..., 0] + (LOWEST - u.clamp(max=LOWEST))
        reciprocal = torch.exp(-u.clamp(min=-700))
        parts = [mean * log_mean, mean * excess, functions.flatten(1), reciprocal, u, inside]
        sums = torch.tensor(_sums(logits.shape[-1], self.tilt), dtype=torch.float64)
        entropy, dispersion, information, differential = (torch.cat(parts, -1) @ sums).split(1, -1)
        information = information.clamp(min=0)
        found = [entropy, (entropy - information).clamp(min=0), information, differential]
        if self.novelty is not None:
            found.append(self.novelty(torch.cat([entropy, dispersion], -1)))
        return mean[:, :-1], torch.cat(found, -1)


def _sums(k: int, tilt: float) -> list[list[float]]:
    """The matrix that sums the parts of :class:`ClosedForm` to entropy, dispersion, information, differential entropy."""
    each, total = np.append(np.ones(k), 0.0), np.append(np.zeros(k), 1.0)
    none = np.zeros(k + 1)
    entropy = [-each, none, none, none, none, none, none]
    dispersion = [none, none, none, none, none, (tilt - 1) * total - tilt / k * each, none]
    information = [none, each - total, none, none, none, none, none]
    # In D the terms in alpha cancel, since concentrations add up to alpha_0, whose digamma is excess + u - 1/alpha. Above
    # the table's end its second function grows by u / 2.
    of_u = (each - total) / 2
    differential = [none, none, (1 - k) * total, each - total, k * total - each, of_u + (1 - k) * total, -of_u]
    columns = [
        np.concatenate([a, b, np.stack([excess, rest], -1).ravel(), *others])
        for a, b, excess, rest, *others in (entropy, dispersion, information, differential)
    ]
    rows: list[list[float]] = np.stack(columns, -1).tolist()
    return rows
