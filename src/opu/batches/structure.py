"""The structure of a batch: its tensors by name, and what is done to all of them alike."""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from opu.checks import check_inputs

# A tensor, or a dict, tuple, list or dataclass of batches. Other values in a dataclass are left as they are.
Batch = Any


def together(function: Callable[[list[Any]], Any], batches: Sequence[Batch]) -> Batch:
    """Apply a function to the tensors at the same place of several batches; the result has the first one's structure.

    Args:
        function: From the tensors at one place, in the order of the batches.
        batches: One or more batches of the same structure.
    """
    first = batches[0]
    if isinstance(first, Tensor):
        return function(list(batches))
    if isinstance(first, Mapping):
        return {key: together(function, [each[key] for each in batches]) for key in first}
    if isinstance(first, tuple | list):
        parts = [together(function, each) for each in zip(*batches, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if is_dataclass(first):
        new = copy.copy(first)
        for field in dataclasses.fields(first):
            value = together(function, [getattr(each, field.name) for each in batches])
            object.__setattr__(new, field.name, value)  # also where it is frozen
        return new
    return first


def is_dataclass(batch: Batch) -> bool:
    """Whether this is an object of a dataclass, and not the class itself."""
    return dataclasses.is_dataclass(batch) and not isinstance(batch, type)


def each(function: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """Apply a function to every tensor of a batch."""
    return together(lambda tensors: function(tensors[0]), [batch])


def tensors(batch: Batch) -> dict[str, Tensor]:
    """All tensors of a batch by name: keys and fields, positions in tuples, with dots between levels."""
    if isinstance(batch, Tensor):
        return {"": batch}
    return {f"{key}.{name}".strip("."): t for key, part in parts_of(batch).items() for name, t in tensors(part).items()}


def parts_of(batch: Batch) -> dict[str, Any]:
    """The parts of a batch by name, one level deep; none for a tensor."""
    if isinstance(batch, Mapping):
        return {str(key): part for key, part in batch.items()}
    if isinstance(batch, tuple | list):
        return {str(key): part for key, part in zip(getattr(batch, "_fields", range(len(batch))), batch, strict=True)}
    if is_dataclass(batch):
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {}


def rebuild(like: Batch, parts: Sequence[Tensor]) -> Batch:
    """A batch with the structure of another one, from its tensors in the order of :func:`tensors`."""
    remaining = iter(parts)
    return each(lambda _: next(remaining), like)


def num_rows(batch: Batch) -> int:
    """Number of inputs in a batch."""
    return len(first_tensor(batch))


def first_tensor(batch: Batch) -> Tensor:
    """The first tensor of a batch."""
    return batch if isinstance(batch, Tensor) else next(iter(tensors(batch).values()))


def take(batch: Batch, rows: Tensor | slice) -> Batch:
    """Some rows of a batch."""
    return each(lambda t: t[rows.to(t.device) if isinstance(rows, Tensor) else rows], batch)


def split(batch: Batch, size: int) -> Iterator[Batch]:
    """A batch in parts of at most so many rows."""
    if isinstance(batch, Tensor):
        yield from batch.split(size)
        return
    for start in range(0, num_rows(batch), size):
        yield take(batch, slice(start, start + size))


def first_rows(batches: Iterable[Batch], most: int) -> Iterator[Batch]:
    """The first batches, up to so many rows in all."""
    for batch in batches:
        yield take(batch, slice(0, most))
        most -= num_rows(batch)
        if most <= 0:
            return


def cat(batches: Sequence[Batch]) -> Batch:
    """One batch of the rows of all."""
    return batches[0] if len(batches) == 1 else together(torch.cat, batches)


def cat_alike(batches: Iterable[Batch]) -> list[Batch]:
    """One batch for all rows of the same shape; sequences come in several lengths."""
    groups: dict[tuple[Any, ...], list[Batch]] = {}
    for batch in batches:
        groups.setdefault(shapes(batch), []).append(batch)
    return [cat(group) for group in groups.values()]


def repeat(batch: Batch, count: int) -> Batch:
    """The rows of a batch so many times, one copy after another."""
    return each(lambda t: t.repeat(count, *[1] * (t.ndim - 1)), batch)


def to_device(batch: Batch, device: torch.device | str) -> Batch:
    """A batch on this device."""
    return each(lambda t: t.to(device), batch)


def fit_to(batch: Batch, module: nn.Module) -> Batch:
    """A batch on the device of a module's weights, with floating-point numbers of the weights' type."""
    weight = next((w for w in module.parameters() if w.is_floating_point()), None)
    if weight is None:
        return batch
    return each(lambda t: t.to(weight.device, weight.dtype if t.is_floating_point() else t.dtype), batch)


def shapes(batch: Batch) -> tuple[Any, ...]:
    """The shape of a row at every place, for comparison and for messages."""
    if isinstance(batch, Tensor):
        return tuple(batch.shape[1:])
    return tuple((name, tuple(t.shape[1:])) for name, t in tensors(batch).items())


def describe(batch: Batch) -> str:
    """A batch in words for messages: its shape, or the shapes of its parts by name."""
    if isinstance(batch, Tensor):
        return f"shape {tuple(batch.shape)}"
    parts = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors(batch).items())
    return f"parts {parts}" if parts else f"type {type(batch).__name__}"


def finite_rows(batch: Batch) -> Bool[Tensor, " B"]:
    """Which rows hold finite numbers only, in all their parts."""
    parts = [t.isfinite().reshape(len(t), -1).all(1) for t in tensors(batch).values()]
    return torch.stack(parts).all(0)


def check_batch(batch: Batch, what: str = "inputs", first_row: int = 0, *, finite: bool = True) -> None:
    """Refuse a batch that is empty, not finite, or has parts of different lengths.

    Args:
        batch: A batch of inputs.
        what: Name of the inputs in the error.
        first_row: Number of the first row in the error.
        finite: Whether NaN and infinite values are refused.
    """
    if isinstance(batch, Tensor):
        check_inputs(batch, what, first_row, finite=finite)
        return
    parts = tensors(batch)
    if not parts:
        raise ValueError(f"{what} must hold tensors; got {type(batch).__name__} without any.")
    rows = {name: len(t) if t.ndim else 0 for name, t in parts.items()}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{name} has {count}" for name, count in rows.items())
        raise ValueError(
            f"all parts of an input must have the same number of rows; {counts}. Give batches of different sizes as a list."
        )
    for name, t in parts.items():
        check_inputs(t if t.ndim != 1 else t.unsqueeze(1), f"{what}, part {name},", first_row, finite=finite)
