"""Inputs that come in passes: loaders, with their own sampler, workers and collation, and streams of any length."""

import itertools
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, SequentialSampler

from opu.batches import Batch, cat_alike, check_batch, num_rows, take, tensors
from opu.inputs.checksums import chosen
from opu.inputs.features import Features
from opu.inputs.fingerprints import generators_of, of_batch_sampler, of_first_batch, of_items, of_rows
from opu.inputs.random_state import random_state, restore_random_state
from opu.inputs.source import MOST_HELD_OUT, NONE, Convert, Feed, Source

_MANY, _ENOUGH = 10_000, 1_000
_MOST_BYTES = 2**26  # of held-out inputs, so that memory stays flat


class Stream(Source):
    """Batches that are read one after another and never collected.

    Held-out inputs are chosen by a checksum of their features. Every pass leaves them out, whatever its order.

    Args:
        source: Gives batches each time that it is iterated.
        features: From what it gives to the features.
        converts: What is done to each batch afterwards.
        held_out: Fraction of the rows that is left out.
        length: Number of batches in a pass, if it is known.
    """

    in_order = False
    shuffled = False

    def __init__(
        self,
        source: Iterable[Any],
        features: Features,
        converts: tuple[Convert, ...] = (),
        held_out: float = 0.0,
        length: int | None = None,
    ) -> None:
        self.source, self.features, self.converts, self.held_out = source, features, converts, held_out
        self.length = _length(source) if length is None else length

    def batches(self, size: int = 1024) -> Iterator[Batch]:
        for number, item in self._items():
            batch = self._read(item, number)
            keep = None if not self.held_out else ~torch.tensor(chosen(batch, self.held_out))
            if keep is not None and not bool(keep.all()):
                batch = take(batch, keep)
            if num_rows(batch):
                yield batch

    def _items(self) -> Iterator[tuple[int, Any]]:
        return enumerate(self.source)

    def _read(self, item: Any, number: int) -> Batch:
        batch = self.features(item)
        if not tensors(batch):
            raise ValueError(
                f"inputs must come in batches of tensors or arrays; got an item of type {type(item).__name__}."
            )
        check_batch(batch, f"batch {number} of the inputs", finite=self.features.finite)
        for convert in self.converts:
            batch = convert(batch)
        return batch

    def hold_out(self, fraction: float, num_steps: int | None) -> tuple[Source, list[Batch]]:
        """Read a pass to find held-out inputs, and to count batches; no further than needed."""
        if not fraction and (num_steps is not None or self.length is not None):
            return self, []
        counted, rows, found, kept, needed = 0, 0, 0, [], Budget()
        for batch in self.batches():
            counted += 1
            if counted == _MANY and self.length is None and num_steps is None:
                warnings.warn(
                    f"{_MANY} batches were read to count the inputs, and there are more; if they have no end, say how many "
                    "steps to take: opu.Recipe(steps=...).",
                    stacklevel=5,
                )
            if fraction and not needed.spent:
                which = torch.tensor(chosen(batch, fraction))
                rows, found = rows + len(which), found + int(which.sum())
                kept += needed.part(take(batch, which))
            known = self.length is not None or num_steps is not None
            if known and (not fraction or needed.spent or counted == num_steps):
                break
        if not counted:
            raise ValueError(NONE)
        if rows >= _ENOUGH and not fraction / 2 < found / rows < 2 * fraction:
            warnings.warn(
                f"{found / rows:.0%} of the inputs are held out in place of {fraction:.0%}: many are the same, and equal "
                "inputs are held out together. Give held_out= inputs of their own.",
                stacklevel=5,
            )
        length = self.length if self.length is not None or num_steps is not None else counted
        return self._with(held_out=fraction, length=length), cat_alike(kept)

    def _with(self, **changes: Any) -> "Stream":
        settings = {name: getattr(self, name) for name in ("features", "converts", "held_out", "length")} | changes
        return type(self)(self.source, **settings)

    def num_batches(self, batch_size: int) -> int | None:
        return self.length

    def feed(self, batch_size: int) -> Feed:
        return Passes(self)

    def fingerprint(self) -> dict[str, Any]:
        """The first row, and the number of rows in the first batch, if they are the same in two passes."""
        found = {"kind": "a stream", "number of batches": self.length}
        return found | of_first_batch(self.source, self.batches)

    def converted(self, convert: Convert) -> "Stream":
        return self._with(converts=(*self.converts, convert))


