"""Inputs of any kind as rows that can be taken by number, so that a run can be resumed at any step."""

from collections.abc import Iterable, Iterator, Sequence
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

    Of a loader its dataset is read, in an order of our own: a killed run must be able to go on with the same rows.
    """
    if isinstance(inputs, DataLoader) and not isinstance(inputs.dataset, IterableDataset):
        inputs = inputs.dataset
    if isinstance(inputs, np.ndarray):
        inputs = torch.from_numpy(inputs)
    by_number = hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__")
    if isinstance(inputs, list | tuple) or not by_number:
        inputs = _collected(inputs)
    if isinstance(inputs, Tensor):
        inputs = inputs.float()
    rows = Rows(inputs)
    if len(rows) == 0:
        raise ValueError("inputs must have at least one row; got none. Check the path or the filter that made them.")
    for batch in rows.batches():
        check_inputs(batch)
    return rows


def _collected(batches: Iterable[Any]) -> Tensor:
    parts = [_features(batch) for batch in batches]
    if not parts:
        raise ValueError("inputs must have at least one row; got none. Check the path or the filter that made them.")
    return torch.cat(parts)


def _features(item: Any) -> Tensor:
    if isinstance(item, tuple | list):
        item = item[0]
    return torch.as_tensor(item).float()
