"""Inputs that can be taken by number: tensors, arrays, tables and datasets."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opu.batches import Batch, as_batch, check_batch, num_rows, take, together
from opu.checks import first_line
from opu.inputs.features import Features
from opu.inputs.fingerprints import of_items, of_rows
from opu.inputs.source import MOST_HELD_OUT, NONE, Convert, Feed, Source

_CHECKED_AT_ONCE = 1024
_MOST_CHECKED = 20_000  # a larger dataset is checked as it is read


class InMemory(Source):
    """A batch that holds all inputs: a tensor, or a dict, tuple or dataclass of tensors."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return num_rows(self.batch)

    def take(self, rows: Tensor) -> Batch:
        """These rows, as one batch."""
        return take(self.batch, rows)

    def subset(self, rows: Tensor) -> "InMemory":
        """Some of the rows, by number, in this order."""
        return InMemory(self.take(rows))

    def batches(self, size: int = 1024) -> Iterator[Batch]:
        for rows in torch.arange(len(self)).split(size):
            yield self.take(rows)

    def hold_out(self, fraction: float, num_steps: int | None) -> tuple[Source, list[Batch]]:
        return _split(self, fraction, len(self))

    def num_batches(self, batch_size: int) -> int:
        return max(1, len(self) // batch_size)

    def feed(self, batch_size: int) -> Feed:
        return ShuffledRows(self, batch_size)

    def fingerprint(self) -> dict[str, Any]:
        return {"kind": "rows in memory", "number of rows": len(self), **of_rows(self.batch)}

    def converted(self, convert: Convert) -> "InMemory":
        return InMemory(convert(self.batch))


class InDataset(Source):
    """A dataset with ``__getitem__`` and ``__len__``, which is read one item at a time.

    Args:
        dataset: Gives features, or a tuple or dict with features in it.
        features: From a batch of items to the features.
        rows: Numbers of the items; all by default.
        converts: What is done to each batch afterwards.
    """

    def __init__(
        self, dataset: Any, features: Features, rows: Sequence[int] | None = None, converts: tuple[Convert, ...] = ()
    ) -> None:
        self.dataset, self.features, self.converts = dataset, features, converts
        self.rows = range(len(dataset)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Tensor) -> Batch:
        """These rows, as one batch."""
        numbers = [self.rows[i] for i in rows.tolist()]
        if isinstance(self.dataset, np.memmap):
            batch = as_batch(self.dataset[numbers])
        else:
            batch = self.features(stacked([as_batch(self.dataset[number]) for number in numbers]))
        for convert in self.converts:
            batch = convert(batch)
        return batch

    def subset(self, rows: Tensor) -> "InDataset":
        """Some of the rows, by number, in this order."""
        return InDataset(self.dataset, self.features, [self.rows[i] for i in rows.tolist()], self.converts)

    def batches(self, size: int = 1024) -> Iterator[Batch]:
        for rows in torch.arange(len(self)).split(size):
            yield self.take(rows)

    def hold_out(self, fraction: float, num_steps: int | None) -> tuple[Source, list[Batch]]:
        return _split(self, fraction, MOST_HELD_OUT)

    def num_batches(self, batch_size: int) -> int:
        return max(1, len(self) // batch_size)

    def feed(self, batch_size: int) -> Feed:
        return ShuffledRows(self, batch_size)

    def fingerprint(self) -> dict[str, Any]:
        def read(numbers: list[int]) -> Iterator[Batch]:
            for start in range(0, len(numbers), _CHECKED_AT_ONCE):
                yield self.take(torch.tensor(numbers[start : start + _CHECKED_AT_ONCE]))

        found = {"kind": "a dataset", "number of rows": len(self)}
        return found | of_items(self.dataset, len(self), self.features, self.converts, read)

    def converted(self, convert: Convert) -> "InDataset":
        return InDataset(self.dataset, self.features, self.rows, (*self.converts, convert))


class ShuffledRows(Feed):
    """Rows in batches of one size, shuffled anew in each epoch; a smaller last batch is left out."""

    def __init__(self, source: InMemory | InDataset, batch_size: int) -> None:
        self.source, self.batch_size = source, batch_size
        self.order = torch.empty(0, dtype=torch.int64)

    def batch(self, step: int) -> Batch:
        place = step % self.source.num_batches(self.batch_size)
        if place == 0:
            self.order = torch.randperm(len(self.source))
        return self.source.take(self.order[place * self.batch_size : (place + 1) * self.batch_size])

    def state(self) -> dict[str, Any]:
        return {"order": self.order}

    def load(self, state: dict[str, Any]) -> None:
        self.order = state["order"]


def in_memory(values: Any, features: Features) -> InMemory:
    """A checked batch of all inputs."""
    batch = features(values)
    check_batch(batch, finite=features.finite)
    return InMemory(batch)


def in_dataset(dataset: Any, features: Features) -> InDataset:
    """A checked dataset; the features of a large one are checked as they are read."""
    if len(dataset) == 0:
        raise ValueError(NONE)
    source = InDataset(dataset, features)
    for first in range(0, min(len(source), _MOST_CHECKED), _CHECKED_AT_ONCE):
        rows = torch.arange(first, min(first + _CHECKED_AT_ONCE, len(source)))
        try:
            batch = source.take(rows)
        except (TypeError, RuntimeError, IndexError, KeyError) as error:
            raise ValueError(
                f"the rows of {type(dataset).__name__} could not be read ({first_line(error)}); items must be features, or "
                "tuples or dicts that begin with them, all of one shape. Use a DataLoader with a collate_fn for others."
            ) from error
        check_batch(batch, first_row=first, finite=features.finite)
    return source if len(source) <= _MOST_CHECKED or not features.finite else source.converted(checked)


def checked(batch: Batch) -> Batch:
    """The batch itself; NaN and infinite values are refused."""
    check_batch(batch)
    return batch


def stacked(items: list[Any]) -> Batch:
    """Single items as one batch."""
    return together(torch.stack, items)


def _split(source: Any, fraction: float, most: int) -> tuple[Source, list[Batch]]:
    count = int(fraction * len(source))
    if count == 0:
        return source, []
    order = torch.randperm(len(source))
    return source.subset(order[count:]), [source.take(order[: min(count, most)])]