class Once(Stream):
    """A generator, which can be read once: its first rows are held out, and the rest is the only pass."""

    can_repeat = False

    def __init__(self, source: Iterable[Any], features: Features, **settings: Any) -> None:
        numbered = source if isinstance(source, enumerate) else enumerate(source)
        super().__init__(numbered, features, **settings)
        self._seen: list[tuple[int, Any]] = []

    def _items(self) -> Iterator[tuple[int, Any]]:
        while self._seen:
            yield self._seen.pop(0)
        yield from self.source  # can be dropped: there is nothing to close in an enumeration

    def example(self, count: int = 8) -> Batch:
        for number, item in self._items():
            self._seen.insert(0, (number, item))
            return take(self._read(item, number), slice(0, count))
        raise ValueError(NONE)

    def fingerprint(self) -> dict[str, Any]:
        return {"kind": "a generator", **of_rows(self.example(), "values of the first rows")}

    def hold_out(self, fraction: float, num_steps: int | None) -> tuple[Source, list[Batch]]:
        assert num_steps is not None
        kept: list[Batch] = []
        needed = Budget()
        wanted = fraction * num_steps
        while fraction and not needed.spent and len(kept) < wanted:
            batch = next(self.batches(), None)
            if batch is None:
                break
            kept += needed.part(batch)
        return self, cat_alike(kept)

    def _with(self, **changes: Any) -> "Once":
        new = super()._with(**changes)
        assert isinstance(new, Once)
        new._seen = self._seen
        return new


class Loader(Stream):
    """A loader over a dataset with numbered items; held-out items are left out of its sampler.

    Everything else is the loader's own: its batches, sampler, workers and collation.
    """

    source: DataLoader[Any]

    def hold_out(self, fraction: float, num_steps: int | None) -> tuple[Source, list[Batch]]:
        of_a_pass = itertools.islice(self.source.batch_sampler or [], self.length)
        items = sorted(set(itertools.chain.from_iterable(of_a_pass)))
        count = int(fraction * len(items))
        if count == 0:
            return self, []
        chosen = [items[i] for i in torch.randperm(len(items))[:count].tolist()]
        rest = _like(self.source, _Without(self.source.batch_sampler, frozenset(chosen)))
        size = self.source.batch_size or 256
        shown = chosen[:MOST_HELD_OUT]
        parts = [shown[start : start + size] for start in range(0, len(shown), size)]
        held_out = Stream(_like(self.source, parts), self.features, self.converts)
        return Loader(rest, self.features, self.converts, length=self.length), cat_alike(held_out.batches())

    def fingerprint(self) -> dict[str, Any]:
        """Items of the dataset by their numbers, so that the order of the sampler does not matter."""
        count = _length(self.source.dataset)
        size = self.source.batch_size or of_batch_sampler(self.source.batch_sampler)
        found = {"kind": "a loader", "number of batches": self.length, "number of items": count, "batch size": size}
        return found | of_items(self.source.dataset, count or 0, self.features, self.converts, self._read_items)

    def _read_items(self, numbers: list[int]) -> Iterator[Batch]:
        """These items one by one, by the loader's own workers and collation; padding would depend on their neighbours."""
        single = _like(self.source, [[number] for number in numbers], persistent_workers=False, generator=None)
        return Stream(single, self.features, self.converts).batches()

    @property
    def in_order(self) -> bool:  # type: ignore[override]
        """Whether the loader does not shuffle."""
        return isinstance(self.source.sampler, SequentialSampler) and self.source.batch_size is not None


