"""Inputs of any kind as rows that can be taken by number, so that a run can be resumed at any step."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from opu.checks import check_inputs


class Rows:
    """Features by row number. Labels that come along, as the second part of a tuple, are left out."""

    def __init__(self, source: Tensor | Sequence[Any] | Dataset[Any]) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]

    def take(self, index: Tensor) -> Tensor:
        """These rows, as one batch."""
        if isinstance(self._source, Tensor):
            return self._source[index.to(self._source.device)]
        return torch.stack([_features(self._source[int(i)]) for i in index])

    def subset(self, index: Tensor) -> "Rows":
        """Some of the rows, by number, in this order."""
        if isinstance(self._source, Tensor):
            return Rows(self.take(index))
        return Rows(Subset(self._source, index.tolist()))  # type: ignore[arg-type]

    def batches(self, size: int = 1024) -> Iterator[Tensor]:
        """All rows in order, some at a time."""
        for index in torch.arange(len(self)).split(size):
            yield self.take(index)


def as_rows(inputs: Any) -> Rows:
    """Rows of a tensor, an array, a dataset, a loader or any iterable of batches; checked once, all of them.

    A loader stands for its dataset, which is read in an order of our own, so that a killed run can go on with the same rows.
    """
    if isinstance(inputs, DataLoader) and not isinstance(inputs.dataset, IterableDataset):
        inputs = inputs.dataset
    if isinstance(inputs, np.ndarray):
        inputs = torch.from_numpy(np.array(inputs))  # a copy: torch wants memory that it may write to
    by_number = hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__")
    if isinstance(inputs, list | tuple) or not by_number:
        inputs = _collected(inputs)
    if isinstance(inputs, Tensor):
        inputs = inputs.float()
        check_inputs(inputs)
    elif len(inputs) == 0:
        raise ValueError(_NONE)
    rows = Rows(inputs)
    if isinstance(inputs, Tensor):
        return rows
    for number, batch in enumerate(_batches(rows)):
        check_inputs(batch, first_row=1024 * number)
    return rows


def _batches(rows: Rows) -> Iterator[Tensor]:
    try:
        yield from rows.batches(1024)
    except (TypeError, RuntimeError, IndexError) as error:
        raise ValueError(f"{_WANTED}; their rows could not be read: {error}.") from error


_NONE = "inputs must have at least one row; got none. Check the path or the filter that made them."
_WANTED = "inputs must be a tensor, an array, a dataset, a loader or an iterable of batches, features first"


def _collected(batches: Any) -> Tensor:
    try:
        parts = [_features(batch) for batch in batches]
        if parts:
            return torch.cat(parts)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise ValueError(f"{_WANTED}; got {type(batches).__name__} ({error}).") from error
    raise ValueError(_NONE)


def _features(item: Any) -> Tensor:
    if isinstance(item, tuple | list):
        item = item[0]
    return torch.as_tensor(item).float()
