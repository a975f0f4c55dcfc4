"""Every test starts from the same random state, on one thread. (``opu`` is not imported here: its shapes are checked
by an import hook that pytest installs later.)
"""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - libraries that still use the global state
    torch.manual_seed(0)
