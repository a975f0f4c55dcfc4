"""Fetching from a server that misbehaves: a file comes whole and right, or nothing is left behind."""

import errno
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from reproduction.data import RetryPolicy, Source, fetch, verify
from tests.reproduction.data.data_checks import (
    CONTENT,
    HALF,
    HASTY,
    assert_here_and_nothing_else,
    assert_nothing,
    assert_one_sentence,
    fails,
    leftovers,
    put,
)
from tests.reproduction.data.misbehaving_server import cut, hold, serve, silent, status, whole, wrong_range


def test_a_file_is_fetched_once(server, toy, folder):
    server.script["/toy.gz"] = [serve(CONTENT)]
    assert fetch("toy", folder) == [folder / "toy" / "toy.gz"]
    assert_here_and_nothing_else(folder)
    fetch("toy", folder)
    assert len(server.seen) == 1
    verify(toy.files[0], folder)


@pytest.mark.parametrize("cuts", [[HALF], [1000, 100_000, 7]], ids=["once", "thrice"])
def test_a_cut_connection_is_continued(server, toy, folder, cuts):
    server.script["/toy.gz"] = [*(cut(CONTENT, after) for after in cuts), serve(CONTENT)]
    fetch("toy", folder, retry=RetryPolicy(attempts=4, wait=0.01))
    assert_here_and_nothing_else(folder)
    starts = np.cumsum(cuts)
    assert server.ranges("/toy.gz") == [None, *(f"bytes={start}-" for start in starts)]


def test_a_long_file_may_take_many_connections(server, publish, folder, monkeypatch):
    monkeypatch.setattr("reproduction.data.download.FAIR_PROGRESS", 10_000)
    publish("toy", {"toy.gz": (CONTENT, [Source(server.url("/toy.gz"))])})
    server.script["/toy.gz"] = [cut(CONTENT, 20_000)]
    fetch("toy", folder, retry=HASTY)
    assert_here_and_nothing_else(folder)
    assert len(server.seen) == 15


def test_a_short_response_is_noticed_whatever_the_library_says(tmp_path):
    """Older versions of urllib3 let a cut connection pass for the end of a file."""
    from types import SimpleNamespace

    from reproduction.data.download import _Interrupted, _save

    raw = SimpleNamespace(stream=lambda *_, **__: iter([b"abc", b"de"]))
    with pytest.raises(_Interrupted, match="cut the connection after 15 of 17 bytes"):
        _save(SimpleNamespace(headers={"Content-Length": "7"}, raw=raw), tmp_path / "part", 10, lambda *_: None)
    assert (tmp_path / "part").read_bytes() == b"abcde"


@pytest.mark.parametrize("behaviour", [whole, wrong_range], ids=["ignored", "misunderstood"])
def test_a_server_without_ranges_gives_the_whole_file_again(server, toy, folder, behaviour):
    server.script["/toy.gz"] = [cut(CONTENT, HALF), behaviour(CONTENT)]
    fetch("toy", folder, retry=HASTY)
    assert_here_and_nothing_else(folder)
    assert server.ranges("/toy.gz")[1] == f"bytes={HALF}-"


def test_a_server_that_is_busy_is_asked_again(server, toy, folder):
    server.script["/toy.gz"] = [status(503), serve(CONTENT)]
    fetch("toy", folder, retry=HASTY)
    assert_here_and_nothing_else(folder)


def test_a_mirror_helps(server, toy, folder):
    server.script["/mirror/toy.gz"] = [serve(CONTENT)]
    fetch("toy", folder, retry=HASTY)
    assert_here_and_nothing_else(folder)
    assert [path for path, _ in server.seen] == ["/toy.gz", "/mirror/toy.gz"]


def test_a_mirror_helps_against_wrong_bytes_and_is_not_mixed_with_them(server, toy, folder):
    server.script["/toy.gz"] = [cut(bytes(300_000), 1000)]
    server.script["/mirror/toy.gz"] = [serve(CONTENT)]
    fetch("toy", folder, retry=RetryPolicy(attempts=1))
    assert_here_and_nothing_else(folder)
    assert server.ranges("/mirror/toy.gz") == [None]


def test_every_source_is_named_with_what_it_said(server, toy, folder):
    server.script["/toy.gz"] = [cut(CONTENT, 0)]
    fails(
        folder,
        "could not fetch toy/toy.gz",
        f"{server.url('/toy.gz')} cut the connection, 3 times in a row",
        f"{server.url('/mirror/toy.gz')} replied 404 Not Found",
        "Nothing half-done was left behind",
    )
    assert len(server.ranges("/toy.gz")) == 3
    assert len(server.ranges("/mirror/toy.gz")) == 1