class Passes(Feed):
    """One pass after another. A pass that was cut short is read again up to the same batch."""

    def __init__(self, source: Stream) -> None:
        self.source = source
        self.iterator: Iterator[Batch] | None = None
        self.place = 0
        self.at_start: dict[str, Any] = {}

    def batch(self, step: int) -> Batch | None:
        for _ in range(2):
            if self.iterator is None:
                _start_workers(self.source.source)
                own = [each.get_state() for each in generators_of(self.source.source)]
                self.at_start, self.place = random_state() | {"own": own}, 0
                self.iterator = self.source.batches()
            found = next(self.iterator, None)
            if found is not None:
                self.place += 1
                return found
            if not self.source.can_repeat:
                return None
            self.iterator = None
        raise ValueError("the inputs have run out: a whole pass gave no batch. Check that they can be read again.")

    def state(self) -> dict[str, Any]:
        return {"place": self.place, "random_at_pass": self.at_start}

    def load(self, state: dict[str, Any]) -> None:
        self.place, self.at_start = state["place"], state["random_at_pass"]
        if not self.at_start:
            return
        _start_workers(self.source.source)
        restore_random_state(self.at_start)  # the order of a shuffled pass is drawn at its start
        for generator, own in zip(generators_of(self.source.source), self.at_start["own"], strict=True):
            generator.set_state(own)
        self.iterator = self.source.batches()
        for _ in range(self.place):
            next(self.iterator, None)


class Budget:
    """How many held-out inputs are still wanted: at most a number of rows and of bytes."""

    def __init__(self) -> None:
        self.rows, self.bytes = MOST_HELD_OUT, _MOST_BYTES

    @property
    def spent(self) -> bool:
        """Whether no more are wanted."""
        return self.rows <= 0 or self.bytes <= 0

    def part(self, batch: Batch) -> list[Batch]:
        """What the budget allows of a batch, in memory of its own."""
        count = self.spend(batch)
        return [take(batch, torch.arange(count))] if count else []

    def spend(self, batch: Batch) -> int:
        """How many rows of a batch the budget allows; it is smaller afterwards."""
        rows = num_rows(batch)
        if not rows or self.spent:
            return 0
        size = sum(t.numel() * t.element_size() for t in tensors(batch).values()) // rows
        count = max(1, min(rows, self.rows, self.bytes // max(1, size)))
        self.rows, self.bytes = self.rows - count, self.bytes - count * size
        return count


class _Without:
    """The batches of a sampler without some items."""

    def __init__(self, batch_sampler: Any, left_out: frozenset[int]) -> None:
        self.batch_sampler, self.left_out = batch_sampler, left_out

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batch_sampler:
            kept = [item for item in batch if item not in self.left_out]
            if len(kept) > 1 or (kept and len(batch) == 1):  # batch norm cannot learn from a single row
                yield kept

    def __len__(self) -> int:
        return len(self.batch_sampler)


def _like(loader: DataLoader[Any], batch_sampler: Any, **changes: Any) -> DataLoader[Any]:
    """The same loader with other batches, and perhaps other options."""
    names = ["dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator"]
    names += ["prefetch_factor", "multiprocessing_context", "persistent_workers"]
    return DataLoader(batch_sampler=batch_sampler, **{name: getattr(loader, name) for name in names} | changes)


def _start_workers(source: Any) -> None:
    """Start workers that stay, so that their seed is drawn before the first pass and in none."""
    if isinstance(source, DataLoader) and source.persistent_workers and getattr(source, "_iterator", None) is None:
        iter(source)


def _length(source: Any) -> int | None:
    try:
        return len(source) or None
    except (TypeError, NotImplementedError):
        return None
