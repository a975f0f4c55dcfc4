"""Where files are looked for, and what is said of those that are missing or damaged."""

import gzip
import os
from pathlib import Path

import pytest

from reproduction.data import DATASETS, DataFile, Dataset, dataset, find, locate, places, verify
from reproduction.data.local import checksum, folder_to_fetch_into
from tests.reproduction.data.data_checks import put

FILE = dataset("pima").files[0]


def test_the_named_folder_comes_before_the_cache(no_places, monkeypatch, tmp_path):
    assert places() == [no_places]
    in_cache = put(no_places, FILE.path)
    assert find(FILE) == in_cache
    monkeypatch.setenv("OPU_DATA", str(tmp_path / "own"))
    assert places() == [tmp_path / "own", no_places]
    assert find(FILE) == in_cache
    assert find(FILE) != put(tmp_path / "own", FILE.path) == find(FILE)
    assert locate(FILE, tmp_path / "elsewhere") is None


def test_without_variables_the_cache_is_in_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("OPU_DATA", "")
    assert places() == [tmp_path / ".cache" / "opu"]
    monkeypatch.setenv("OPU_DATA", "~/data")
    assert places()[0] == tmp_path / "data"


def test_a_missing_file_costs_one_sentence(no_places, monkeypatch, tmp_path):
    with pytest.raises(ValueError, match=r"pima-indians-diabetes\.data\.csv is not here") as caught:
        find(FILE)
    for part in (str(no_places), "$OPU_DATA is not set", "`opu data fetch pima`"):
        assert part in str(caught.value)
    monkeypatch.setenv("OPU_DATA", str(tmp_path / "own"))
    with pytest.raises(ValueError, match=f"looked for in {tmp_path / 'own'} and {no_places}. Get it with"):
        find(FILE)
    with pytest.raises(ValueError, match="no official address and cannot be fetched: copy it"):
        find(dataset("emnist-balanced-part").files[0])


def test_damage_costs_one_sentence(no_places):
    path = put(no_places, FILE.path, b"short")
    with pytest.raises(
        ValueError, match=r"has 5 bytes, but 23,278 are right; it is damaged. Delete it and fetch it again"
    ):
        verify(FILE)
    path.write_bytes(b"x" * 23_278)
    with pytest.raises(
        ValueError, match=r"has the checksum sha256:\w{64}, but sha256:6bfe\w+ is right.*opu data fetch pima"
    ):
        verify(FILE)
    part = dataset("emnist-balanced-part").files[0]
    put(no_places, part.path)
    with pytest.raises(ValueError, match="Delete it and copy it again"):
        verify(part)


def test_any_accepted_sum_and_any_form_will_do(no_places, monkeypatch):
    plain, packed = b"1 0 1", gzip.compress(b"1 0 1")
    path = put(no_places, "toy/plain.txt", plain)
    other = put(no_places, "toy/plain.txt.gz", packed)
    form = DataFile("toy/plain.txt.gz", (checksum(other, "sha256"),))
    file = DataFile("toy/plain.txt", (f"md5:{'0' * 32}", checksum(path, "md5")), other_forms=(form,))
    monkeypatch.setitem(DATASETS, "toy", Dataset("toy", "", "", "", (file,)))
    assert verify(file) == path
    path.unlink()
    assert verify(file) == other
    other.write_bytes(b"spoilt")
    with pytest.raises(ValueError, match=r"plain\.txt\.gz has the checksum"):
        verify(file)


def test_the_known_sum_of_nothing(tmp_path):
    assert checksum(put(tmp_path, "empty", b""), "md5") == "md5:d41d8cd98f00b204e9800998ecf8427e"


def test_fetching_goes_where_it_may_write(no_places, monkeypatch, tmp_path):
    assert folder_to_fetch_into() == no_places
    monkeypatch.setenv("OPU_DATA", str(tmp_path / "own" / "data"))
    assert folder_to_fetch_into() == tmp_path / "own" / "data"
    # Root may write anywhere, so the refusal is played.
    really = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "own" and really(path, mode))
    (tmp_path / "own").mkdir()
    assert folder_to_fetch_into() == no_places
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert folder_to_fetch_into() == no_places
