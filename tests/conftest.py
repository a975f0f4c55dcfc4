"""Every test starts from the same random state, on one thread. (``opu`` is not imported here: its shapes are checked
by an import hook that pytest installs later.)
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """CI has no GPU. CONTRIBUTING says when to run what is skipped there."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


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


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Where the public datasets lie: ``$OPU_DATA``, else the per-user cache; tests that need them skip without either."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "opu"
    places = [Path(os.environ["OPU_DATA"])] if os.environ.get("OPU_DATA") else []
    for folder in [*places, cache]:
        if folder.is_dir():
            return folder
    pytest.skip(f"no datasets: neither $OPU_DATA nor {cache} is a folder")
