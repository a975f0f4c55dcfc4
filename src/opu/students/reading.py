"""How a student reads inputs as users have them: numbers of its own type, on its own device, and clear words where not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from opu.batches import Batch, cannot_read, each, fit_to, take, tensors, to_device
from opu.checks import listed
from opu.inputs import Features, as_source
from opu.inputs.random_state import random_state, restore_random_state
from opu.teachers.modes import evaluating, without_draws

Convert = Callable[[Batch], Batch]
_SINGLE = (
    "inputs must be a batch; got shape {shape}, which is that of a single example. Give it a leading axis: x[None]."
)


def batches_for(student: Any, inputs: Any, batch_size: int = 1024, *, finite: bool = True) -> Iterator[Batch]:
    """Inputs of any kind in batches that the student can read, on its device.

    Args:
        student: A :class:`opu.students.BaseStudent`.
        inputs: Whatever :func:`opu.distill` takes.
        batch_size: Inputs per batch; a loader's own batches are taken as they come.
        finite: Whether NaN and infinite values are refused.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}.")
    refuse_single(student, inputs)
    inputs = in_known_order(student, inputs)
    features, convert = Features(student.reads(), finite=finite), None
    source = as_source(inputs, features, batch_size=batch_size, endless=True)
    for batch in source.batches(batch_size):
        convert = convert or conversion(student, take(batch, slice(0, 2)), finite=finite)
        yield fit_to(convert(batch), student)


def in_known_order(student: Any, inputs: Any) -> Any:
    """A data frame with its columns in the order that the student was distilled on; all others as they are."""
    known, columns = student.columns(), getattr(inputs, "columns", None)
    if known is None or columns is None:
        return inputs
    by_name = {str(name): name for name in columns}
    given = [*by_name] if len(by_name) == len(columns) else list(map(str, columns))  # names may occur twice
    if given == known:
        return inputs
    if sorted(given) != sorted(known):
        missing = [name for name in known if name not in by_name]
        what = f"{listed(missing)} is missing" if missing else "there are others"
        raise ValueError(f"the student was distilled on a data frame with the columns {listed(known)}; {what}.")
    if len(by_name) < len(given):
        raise ValueError(
            "the student was distilled on a data frame with the same columns in another order, and some names occur more "
            "than once, so it is not known which is which; keep the order."
        )
    return inputs[[by_name[name] for name in known]]


def refuse_single(student: Any, inputs: Any) -> None:
    """Refuse a single example where a batch belongs, if the student knows what an example looks like."""
    known = student.input_shape()
    if known is not None and hasattr(inputs, "shape") and tuple(inputs.shape) == known:
        raise ValueError(_SINGLE.format(shape=known))


def conversion(student: nn.Module, example: Batch, *, finite: bool = True) -> Convert:
    """How inputs become what the student can read: numbers of its own type.

    Integers stay integers if the student can read them, as tokens; otherwise they become floating-point numbers.

    Args:
        student: Is called with the example, without a trace.
        example: A few inputs.
        finite: Whether numbers that are too large for the student's type are refused.
    """
    checked = _checked if finite else lambda convert: convert
    weight = next((w for w in student.parameters() if w.is_floating_point()), torch.empty(0))

    def convert(kinds: tuple[torch.dtype, ...] | None) -> Convert:
        def one(t: Tensor) -> Tensor:
            return t.to(weight.dtype) if t.is_floating_point() or kinds is None or t.dtype in kinds else t

        return lambda batch: each(one, batch)

    attempts = [convert(())]
    if not _is_floating(example):
        attempts += [convert((torch.uint8,)), convert(None)]
    known: dict[Any, int] = getattr(student, "known_conversions", {})
    kind = tuple((name, t.dtype, t.ndim) for name, t in tensors(example).items())
    if kind in known:  # the trial would take longer than a prediction
        return checked(attempts[known[kind]])
    reasons: list[Exception] = []
    for number, attempt in enumerate(attempts):
        try:
            # Other threads may be drawing random numbers; a student hardly ever does, and then nothing is restored.
            with without_draws(partial(restore_random_state, random_state())), evaluating(student):
                student(to_device(attempt(example), weight.device))
            known[kind] = number
            return checked(attempt)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, AttributeError, KeyError, IndexError, ValueError) as error:
            reasons.append(error)
    if isinstance(reasons[0], ValueError):
        raise reasons[0]
    raise cannot_read("the student", example, reasons[0]) from reasons[0]


def _is_floating(batch: Batch) -> bool:
    return all(t.is_floating_point() for t in tensors(batch).values())


def _checked(convert: Convert) -> Convert:
    """The conversion, which refuses numbers that are too large for the student's type."""

    def refusing(batch: Batch) -> Batch:
        changed = convert(batch)
        before, after = tensors(batch), tensors(changed)
        for name, t in after.items():
            if t.dtype == before[name].dtype or bool(t.isfinite().all()):
                continue
            if bool(before[name].isfinite().all()):
                raise ValueError(
                    f"inputs must be finite in {str(t.dtype).removeprefix('torch.')}, the student's type of numbers; got "
                    "values that are too large for it. Scale them, or use student.double()."
                )
        return changed

    return refusing


@contextmanager
def trial(student: nn.Module) -> Iterator[None]:
    """A call that leaves no trace: no gradients, evaluation mode, and the random state restored.

    Random numbers that another thread draws meanwhile may come again, so this is for the preparation of a run alone.
    """
    state = random_state()
    try:
        with evaluating(student):
            yield
    finally:
        restore_random_state(state)


def explained(student: Any, x: Any, error: Exception) -> Exception:
    """The reason why a student could not read what it was called with, in one sentence."""
    if isinstance(error, torch.OutOfMemoryError):
        return error
    parts = list(tensors(x).values())
    if not parts:
        return ValueError(
            f"a student is called with tensors, student(x); got {type(x).__name__}. For arrays, data frames and lists use "
            "student.predict(x)."
        )
    if isinstance(x, Tensor) and (x.ndim < 2 or tuple(x.shape) == student.input_shape()):
        return ValueError(_SINGLE.format(shape=tuple(x.shape)))
    weight = next((w for w in student.parameters() if w.is_floating_point()), None)
    if weight is None or torch.is_autocast_enabled(weight.device.type):
        return cannot_read("the student", x, error)
    for t in parts:
        if t.device != weight.device:
            return ValueError(
                f"this student is on {weight.device} and its inputs are on {t.device}; move them, or use student.predict(x)."
            )
        if t.is_floating_point() and t.dtype != weight.dtype:
            wanted, found = (str(each).removeprefix("torch.") for each in (weight.dtype, t.dtype))
            return ValueError(
                f"this student takes numbers of type {wanted}; got {found}. Convert them, or use student.predict(x)."
            )
    return cannot_read("the student", x, error)
