"""From what users give to tensors: arrays, data frames, numbers, and nested structures of these."""

import copy
import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opu.batches.structure import Batch, is_dataclass


def as_batch(values: Any, what: str = "inputs") -> Batch:
    """Tensors in place of arrays, data frames and numbers, at every place of a nested structure; texts are left out.

    Args:
        values: A tensor, an array, a data frame, a number, or a nested structure of these.
        what: Name of the values in an error.
    """
    if isinstance(values, Tensor):
        return values.detach() if values.requires_grad else values
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
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise ValueError(f"{what} must have no masked values; got an array with some. Fill them, or drop their rows.")
    if array.dtype.kind not in "biuf":
        hint = " Encode texts as numbers first." if array.dtype.kind in "OUS" else ""
        raise ValueError(f"{what} must hold numbers; got an array of type {array.dtype}.{hint}")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        # Torch has few operations on other unsigned integers. What is too large for signed ones would become negative.
        large = array.dtype.itemsize == 8 and array.size > 0 and int(array.max()) > np.iinfo(np.int64).max
        array = array.astype(np.float64 if large else np.int64)
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
