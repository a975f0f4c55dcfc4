"""A server that misbehaves, and made-up datasets on it. (As above, ``opu`` is not imported here at top level.)"""

import hashlib

import pytest

from tests.reproduction.data.misbehaving_server import CONTENT, Server


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Server()
    yield server
    server.close()


@pytest.fixture
def no_places(monkeypatch, tmp_path):
    """Neither a data folder nor a user's cache of this machine; the cache that takes its place."""
    monkeypatch.delenv("OPU_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "opu"


@pytest.fixture
def publish(monkeypatch):
    """Add a dataset to the catalogue: file name -> (content, sources)."""
    from reproduction.data import DATASETS, DataFile, Dataset

    def publish(name, files):
        made = [
            DataFile(f"{name}/{each}", (f"sha256:{hashlib.sha256(content).hexdigest()}",), len(content), tuple(sources))
            for each, (content, sources) in files.items()
        ]
        dataset = Dataset(name, "made up", "none", "nobody", tuple(made))
        monkeypatch.setitem(DATASETS, name, dataset)
        return dataset

    return publish


@pytest.fixture
def toy(server, publish):
    """One file with a first source and a mirror."""
    from reproduction.data import Source

    return publish("toy", {"toy.gz": (CONTENT, [Source(server.url("/toy.gz")), Source(server.url("/mirror/toy.gz"))])})


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data"
