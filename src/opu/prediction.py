"""What a model predicts for a batch of inputs: class probabilities, and every measure of uncertainty by name."""

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from opu import measures
from opu.batches import Batch, check_batch, finite_rows, fit_to, split
from opu.checks import optional
from opu.distributions import SimplexDistribution, cat
from opu.novelty import Novelty, check_rate
from opu.teachers import Teacher
from opu.teachers.base import evaluating

Scores = dict[str, NDArray[np.float64]]
_NUM_SHOWN = 10
_LEVEL = 0.9
_ENOUGH = 100  # calibration inputs, for p-values below 0.01


@dataclass(frozen=True, repr=False)
class Prediction:
    """Predictions of one model for a batch of inputs, as arrays.

    Each measure of uncertainty is an attribute by its name: ``prediction.mutual_information``, ``prediction.novelty``.

    An input with NaN or infinite values has no prediction: its probabilities and measures are NaN, its class is -1, and
    ``finite`` is False. It is always novel, with a novelty above that of all calibration inputs and the least p-value.

    Attributes:
        probabilities: Class probabilities.
        scores: Each measure of uncertainty by name, one value per input.
        novelty_p_value: The p-value of the novelty score, where that is calibrated.
        distribution: The predicted distribution on the simplex, on the CPU; None for models without one.
        by_teacher: Which inputs a cascade passed on to the teacher; None for all other models.
        num_calibration: Number of inputs that calibrated the p-values; None without p-values.
    """

    probabilities: Float[np.ndarray, "B K"]
    scores: Scores
    novelty_p_value: NDArray[np.float64] | None = None
    distribution: SimplexDistribution | None = None
    by_teacher: Bool[np.ndarray, " B"] | None = None
    num_calibration: int | None = None

    def __len__(self) -> int:
        return len(self.probabilities)

    def __getattr__(self, name: str) -> NDArray[np.float64]:
        scores: Scores = self.__dict__.get("scores", {})
        if name in scores:
            return scores[name]
        if name in measures.MEASURES:
            raise AttributeError(f"this prediction has no {name}: the model was not calibrated, see opu.calibrate.")
        raise AttributeError(f"a prediction has no {name!r}; its measures are {', '.join(scores)}.")

    def __getitem__(self, rows: int | slice | list[int] | NDArray[Any]) -> "Prediction":
        """The predictions of some inputs; those of one input, by its number, are a prediction of length one."""
        rows = np.atleast_1d(np.arange(len(self))[rows]).copy()
        return Prediction(
            self.probabilities[rows],
            {name: values[rows] for name, values in self.scores.items()},
            None if self.novelty_p_value is None else self.novelty_p_value[rows],
            None if self.distribution is None else self.distribution[rows],
            None if self.by_teacher is None else self.by_teacher[rows],
            self.num_calibration,
        )

    @property
    def finite(self) -> Bool[np.ndarray, " B"]:
        """Which inputs have a prediction: those without NaN and infinite values, in themselves and in what comes out."""
        known: NDArray[np.bool_] = np.isfinite(self.probabilities).all(-1)
        return known

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The number of the most probable class; -1 where there is no prediction."""
        best: NDArray[np.int64] = np.where(self.finite, self.probabilities.argmax(-1), -1)
        return best

    def flagged(self, rate: float = 0.01) -> Bool[np.ndarray, " B"]:
        """Which inputs are novel, at a rate of false alarms among in-distribution inputs.

        Args:
            rate: Fraction of in-distribution inputs that may be flagged. It must not be below ``1 / (n + 1)`` for ``n``
                calibration inputs, since these cannot tell so small a rate from 0.
        """
        if self.novelty_p_value is None or self.num_calibration is None:
            raise ValueError("these predictions have no p-values: the model was not calibrated, see opu.calibrate.")
        check_rate(rate, self.num_calibration)
        found: NDArray[np.bool_] = self.novelty_p_value <= rate * (1 + 1e-6)  # p-values may come in float32
        return found

    def interval(self, level: float = _LEVEL) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper end of a credible interval for each class probability, both ``(inputs, classes)``."""
        if self.distribution is None:
            raise ValueError(
                "these predictions hold no distribution, so there are no intervals; predict with a student."
            )
        low, high = self.distribution.interval(level)
        return low.double().numpy(), high.double().numpy()

    @property
    def fraction(self) -> float:
        """Fraction of the inputs that a cascade passed on to the teacher."""
        return 0.0 if self.by_teacher is None else float(self.by_teacher.mean())

    def only(self, names: tuple[str, ...]) -> "Prediction":
        """The same prediction with some of its scores."""
        scores = {name: s for name, s in self.scores.items() if name in names}
        return replace(self, scores=scores)

    def columns(self, classes: Iterable[Any] | None = None, level: float | None = _LEVEL) -> dict[str, NDArray[Any]]:
        """Everything by name, one value per input: prediction, probabilities, intervals, measures, p-value, finite.

        Args:
            classes: Names of the classes; their numbers by default.
            level: Level of the intervals; None leaves them out.
        """
        names = np.arange(self.probabilities.shape[1]) if classes is None else np.array(list(classes))
        if len(names) != self.probabilities.shape[1]:
            raise ValueError(f"there are {self.probabilities.shape[1]} classes; got {len(names)} names.")
        chosen: NDArray[Any] = names[self.predicted]
        if not self.finite.all():
            chosen = np.ma.masked_array(chosen, ~self.finite)  # keeps the type of the names
        found: dict[str, NDArray[Any]] = {"prediction": chosen}
        ends = None if level is None or self.distribution is None else self.interval(level)
        for k, name in enumerate(names):
            found[f"probability_{name}"] = self.probabilities[:, k]
            if ends is not None:
                found |= {f"low_{name}": ends[0][:, k], f"high_{name}": ends[1][:, k]}
        found |= self.scores
        if self.novelty_p_value is not None:
            found["novelty_p_value"] = self.novelty_p_value
        if self.by_teacher is not None:
            found["by_teacher"] = self.by_teacher
        return found | {"finite": self.finite}

    def to_frame(self, classes: Iterable[Any] | None = None, level: float | None = _LEVEL) -> Any:
        """A pandas frame with a line per input; see :meth:`columns`."""
        return optional("pandas", "a data frame", "tables").DataFrame(self.columns(classes, level))

    def __repr__(self) -> str:
        header, rows = self._table()
        widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
        lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in (header, *rows)]
        return "\n".join([*lines, self._rest()])

    def _repr_html_(self) -> str:
        header, rows = self._table()
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{html.escape(self._rest())}</p>"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """The first predictions as text."""
        shown = self[:_NUM_SHOWN]
        best = shown.predicted
        columns = {"class": [str(k) for k in best], "probability": _column(shown.probabilities.max(-1), ".3f")}
        if shown.distribution is not None and len(shown):
            low, high = (np.take_along_axis(end, best[:, None], 1)[:, 0] for end in shown.interval())
            columns[f"{_LEVEL:.0%} interval"] = [f"{a:.3f} to {b:.3f}" for a, b in zip(low, high, strict=True)]
        columns |= {name.replace("_", " "): _column(values, ".3g") for name, values in _shown(shown.scores).items()}
        if shown.novelty_p_value is not None:
            columns["p-value"] = _column(shown.novelty_p_value, ".2g")
        if shown.by_teacher is not None:
            columns["by"] = ["teacher" if each else "student" for each in shown.by_teacher]
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        return ["input", *columns], [[str(number), *row] for number, row in enumerate(rows)]

    def _rest(self) -> str:
        more = f"; {len(self) - _NUM_SHOWN} more" if len(self) > _NUM_SHOWN else ""
        parts = [f"{len(self)} predictions over {self.probabilities.shape[1]} classes{more}"]
        if missing := int((~self.finite).sum()):
            parts.append(f"{missing} without one, since they are not finite")
        if self.num_calibration is not None and self.num_calibration < _ENOUGH:
            parts.append(
                f"p-values are 1/{self.num_calibration + 1} at least, from {self.num_calibration} held-out inputs"
            )
        return "; ".join(parts)


def _shown(scores: Scores) -> Scores:
    """The measures that fit into a small table: one for each question."""
    return {name: scores[name] for name in measures.named("E", "MI", "N") if name in scores}


def _column(values: NDArray[Any], form: str) -> list[str]:
    return [format(float(value), form) for value in values]


def predict_student(student: nn.Module, x: Batch, batch_size: int = 1024) -> Prediction:
    """A student's probabilities and measures, novelty included where it is calibrated."""
    check_batch(x)
    return predict_batches(student, split(x, batch_size))