def test_wrong_bytes_are_thrown_away(server, toy, folder):
    server.script["/toy.gz"] = [serve(bytes(300_000))]
    server.script["/mirror/toy.gz"] = [serve(CONTENT[:-1])]
    fails(
        folder,
        "/toy.gz gave a file that does not have the checksum sha256:",
        "/mirror/toy.gz gave a file that does not",
    )


def test_silence_is_not_waited_for(server, toy, folder):
    server.script["/toy.gz"] = [silent]
    server.script["/mirror/toy.gz"] = [hold(CONTENT, 100)]
    retry = RetryPolicy(read=0.1, attempts=2, wait=0.01)
    fails(folder, "/toy.gz did not respond in time", "/mirror/toy.gz did not respond in time", retry=retry)


def test_a_server_that_is_not_there(publish, folder):
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/toy.gz"
    publish("toy", {"toy.gz": (CONTENT, [Source(url)])})
    fails(folder, "could not be reached, 3 times in a row")


def test_an_address_that_is_none(publish, folder):
    publish("toy", {"toy.gz": (CONTENT, [Source("nonsense://toy.gz")])})
    fails(folder, "nonsense://toy.gz failed (InvalidSchema")


def test_a_wrong_file_is_refused_unless_forced(server, toy, folder):
    server.script["/toy.gz"] = [serve(CONTENT)]
    path = put(folder, "toy/toy.gz", b"mine")
    with pytest.raises(
        ValueError, match=r"has 4 bytes, but 300,000 are right; it was left as it is. Delete it, or .*--force"
    ):
        fetch("toy", folder)
    assert path.read_bytes() == b"mine"
    assert server.seen == []
    fetch("toy", folder, force=True)
    assert_here_and_nothing_else(folder)
    fetch("toy", folder, force=True)
    assert len(server.seen) == 1  # a right file is left alone, forced or not


def test_a_forced_fetch_that_fails_leaves_the_old_file(server, toy, folder):
    path = put(folder, "toy/toy.gz", b"mine")
    with pytest.raises(OSError, match="404"):
        fetch("toy", folder, force=True, retry=HASTY)
    assert path.read_bytes() == b"mine"
    assert leftovers(folder) == []


def test_a_wrong_file_in_a_folder_that_cannot_be_written_to(server, toy, no_places, monkeypatch, tmp_path):
    own = tmp_path / "own"
    put(own, "toy/toy.gz", b"mine")
    monkeypatch.setenv("OPU_DATA", str(own))
    really = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != own and really(path, mode))
    with pytest.raises(
        ValueError, match=r"would be found before a copy in .*cache.opu, since its folder cannot be written"
    ):
        fetch("toy", force=True)


def test_places_are_looked_through(server, toy, no_places, monkeypatch, tmp_path):
    server.script["/toy.gz"] = [serve(CONTENT)]
    assert fetch("toy") == [no_places / "toy" / "toy.gz"]
    monkeypatch.setenv("OPU_DATA", str(tmp_path / "own"))
    assert fetch("toy") == [no_places / "toy" / "toy.gz"]
    (no_places / "toy" / "toy.gz").unlink()
    assert fetch("toy") == [tmp_path / "own" / "toy" / "toy.gz"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk(server, toy, folder, monkeypatch):
    server.script["/toy.gz"] = [serve(CONTENT)]
    really = Path.open

    def on_a_full_disk(path, mode="r", *rest, **options):
        return really(Path("/dev/full") if path.suffix == ".part" and mode != "rb" else path, mode, *rest, **options)

    monkeypatch.setattr(Path, "open", on_a_full_disk)
    with pytest.raises(OSError, match="No space left on device") as caught:
        fetch("toy", folder, retry=HASTY)
    assert caught.value.errno == errno.ENOSPC
    assert_one_sentence(caught, "could not fetch toy/toy.gz into", server.url("/toy.gz"), "free some space")
    assert_nothing(folder)
    assert len(server.seen) == 1  # a mirror would not help


def test_a_folder_that_cannot_be_made(toy, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match=r"could not fetch toy/toy\.gz into .*nothing was read"):
        fetch("toy", tmp_path / "file" / "data")
    assert (tmp_path / "file").read_text() == "mine"


def test_what_cannot_be_fetched_is_said_before_anything_is(folder):
    with pytest.raises(
        ValueError, match=r"rows-103680-112799.* has no official address and cannot be fetched; copy it"
    ):
        fetch("emnist-balanced-part", folder)
    assert not folder.exists()
    with pytest.raises(ValueError, match="no dataset 'toys'"):
        fetch("toys", folder)


def test_without_pooch_the_extra_is_named(toy, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r'pip install "one-pass-uncertainty\[data\]"'):
        fetch("toy", folder)
    assert not folder.exists()
