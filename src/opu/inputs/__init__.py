"""Inputs as users have them: tensors, tables, datasets, loaders, streams, and dicts or tuples of several inputs."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from opu.batches import Batch, cat, is_dataclass, tensors
from opu.checks import first_line
from opu.inputs.features import Features
from opu.inputs.passes import Budget, Loader, Once, Stream
from opu.inputs.rows import InDataset, InMemory, in_dataset, in_memory, stacked
from opu.inputs.source import NONE, Feed, Source

__all__ = ["Features", "Feed", "InDataset", "InMemory", "Source", "as_source"]

_WANTED = (
    "inputs must be a tensor, an array, a data frame, a dict or tuple of these, a dataset, a loader or an iterable"
)


_MOST_BYTES = 2**28  # of inputs that are collected from a stream or a file


def as_source(
    inputs: Any,
    features: Features | None = None,
    *,
    batch_size: int = 128,
    endless: bool = False,
) -> Source:
    """Inputs of any kind as one that can be read.

    A tuple is one input of several parts, and a list holds batches. A loader is read through its own sampler, workers and
    collation. What can be read only once is collected if it is small, unless a number of steps is given.

    Args:
        inputs: A tensor, an array, a data frame, a dict, tuple or dataclass of these, a dataset, a loader, or an iterable.
        features: From an item of a loader or dataset to its features; by default the first part of a tuple.
        batch_size: Rows per batch of a bare iterable dataset, which gives single examples.
        endless: Whether the number of steps is given, so that a stream need not end.
    """
    features = features or Features()
    if isinstance(inputs, str | bytes | Path):
        raise ValueError("inputs are data, not the path of a file. Read it first, for instance with numpy.load.")
    if hasattr(inputs, "toarray"):  # of scipy
        raise ValueError(f"inputs must be dense; got {type(inputs).__name__}. Give a dense array: x.toarray().")
    if isinstance(inputs, DataLoader):
        return _of_loader(inputs, features)
    if isinstance(inputs, IterableDataset):
        return Stream(DataLoader(inputs, batch_size), features)
    if isinstance(inputs, np.memmap) and inputs.nbytes > _MOST_BYTES:
        return in_dataset(inputs, features)  # read as it is needed
    if _is_batch(inputs):
        return in_memory(inputs, features)
    if isinstance(inputs, list):
        return in_memory(_joined(inputs, features), Features(finite=features.finite))
    if hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__"):
        return in_dataset(inputs, features)
    try:
        iterator = iter(inputs)
    except TypeError as error:
        raise ValueError(f"{_WANTED}; got {type(inputs).__name__}.") from error
    if iterator is not inputs:
        return Stream(inputs, features)
    if endless:
        return Once(iterator, features)
    return in_memory(_collected(iterator, features), Features(finite=features.finite))


def _is_batch(inputs: Any) -> bool:
    kinds = isinstance(inputs, Tensor | np.ndarray | Mapping | tuple) or is_dataclass(inputs)
    return kinds or hasattr(inputs, "to_numpy")


def _of_loader(loader: DataLoader[Any], features: Features) -> Source:
    numbered = not isinstance(loader.dataset, IterableDataset) and loader.batch_sampler is not None
    source = Stream(loader, features)
    # A subclass may read its dataset in another way, and a sampler without a length may never end.
    known = numbered and type(loader) is DataLoader and source.length is not None
    return Loader(loader, features) if known else source


def _joined(batches: list[Any], features: Features) -> Batch:
    """One batch of a list of batches, or of single feature vectors."""
    if not batches:
        raise ValueError(NONE)
    try:
        parts = [features(each) for each in batches]
        single = all(isinstance(part, Tensor) and part.ndim == 1 for part in parts)
        return stacked(parts) if single else cat(parts)
    except (TypeError, RuntimeError, KeyError) as error:
        raise ValueError(
            f"a list of inputs must hold batches, or feature vectors, of one shape; they cannot be joined "
            f"({first_line(error)}). Give a DataLoader for batches of several shapes."
        ) from error


def _collected(iterator: Iterator[Any], features: Features) -> Batch:
    """All batches of something that can be read only once, if they are small."""
    parts, budget = [], Budget()
    budget.rows = budget.bytes = _MOST_BYTES
    for item in iterator:
        parts.append(features(item))
        if all(t.ndim for t in tensors(parts[-1]).values()):
            budget.spend(parts[-1])
        if budget.spent:
            raise ValueError(
                "these inputs can be read only once and are too large to be collected; say how many steps to take, "
                "opu.Recipe(steps=...), or give a dataset, a loader or a list, which can be read again."
            )
    return _joined(parts, Features())