def predict_batches(student: nn.Module, batches: Iterable[Batch]) -> Prediction:
    """The same for inputs that come in batches."""
    novelty = novelty_of(student)
    parts = [_predicted(student, fit_to(part, student), novelty) for part in batches]
    if not parts:
        raise ValueError("there are no inputs to predict: the loader or iterable gave no batch. Can it be read again?")
    return joined(parts)


@torch.no_grad()
def predict_teacher(teacher: Teacher, x: Batch, num_particles: int = 500, batch_size: int = 256) -> Prediction:
    """A teacher's probabilities and measures, from its particles."""
    check_batch(x)
    clouds = (teacher(part, num_particles) for part in split(x, batch_size))
    return joined(
        [Prediction(measures.mean(each).cpu().numpy(), as_arrays(measures.all_measures(each))) for each in clouds]
    )


def novelty_of(student: nn.Module) -> Novelty | None:
    """The calibrated novelty score of a student, if it has one, for the type of numbers that the student computes in."""
    novelty = getattr(student, "novelty", None)
    if not isinstance(novelty, Novelty):
        return None
    weight = next((w for w in student.parameters() if w.is_floating_point()), torch.empty(0))
    kind = weight.device.type
    half = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    return novelty.in_arithmetic(half)


def as_arrays(scores: Mapping[str, Tensor]) -> Scores:
    """Scores as arrays of float64."""
    return {name: s.double().cpu().numpy() for name, s in scores.items()}


