"""What is known of inputs without disturbing them, to tell whether a run is resumed with those it began with."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from opu.batches import Batch, num_rows, shapes, tensors
from opu.digests import Digest
from opu.inputs.checksums import add_first_row
from opu.inputs.features import Features
from opu.inputs.random_state import fixed_random_state

_MOST_ITEMS, _MOST_BYTES = 10_000, 2**26  # of a dataset that is read whole
_SOME = 64  # items of a larger one


def of_rows(batch: Batch, name: str = "values") -> dict[str, Any]:
    """Shape, type and a digest of all values of a batch, in the order of its rows."""
    parts, digest = tensors(batch), Digest()
    for part, t in sorted(parts.items()):
        digest.add_tensor(part, t)
    types = sorted({str(t.dtype).removeprefix("torch.") for t in parts.values()})
    return {"shape of a row": str(shapes(batch)), "type": ", ".join(types), name: digest.text()}


def of_items(
    dataset: Any,
    count: int,
    features: Features,
    converts: tuple[Callable[[Batch], Batch], ...],
    read: Callable[[list[int]], Iterator[Batch]],
) -> dict[str, Any]:
    """A digest of all items of a small dataset, and of 64 evenly spaced ones of a large one.

    Items that differ when they are read twice, such as randomly changed images, cannot be compared; neither can those of a
    dataset without whole numbers from 0.

    Args:
        dataset: Has the items.
        count: Their number.
        features: From the items to the features.
        converts: What is done to each batch afterwards.
        read: Gives the features of items with these numbers, in batches.
    """
    if type(dataset) is TensorDataset:  # its values lie in memory, and labels may be among them
        batch = features(dataset.tensors)
        for convert in converts:
            batch = convert(batch)
        return {"values": _digest([batch])}
    if not count:
        return {"values": None}
    some = sorted({round(i * (count - 1) / (_SOME - 1)) for i in range(_SOME)})
    with _undisturbed(dataset):
        try:
            with fixed_random_state(0):
                batches = list(read(some))
            with fixed_random_state(1):
                again = _digest(read(some))
            if _digest(batches) != again:
                return {"values": None}
            size = sum(t.numel() * t.element_size() for batch in batches for t in tensors(batch).values()) / len(some)
            if count > _MOST_ITEMS or count * size > _MOST_BYTES:
                return {"values": again}
            with fixed_random_state(0):
                return {"values": _digest(read(list(range(count))))}
        except Exception:  # of any kind: items may have other names than numbers, or cannot be read one by one
            return {"values": None}


def of_first_batch(source: Any, batches: Callable[[], Iterator[Batch]]) -> dict[str, Any]:
    """The number of rows in the first batch of a pass, and a digest of its first row; None for what differs in the next."""
    found: list[dict[str, Any]] = []
    with _undisturbed(source):
        for seed in (0, 1):
            with fixed_random_state(seed):
                batch, digest = next(batches(), None), Digest()
            if batch is None:
                return {"first row": None, "batch size": None}
            add_first_row(digest, batch)
            found.append({"first row": digest.text(), "batch size": num_rows(batch)})
    return {name: value if value == found[1][name] else None for name, value in found[0].items()}


def of_batch_sampler(sampler: Any) -> int | None:
    """Number of items in the first batch of a sampler; None if it differs in the next pass, or if there is but one pass."""
    found = []
    with _undisturbed(sampler):
        for seed in (0, 1):
            with fixed_random_state(seed):
                batches = iter(sampler)
                if batches is sampler:
                    return None
                found.append(len(list(next(batches, ()))))
    return found[0] if found[0] == found[1] else None


def _digest(batches: Iterable[Batch]) -> str:
    """A digest that does not depend on how rows are divided into batches."""
    digest = Digest()
    for batch in batches:
        parts = sorted(tensors(batch).items())
        for row in range(num_rows(batch)):
            for name, t in parts:
                digest.add_tensor(name, t[row])
    return digest.text()


@contextmanager
def _undisturbed(source: Any) -> Iterator[None]:
    """Put the random sources that belong to the inputs back after the block."""
    own = [(each, each.get_state()) for each in generators_of(source)]
    attributes = getattr(source, "__dict__", {}).values()
    arrays = [
        (each.bit_generator, each.bit_generator.state) for each in attributes if isinstance(each, np.random.Generator)
    ]
    try:
        yield
    finally:
        for generator, state in own:
            generator.set_state(state)
        for bits, values in arrays:
            bits.state = values


def generators_of(value: Any, depth: int = 4) -> list[torch.Generator]:
    """The random sources that belong to a loader, its samplers and its dataset."""
    if isinstance(value, torch.Generator):
        return [value]
    parts = [getattr(value, name, None) for name in ("generator", "sampler", "batch_sampler", "dataset")]
    parts += [own for own in getattr(value, "__dict__", {}).values() if isinstance(own, torch.Generator)]
    found = [each for part in parts if part is not None and depth for each in generators_of(part, depth - 1)]
    return list({id(each): each for each in found}.values())
