"""Files that are published inside a zip archive."""

import hashlib
import io
import zipfile

import pytest

from reproduction.data import Source, fetch, fetch_all
from tests.reproduction.data.data_checks import HASTY
from tests.reproduction.data.misbehaving_server import cut, serve

FILES = {"a.txt": b"first" * 1000, "b.txt": b"second" * 1000}


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(f"gzip/{name}", content)
        archive.writestr("gzip/unwanted.txt", b"x" * 100)
    return buffer.getvalue()


ARCHIVE = zipped(FILES)


def in_archive(server, name, checksum=None):
    return Source(server.url("/all.zip"), f"gzip/{name}", checksum)


@pytest.fixture
def toy(server, publish):
    checksum = f"md5:{hashlib.md5(ARCHIVE).hexdigest()}"
    return publish("toy", {name: (FILES[name], [in_archive(server, name, checksum)]) for name in FILES})


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def fails(folder, *parts):
    with pytest.raises(OSError, match="could not fetch") as caught:
        fetch("toy", folder, retry=HASTY)
    for part in parts:
        assert part in str(caught.value)
    assert names(folder) == []


def test_wanted_members_come_from_one_download(server, toy, tmp_path):
    server.script["/all.zip"] = [cut(ARCHIVE, 50), serve(ARCHIVE)]
    assert [path.read_bytes() for path in fetch("toy", tmp_path, retry=HASTY)] == list(FILES.values())
    assert names(tmp_path) == ["toy/a.txt", "toy/b.txt"]
    assert server.ranges("/all.zip") == [None, "bytes=50-"]


def test_only_what_is_missing_is_unpacked(server, toy, tmp_path):
    server.script["/all.zip"] = [serve(ARCHIVE)]
    fetch("toy", tmp_path)
    before = (tmp_path / "toy" / "a.txt").stat().st_ino
    (tmp_path / "toy" / "b.txt").unlink()
    fetch("toy", tmp_path)
    assert (tmp_path / "toy" / "a.txt").stat().st_ino == before
    assert len(server.seen) == 2


def test_datasets_share_an_archive(server, toy, publish, tmp_path):
    publish("other", {"b.txt": (FILES["b.txt"], toy.files[1].sources)})
    server.script["/all.zip"] = [serve(ARCHIVE)]
    assert len(fetch_all(["toy", "other"], tmp_path)) == 3
    assert names(tmp_path) == ["other/b.txt", "toy/a.txt", "toy/b.txt"]
    assert len(server.seen) == 1


def test_an_archive_after_a_plain_file_that_is_gone(server, publish, tmp_path):
    publish("toy", {"a.txt": (FILES["a.txt"], [Source(server.url("/a.txt")), in_archive(server, "a.txt")])})
    server.script["/all.zip"] = [serve(ARCHIVE)]
    fetch("toy", tmp_path)
    assert names(tmp_path) == ["toy/a.txt"]


def test_an_archive_of_another_sum_is_not_opened(server, toy, tmp_path):
    server.script["/all.zip"] = [serve(zipped(FILES | {"more.txt": b""}))]
    fails(tmp_path, "gave a file that does not have the checksum md5:")


@pytest.fixture
def unsummed(server, publish):
    return publish("toy", {name: (FILES[name], [in_archive(server, name)]) for name in FILES})


def test_a_member_that_is_not_there(server, unsummed, tmp_path):
    server.script["/all.zip"] = [serve(zipped({}))]
    fails(tmp_path, "/all.zip gave an archive without gzip/a.txt")


def test_a_member_that_is_wrong(server, unsummed, tmp_path):
    server.script["/all.zip"] = [serve(zipped({"a.txt": b"other", "b.txt": b""}))]
    fails(tmp_path, "gave a.txt, which has 5 bytes, but 5,000 are right")


@pytest.mark.parametrize("content", [b"<html>moved</html>", ARCHIVE[:-30], ARCHIVE[:60] + bytes(20) + ARCHIVE[80:]])
def test_a_damaged_archive(server, unsummed, tmp_path, content):
    server.script["/all.zip"] = [serve(content)]
    fails(tmp_path, "/all.zip gave a damaged archive")