def _predicted(student: nn.Module, x: Batch, novelty: Novelty | None) -> Prediction:
    with evaluating(student):
        q: SimplexDistribution = student(x)
    # Pooling and activations may hide that an input is not finite; what the network then says means nothing.
    known = finite_rows(x) & q.mean.isfinite().all(-1) & q.log_precision.isfinite()
    if not bool(known.all()):
        q = q.where(known)  # NaN in all other rows, for which novelty has the least p-value
    here = q.cpu()
    scores = as_arrays(measures.all_measures(q, novelty))
    if novelty is None:
        return Prediction(q.mean.cpu().numpy(), scores, None, here)
    p_values = novelty.p_value(q).double().cpu().numpy()
    return Prediction(q.mean.cpu().numpy(), scores, p_values, here, num_calibration=len(novelty.scores))


def joined(parts: list[Prediction]) -> Prediction:
    """Predictions of several batches as one."""
    scores = {name: np.concatenate([part.scores[name] for part in parts]) for name in parts[0].scores}
    p_values = [part.novelty_p_value for part in parts if part.novelty_p_value is not None]
    found = [part.distribution for part in parts if part.distribution is not None]
    asked = [part.by_teacher for part in parts if part.by_teacher is not None]
    return Prediction(
        np.concatenate([part.probabilities for part in parts]),
        scores,
        np.concatenate(p_values) if p_values else None,
        cat(found) if found else None,
        np.concatenate(asked) if asked else None,
        parts[0].num_calibration,
    )
