"""The state of every global random source, to go on after a pause as if there had been none."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """The state of torch's generators on all devices, of numpy's and of Python's."""
    # Users' teachers may draw from numpy's global source.
    numpy_state: tuple[Any, ...] = np.random.get_state(legacy=True)  # type: ignore[assignment]  # noqa: NPY002
    algorithm, keys, position, has_gauss, gauss = numpy_state
    version, words, next_gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [algorithm, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss],
        "python": [version, list(words), next_gauss],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Set all generators to a state that :func:`random_state` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    algorithm, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((algorithm, keys.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    version, words, next_gauss = state["python"]
    random.setstate((version, tuple(words), next_gauss))


@contextmanager
def fixed_random_state(seed: int) -> Iterator[None]:
    """The same random numbers in every process within the block; afterwards they go on as if it had not been there."""
    before = random_state()
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    try:
        yield
    finally:
        restore_random_state(before)
