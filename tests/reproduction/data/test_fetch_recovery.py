"""Killed fetches are continued, and fetches at the same time wait for one another."""

import errno
import signal
import subprocess
import sys
import threading
import time
import zlib

import pytest

from reproduction.data import RetryPolicy, fetch
from tests.reproduction.data.data_checks import (
    CONTENT,
    HALF,
    HASTY,
    assert_here_and_nothing_else,
    assert_nothing,
    fails,
)
from tests.reproduction.data.misbehaving_server import cut, hold, serve


def part_of(folder, url):
    name = url.rsplit("/", 1)[-1]
    return folder / f".fetch-{name}" / str(zlib.crc32(url.encode())) / f"{name}.part"


CHILD = """
import sys
from pathlib import Path
from reproduction.data import DATASETS, DataFile, Dataset, Source, fetch
url, checksum, folder = sys.argv[1:]
DATASETS["toy"] = Dataset("toy", "", "", "", (DataFile("toy/toy.gz", (checksum,), 300_000, (Source(url),)),))
fetch("toy", Path(folder))
"""


@pytest.fixture
def killed(server, toy, folder):
    """A process killed when half of the file was there; the part file that it left."""
    url = server.url("/toy.gz")
    server.script["/toy.gz"] = [hold(CONTENT, HALF)]
    part, deadline = part_of(folder, url), time.monotonic() + 60
    with subprocess.Popen([sys.executable, "-c", CHILD, url, toy.files[0].checksums[0], str(folder)]) as child:
        while not (part.exists() and part.stat().st_size) and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    server.seen.clear()
    return part


def test_a_killed_fetch_is_continued(server, folder, killed):
    assert not (folder / "toy").exists()
    come = killed.stat().st_size
    assert killed.read_bytes() == CONTENT[:come]
    assert 0 < come <= HALF
    assert killed.relative_to(folder).parts[0].startswith(".")
    server.script["/toy.gz"] = [serve(CONTENT)]
    fetch("toy", folder, retry=HASTY)
    assert_here_and_nothing_else(folder)
    assert server.ranges("/toy.gz") == [f"bytes={come}-"]


def leave(part, content):
    part.parent.mkdir(parents=True)
    part.write_bytes(content)


def test_a_spoilt_leftover_costs_one_more_download(server, toy, folder):
    leave(part_of(folder, server.url("/toy.gz")), bytes(HALF))
    server.script["/toy.gz"] = [serve(CONTENT)]
    fetch("toy", folder, retry=HASTY)
    assert_here_and_nothing_else(folder)
    assert server.ranges("/toy.gz") == [f"bytes={HALF}-", None]


@pytest.mark.parametrize(("extra", "ranges"), [(b"", 1), (b"too much", 2)], ids=["whole", "too long"])
def test_a_leftover_that_needs_nothing_more(server, toy, folder, extra, ranges):
    leave(part_of(folder, server.url("/toy.gz")), CONTENT + extra)
    server.script["/toy.gz"] = [serve(CONTENT)]
    fetch("toy", folder, retry=HASTY)
    assert_here_and_nothing_else(folder)
    assert len(server.seen) == ranges


def test_an_error_removes_leftovers_too(server, toy, folder):
    leave(part_of(folder, server.url("/toy.gz")), CONTENT[:HALF])
    fails(folder, "replied 404")


def together(count, action):
    failures = []

    def run():
        try:
            action()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_fetches_at_once_wait_for_one_another(server, toy, folder):
    server.script["/toy.gz"] = [cut(CONTENT, 1000), serve(CONTENT)]
    assert together(4, lambda: fetch("toy", folder, retry=RetryPolicy(wait=0.1))) == []
    assert_here_and_nothing_else(folder)
    assert len(server.seen) == 2


def test_fetches_at_once_that_fail_all_clean_up(server, toy, folder):
    failures = together(4, lambda: fetch("toy", folder, retry=HASTY))
    assert [type(error) for error in failures] == [OSError] * 4
    assert_nothing(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_a_stage_is_one_fetch_s_alone(tmp_path):
    from reproduction.data.staging import staging

    inside, most = [], []

    def come_and_go():
        for _ in range(50):
            with staging(tmp_path, "toy") as stage:
                inside.append(stage)
                most.append(len(inside))
                assert stage.is_dir()
                inside.pop()

    assert together(6, come_and_go) == []
    assert most == [1] * 300
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_without_locks_fetches_at_once_share_nothing(server, toy, folder, monkeypatch):
    import fcntl

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    server.script["/toy.gz"] = [cut(CONTENT, 1000), serve(CONTENT)]
    assert together(3, lambda: fetch("toy", folder, retry=HASTY)) == []
    assert_here_and_nothing_else(folder)


def test_an_interrupted_fetch_keeps_what_has_come(tmp_path):
    from reproduction.data.staging import staging

    def interrupted():
        with staging(tmp_path, "toy") as stage:
            (stage / "toy.part").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with staging(tmp_path, "toy") as stage:
        assert (stage / "toy.part").read_bytes() == b"half"
    assert list(tmp_path.iterdir()) == []
