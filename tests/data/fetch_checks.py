"""What the tests of fetching share: a file, a short patience, and what must hold afterwards."""

import pytest
from made_up import CONTENT

from opu.data import Patience, fetch

HALF = len(CONTENT) // 2
HASTY = Patience(connect=2, read=0.4, attempts=3, wait=0.01)


def leftovers(folder):
    """Everything there but the files that were asked for."""
    return (
        [path for path in folder.rglob("*") if path.name != "toy.gz" and path.name != "toy"] if folder.exists() else []
    )


def assert_here_and_nothing_else(folder):
    assert (folder / "toy" / "toy.gz").read_bytes() == CONTENT
    assert leftovers(folder) == []


def assert_nothing(folder):
    assert not folder.exists() or not any(path.is_file() for path in folder.rglob("*"))
    assert leftovers(folder) == []


def assert_one_sentence(caught, *parts):
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def fails(folder, *parts, error=OSError):
    with pytest.raises(error, match="toy") as caught:
        fetch("toy", folder, patience=HASTY)
    assert_one_sentence(caught, *parts)
    assert_nothing(folder)
