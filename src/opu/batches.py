"""Batches as users have them: a tensor, or a dict, tuple or dataclass of tensors, all with one row for each input."""

import copy
import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from opu.checks import check_inputs, first_line

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


def check_batch(batch: Batch, what: str = "inputs", first_row: int = 0) -> None:
    """Refuse a batch that is empty, not finite, or has parts of different lengths.

    Args:
        batch: A batch of inputs.
        what: Name of the inputs in the error.
        first_row: Number of the first row in the error.
    """
    if isinstance(batch, Tensor):
        check_inputs(batch, what, first_row)
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
        check_inputs(t if t.ndim != 1 else t.unsqueeze(1), f"{what}, part {name},", first_row)


# From what users give to tensors


def as_batch(values: Any, what: str = "inputs") -> Batch:
    """Tensors in place of arrays, data frames and numbers, at every place of a nested structure; texts are left out.

    Args:
        values: A tensor, an array, a data frame, a number, or a nested structure of these.
        what: Name of the values in an error.
    """
    if isinstance(values, Tensor):
        return values
    if isinstance(values, np.ndarray | np.generic | bool | int | float):
        return _as_tensor(np.asanyarray(values), what)  # any: a mapped file stays one
    if hasattr(values, "to_numpy") and hasattr(values, "columns"):
        return _of_frame(values, what)
    if hasattr(values, "to_numpy"):  # a series
        return _as_tensor(values.to_numpy(), what)
    if isinstance(values, Mapping):
        return {str(key): as_batch(value, what) for key, value in values.items() if not _is_text(value)}
    if isinstance(values, list) and values and all(isinstance(v, bool | int | float | np.number) for v in values):
        return _as_tensor(np.asarray(values), what)
    if isinstance(values, tuple | list):
        parts = [as_batch(value, what) for value in values]
        return type(values)(*parts) if hasattr(values, "_fields") else type(values)(parts)
    if is_dataclass(values):
        new = copy.copy(values)
        for field in dataclasses.fields(values):
            object.__setattr__(new, field.name, as_batch(getattr(values, field.name), what))
        return new
    if values is None or _is_text(values):
        return values
    raise ValueError(
        f"{what} must be tensors, arrays, data frames, or dicts, tuples and dataclasses of these; got "
        f"{type(values).__name__}. Convert them with numpy.asarray or torch.as_tensor."
    )


def _is_text(value: Any) -> bool:
    if isinstance(value, list | tuple) and value:
        return _is_text(value[0])
    return isinstance(value, str | bytes) or (isinstance(value, np.ndarray) and value.dtype.kind in "US")


def _as_tensor(array: NDArray[Any], what: str) -> Tensor:
    if array.dtype.kind not in "biuf":
        hint = " Encode texts as numbers first." if array.dtype.kind in "OUS" else ""
        raise ValueError(f"{what} must hold numbers; got an array of type {array.dtype}.{hint}")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)  # torch has few operations on other unsigned integers
    if array.dtype == np.longdouble and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if not isinstance(array, np.memmap):
        return torch.from_numpy(np.array(array))  # a copy: torch wants memory that it may write to
    with warnings.catch_warnings():
        # Not copied, since it may be larger than memory. Torch warns if it is read-only; we never write to it.
        warnings.simplefilter("ignore")
        return torch.from_numpy(array)


def _of_frame(frame: Any, what: str) -> Tensor:
    """A frame of pandas, polars and others like them; integers stay integers if all columns are."""
    columns = []
    for place, name in enumerate(frame.columns):
        column = frame.iloc[:, place] if hasattr(frame, "iloc") else frame[name]  # names may occur twice in pandas
        values = np.asarray(column.to_numpy())
        if values.dtype == object and getattr(column.dtype, "kind", "O") in "biuf":  # nullable numbers, some missing
            values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        if values.dtype.kind not in "biuf":
            raise ValueError(
                f"{what} must hold numbers; column {name!r} of the data frame has type {column.dtype}. Encode it as numbers, "
                "or use opu.sklearn.OnePassClassifier with an encoder before it."
            )
        columns.append(values)
    if not columns:
        raise ValueError(f"{what} must have at least one feature; got a data frame without columns.")
    return _as_tensor(np.stack(columns, 1), what)


# From a batch to class scores


def parameters_of(net: nn.Module) -> list[inspect.Parameter] | None:
    """The parameters of a network's ``forward``; None if they cannot be found out."""
    inner: Any = getattr(net, "_orig_mod", net)  # torch.compile wraps the network
    inner = inner.module if isinstance(inner, nn.DataParallel | nn.parallel.DistributedDataParallel) else inner
    try:
        return list(inspect.signature(inner.forward).parameters.values())
    except (TypeError, ValueError):
        return None


def call(net: nn.Module, batch: Batch) -> Any:
    """Call a network with a batch as its ``forward`` takes it.

    A dict is given as keywords if ``forward`` has parameters of these names, and a tuple as several arguments if it has room
    for them. Everything else is given as one argument.
    """
    if isinstance(batch, Tensor) or is_dataclass(batch):
        return net(batch)
    parameters = parameters_of(net)
    if parameters is None:
        return net(batch)
    signature = inspect.Signature(parameters)
    if isinstance(batch, Mapping) and _binds(signature, **batch):
        return net(**batch)
    if isinstance(batch, tuple) and _binds(signature, *batch):
        return net(*batch)
    return net(batch)


def _binds(signature: inspect.Signature, *args: Any, **named: Any) -> bool:
    try:
        signature.bind(*args, **named)
    except TypeError:
        return False
    return True


def scores(net: nn.Module, batch: Batch) -> Tensor:
    """The class scores that a network gives: a tensor, or the ``logits`` of the object that it returns."""
    return as_scores(call(net, batch), type(net).__name__)


def as_scores(output: Any, name: str = "the network") -> Tensor:
    """The tensor of class scores in a network's output."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(found, Tensor):
        return found
    kind = type(output).__name__
    raise ValueError(
        f"a classifier must return one tensor with a row of class scores per input, or an object with such .logits; {name} "
        f"returns a {kind}. Wrap it in a module that returns the scores."
    )


class Scores(nn.Module):
    """A network of any calling convention as one that takes a batch and returns a tensor of class scores.

    Args:
        net: Takes a tensor, keywords or several arguments; returns a tensor or an object with ``logits``.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: Batch) -> Tensor:
        """The class scores, or what the network returns in their place."""
        return scores(self.net, batch)


class Path(nn.Sequential):
    """Layers one after another, the first of which is called as its ``forward`` takes the batch."""

    def forward(self, batch: Batch) -> Any:
        """The output of the last layer."""
        first, *others = self
        return functools.reduce(lambda x, layer: layer(x), others, call(first, batch))


def reads(net: nn.Module) -> nn.Module:
    """The network whose ``forward`` meets the batch first: the one inside a wrapper or at the start of a sequence."""
    while True:
        if isinstance(net, Scores):
            net = net.net
        elif isinstance(net, Path) or (type(net) is nn.Sequential and _begins_with_another(net)):
            net = net[0]
        else:
            return net


def _begins_with_another(net: nn.Sequential) -> bool:
    return len(net) > 0 and isinstance(net[0], Scores | nn.Sequential)


def cannot_read(who: str, batch: Batch, error: Exception) -> ValueError:
    """The error for a network that fails on a batch."""
    return ValueError(f"{who} cannot read inputs of {describe(batch)} ({first_line(error)[:200].rstrip('.')}).")
