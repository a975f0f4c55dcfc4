"""A student with every measure of uncertainty behind it, as one network of operators that every runtime has."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn

from opu.batches import Batch, fit_to, num_rows, rebuild, tensors
from opu.export.fixed_points import FixedPoints
from opu.export.gamma import HIGHEST, LOWEST, Table
from opu.export.lookups import Lookups, of_rows
from opu.export.ranges import Ranges
from opu.export.ranks import NoveltyRanks
from opu.measures import MEASURES, Measure, all_measures, named
from opu.novelty import LEAST_ENTROPY
from opu.students import Student
from opu.students.families import LogisticNormalFamily
from opu.students.impute import Prepare
from opu.students.start import copied

CLOSED_FORM = named("E", "EE", "MI", "D")
FINITE = "finite"
WITNESSES = "witnesses"
_READ_OFF = named("P", "C")  # anyone can read these off the probabilities and the log-precision


def output_names(calibrated: bool) -> tuple[str, ...]:
    """The outputs of a file in their order; measures without a closed form of ours come last but one."""
    ranked = (*named("N"), "novelty_p_value") if calibrated else ()
    others = (measure.name for measure in _others())
    return ("probabilities", "log_precision", *CLOSED_FORM, *ranked, *others, FINITE)


def _others() -> list[Measure]:
    known = (*CLOSED_FORM, *_READ_OFF, *named("N"))
    return [measure for measure in MEASURES.values() if measure.name not in known]


class StudentWithMeasures(nn.Module):
    """A student with the preparation of its inputs before it and all measures behind it.

    From the logits on everything is computed in float64, as in the library, and rounded at the end. An input that is not
    finite has NaN in all outputs but novelty, its p-value, and ``finite``.

    Args:
        student: A trained student. It is not changed.
        prepare: From raw inputs to those that the student was distilled on.
        like: A batch of inputs: it tells their structure, if they are not one tensor, and what is looked up. The points of
            logistic-normals depend on the number of classes, which it tells too.
        ranks: The novelty score; by default that of the student.
        ranges: The smallest and the largest value of each part of calibration inputs, where the layers clip at these.
    """

    def __init__(
        self,
        student: Student,
        prepare: Callable[[Tensor], Tensor] | None = None,
        like: Batch | None = None,
        ranks: NoveltyRanks | None = None,
        ranges: Ranges | None = None,
    ) -> None:
        super().__init__()
        self.student, self.prepare, self.ranges = student, prepare, ranges
        self.like = None if isinstance(like, Tensor) else like
        novelty = student.novelty
        self.names = output_names(calibrated=novelty is not None)
        self.ranks = NoveltyRanks.of(novelty) if ranks is None and novelty is not None else ranks
        self.others = _others()
        self.eval()
        self.lookups = self._looked_up(like)
        parts = () if like is None else tuple(tensors(like).values())
        self.measured = self._measured(parts, 0.0 if novelty is None else float(novelty.blend[1]))

    def forward(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """One tensor for each of ``names``, from the tensors of a batch in the order of :func:`opu.batches.tensors`."""
        x = self.prepared(parts)
        with Lookups(self.lookups) as lookups:
            logits, parameters = self.student.heads(x)
        mean, log_precision, found, witnesses = self.measured(logits, parameters)
        # A preparation may hide infinity, as tanh does. In a table NaN is a missing value, and Prepare sees to the rest.
        raw = () if self.prepare is None or isinstance(self.prepare, Prepare) else parts
        known = _finite([*raw, *tensors(x).values(), logits, _as_rows(parameters)])
        sound = lookups.sound(parts[0].shape[0])
        known = known if sound is None else known & sound
        found = torch.where(known.unsqueeze(-1), found, torch.nan)
        if self.ranks is not None:
            witnesses = witnesses if self.ranges is None else torch.cat([witnesses, self.ranges.excess(x)], -1)
            novel = self.prepare.unexpected(parts[0]) if isinstance(self.prepare, Prepare) else None
            found = torch.cat([found, self.ranks(witnesses, known, novel)], -1)
        others = [self._other(measure, logits, parameters) for measure in self.others]
        first = torch.where(known.unsqueeze(-1), mean, torch.nan), torch.where(known, log_precision, torch.nan)
        # As in the library, D of a vanishing concentration is the smallest number of the dtype.
        found = found.clamp(min=torch.finfo(logits.dtype).min)
        measured = (*found.to(logits.dtype).unbind(-1), *others)
        return first[0].to(logits.dtype), first[1].to(logits.dtype), *measured, known

    def _other(self, measure: Measure, logits: Tensor, parameters: Tensor) -> Tensor:
        """A measure that no module here computes, from the library's own operations."""
        return measure(self.student.family.distribution(logits.double(), parameters.double())).to(logits.dtype)

    @torch.no_grad()
    def _measured(self, parts: tuple[Tensor, ...], tilt: float) -> "ClosedForm | FixedPoints":
        """All that is behind the heads, by the student's family."""
        family = self.student.family
        if not isinstance(family, LogisticNormalFamily):
            return ClosedForm(tilt)
        assert parts, "an example tells the number of classes"
        logits, _ = self.student.heads(self.prepared(parts))
        return FixedPoints(logits.shape[-1], family.rank, tilt, torch.promote_types(logits.dtype, torch.float32))

    def _looked_up(self, like: Batch | None) -> frozenset[int]:
        """The numbers of the look-ups, such as those of tokens, whose indices belong to rows."""
        parts = () if like is None else tuple(tensors(like).values())
        if not parts or not num_rows(like):
            return frozenset()
        return of_rows(lambda count: self.student.heads(self.prepared(tuple(_rows(part, count) for part in parts))))

    @torch.no_grad()
    def numbers(self, x: Batch) -> list[int]:
        """The places of the parts of prepared inputs that hold numbers: all but masks and indices that are looked up."""
        parts = {name: _rows(part, 2) for name, part in tensors(x).items()}
        found = []
        for place, (name, part) in enumerate(parts.items()):
            if part.dtype == torch.bool:
                continue
            if not part.is_floating_point():
                far = torch.full_like(part, torch.iinfo(part.dtype).max // 2)
                changed = [far if each == name else other for each, other in parts.items()]
                with Lookups(self.lookups) as lookups:
                    self.student.heads(changed[0] if isinstance(x, Tensor) else rebuild(x, changed))
                if (sound := lookups.sound(2)) is not None and not bool(sound.all()):
                    continue
            found.append(place)
        return found

    def prepared(self, parts: tuple[Tensor, ...]) -> Batch:
        """What the student's networks take."""
        x = parts[0] if self.like is None else rebuild(self.like, parts)
        return x if self.prepare is None else fit_to(self.prepare(x), self.student)


def _as_rows(parameters: Tensor) -> Tensor:
    return parameters if parameters.ndim > 1 else parameters.unsqueeze(-1)


def _finite(parts: list[Tensor]) -> Bool[Tensor, " B"]:
    """Which rows are finite; a sum keeps NaN and infinity where a maximum may hide them."""
    rows = [t.flatten(1) for t in parts if t.is_floating_point()]
    # As products, since ONNX Runtime sums an empty batch to a wrong shape. Weights are small, so that large numbers do not
    # add up to infinity.
    sums = [t @ torch.full((t.shape[1], 1), 1e-30, dtype=t.dtype) for t in rows]
    return sum(sums[1:], start=sums[0]).isfinite().squeeze(-1)


def _rows(part: Tensor, count: int) -> Tensor:
    return part[torch.arange(count) % len(part)]


class Witnesses(nn.Module):
    """A student with what novelty is made of behind it: entropy and dispersion."""

    names = (WITNESSES,)

    def __init__(self, network: StudentWithMeasures) -> None:
        super().__init__()
        self.network = network

    def forward(self, *parts: Tensor) -> tuple[Float64[Tensor, "B 2"]]:
        """One tensor, with a column for each."""
        return (self.network.measured(*self.network.student.heads(self.network.prepared(parts)))[-1],)


@torch.no_grad()
def library_outputs(student: Student, prepare: Callable[[Tensor], Tensor] | None, x: Batch) -> dict[str, Tensor]:
    """The outputs of a file as the library computes them, with the student's own type of numbers.

    Args:
        student: A trained student.
        prepare: From raw inputs to those that the student was distilled on.
        x: Raw inputs, finite.
    """
    student = copied(student).cpu().eval()
    q = student(fit_to(x if prepare is None else prepare(x), student))
    found = {"probabilities": q.mean, "log_precision": q.log_precision} | all_measures(q, student.novelty)
    if student.novelty is not None:
        found["novelty_p_value"] = student.novelty.p_value(q)
    names = output_names(calibrated=student.novelty is not None)
    return {name: found[name] for name in names if name in found}


class ClosedForm(nn.Module):
    r"""Entropies, mutual information and what novelty is made of, from a Dirichlet's logits and log-precision.

    A runtime pays for every operator, whatever its size. Therefore :math:`\alpha_0` is treated as one more class whose mean
    is 1: all measures are then sums over classes of a few functions, and one product with a constant matrix gives them all.

    Log-precisions from -300 to 800 are right, D to 1e-11 of its size. Entropies and information next to a corner are small
    sums of larger terms: they have absolute errors of about 1e-16, and the information one of 1e-11 divided by
    :math:`1 + \alpha_0` besides. Within 1e-16 of a corner the entropy is therefore up to 5 % too low, and information and
    expected entropy are rounding. The library itself keeps their digits.

    Args:
        tilt: That of the dispersion, see :class:`opu.novelty.Blend`.
    """

    def __init__(self, tilt: float = 0.0) -> None:
        super().__init__()
        self.table = Table()
        self.tilt = tilt

    def forward(
        self, logits: Float[Tensor, "B K"], log_precision: Float[Tensor, " B"]
    ) -> tuple[Float64[Tensor, "B K"], Float[Tensor, " B"], Float64[Tensor, "B measures"], Float64[Tensor, "B 2"]]:
        """The mean, the log-precision, one column for each of ``CLOSED_FORM``, and entropy and dispersion."""
        log_mean = nn.functional.pad(logits.double().log_softmax(-1), (0, 1))
        mean = log_mean.exp()
        u = log_mean + log_precision.double().unsqueeze(-1)  # ln alpha
        inside = u.clamp(LOWEST, HIGHEST)
        functions = self.table(inside)
        # Below the table the first function is -u; above it, it falls as 1 / alpha.
        excess = functions[..., 0] * torch.exp((HIGHEST - u).clamp(max=0)) + (LOWEST - u.clamp(max=LOWEST))
        reciprocal = torch.exp(-u.clamp(min=-700))
        parts = [mean * log_mean, mean * excess, functions.flatten(1), reciprocal, u, inside]
        sums = torch.tensor(_sums(logits.shape[-1], self.tilt), dtype=torch.float64)
        entropy, dispersion, information, differential = (torch.cat(parts, -1) @ sums).split(1, -1)
        information = information.clamp(min=0)
        found = [entropy, (entropy - information).clamp(min=0), information, differential]
        witnesses = torch.cat([entropy.clamp(min=LEAST_ENTROPY), dispersion], -1)
        return mean[:, :-1], log_precision, torch.cat(found, -1), witnesses


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
