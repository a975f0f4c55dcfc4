"""What the tests of files share: a file, a hasty retry policy, and what must hold after a fetch."""

import pytest

from reproduction.data import RetryPolicy, fetch
from tests.reproduction.data.misbehaving_server import CONTENT

HALF = len(CONTENT) // 2
HASTY = RetryPolicy(wait=0.01)


def put(folder, path, content=b"x"):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content)
    return folder / path


def leftovers(folder):
    """Everything there but the files that were asked for."""
    return [path for path in folder.rglob("*") if path.name not in ("toy.gz", "toy")]


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


def fails(folder, *parts, retry=HASTY):
    with pytest.raises(OSError, match="toy") as caught:
        fetch("toy", folder, retry=retry)
    assert_one_sentence(caught, *parts)
    assert_nothing(folder)
