"""Files that ask for more memory than they hold: each is refused before anything is allocated, in a process with a limit."""

import json
import struct
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from opu.teachers.array_files import open_array

MEGABYTE = 2**20
LIMIT = 96 * MEGABYTE
READ = """
import json, resource, sys
from pathlib import Path
from opu.teachers import array_files
array_files.LARGEST_INFLATED = 16 * 2**20
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]), used + int(sys.argv[1])))
found = {}
for path in sorted(Path(sys.argv[2]).iterdir()):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        array = array_files.open_array(path)
        said = f"read {array.shape} {array.dtype}, largest {array.max() if array.size else None}"
    except ValueError as error:
        said = str(error)
    array = None
    found[path.name] = said, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
print(json.dumps(found))
"""


def header(shape, dtype="<f4"):
    stream = BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def npz(path, content, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive, archive.open("a.npy", "w") as stream:
        for part in content:
            stream.write(part)
    return path


def with_stated_size(path, size):
    """The same archive with another size in its directory and in front of its member."""
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        member = archive.infolist()[0]
    raw[member.header_offset + 22 : member.header_offset + 26] = struct.pack("<I", size)
    entry = raw.rindex(b"PK\x01\x02")
    raw[entry + 24 : entry + 28] = struct.pack("<I", size)
    path.write_bytes(bytes(raw))
    return path


def zeros(megabytes):
    return (bytes(MEGABYTE) for _ in range(megabytes))


def safetensors(path, entry, length=None):
    text = json.dumps({"a": entry}).encode()
    path.write_bytes((length or len(text)).to_bytes(8, "little") + text + bytes(10_000))


def of_shape(*lengths):
    return {"dtype": "F32", "shape": list(lengths), "data_offsets": [0, 10_000]}


LIES = {
    "longer": of_shape(10**9, 25) | {"data_offsets": [0, 10**11]},
    "more": of_shape(10**9, 25),
    "fewer": of_shape(10, 25),
    "shifted": of_shape(100, 25) | {"data_offsets": [8, 10_008]},
    "negative": of_shape(-100, -25),
    "overflow": of_shape(2**63, 2**63),
    "fraction": of_shape(100.0, 25),
    "words": of_shape(100, 25) | {"shape": "many"},
}
ROW = MEGABYTE // 4  # numbers in a megabyte
SHAPES = [(10**9, 25), (10**18, 10**18), (99, 25), (101, 25), (-1, 25), (-100, -25), (100, 25, 0)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What comes of reading each file in one process that may use little more memory, and how much more it did use."""
    folder = tmp_path_factory.mktemp("bombs")
    npz(folder / "zeros.npz", [header((15, ROW)), *zeros(15)])
    npz(folder / "bomb.npz", [header((300, ROW)), *zeros(300)])
    noise = np.random.default_rng(0).normal(size=(30, ROW)).astype(np.float32).tobytes()
    npz(folder / "noise.npz", [header((30, ROW)), noise])
    npz(folder / "bzip2.npz", [header((8, ROW)), *zeros(8)], zipfile.ZIP_BZIP2)
    for number, shape in enumerate(SHAPES):
        npz(folder / f"deflated-{number}.npz", [header(shape), bytes(10_000)])
        npz(folder / f"stored-{number}.npz", [header(shape), bytes(10_000)], zipfile.ZIP_STORED)
        (folder / f"lie-{number}.npy").write_bytes(header(shape) + bytes(10_000))
    begin = header((20, ROW))
    for stated in (1, 19, 100):
        npz(folder / f"directory-{stated}.npz", [begin, *zeros(20)])
        with_stated_size(folder / f"directory-{stated}.npz", len(begin) + stated * MEGABYTE)
    for name, stated, true in (("grows", 4000, 0), ("short", 8, 7), ("cut", 1, 10)):  # header and directory lie alike
        begin = header((stated, ROW))
        npz(folder / f"{name}.npz", [begin, *zeros(true)])
        with_stated_size(folder / f"{name}.npz", len(begin) + stated * MEGABYTE)
    npz(folder / "lacking.npz", [header((31, ROW)), noise])
    with_stated_size(folder / "lacking.npz", len(header((31, ROW))) + 31 * MEGABYTE)
    for name, entry in LIES.items():
        safetensors(folder / f"{name}.safetensors", entry)
    safetensors(folder / "header.safetensors", of_shape(100, 25), length=10**15)
    command = [sys.executable, "-c", READ, str(LIMIT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_compressed_array_is_inflated_up_to_a_bound_however_well_it_compresses(found):
    assert found["zeros.npz"][0] == f"read (15, {ROW}) float32, largest 0.0"


def test_an_array_that_is_truly_large_is_inflated_beyond_the_bound(found):
    assert found["noise.npz"][0].startswith(f"read (30, {ROW}) float32, largest 5.")


def test_a_bomb_is_refused_before_it_is_inflated(found):
    said, used = found["bomb.npz"]
    assert (
        "a would take 315 MB of memory, from 0.3 MB in the file; save it without compression, with numpy.savez" in said
    )
    assert used < 8 * MEGABYTE


@pytest.mark.parametrize("kind", ["deflated-{}.npz", "stored-{}.npz", "lie-{}.npy"])
@pytest.mark.parametrize("number", range(len(SHAPES)), ids=map(str, SHAPES))
def test_a_shape_that_does_not_fit_the_data_is_refused_unread(kind, number, found):
    said, used = found[kind.format(number)]
    shape = SHAPES[number]
    assert f"its header says shape {shape}" in said
    assert "but the file holds 10000. Save it again" in said
    assert used < 8 * MEGABYTE


@pytest.mark.parametrize("stated", [1, 19, 100])
def test_a_directory_that_lies_about_the_size_is_refused(stated, found):
    said, used = found[f"directory-{stated}.npz"]
    assert f"take {20 * MEGABYTE} bytes, but the file holds {stated * MEGABYTE}." in said
    assert used < 8 * MEGABYTE


def test_header_and_directory_that_lie_alike_are_found_out(found):
    assert "a would take 4194 MB of memory, from 0.0 MB in the file" in found["grows.npz"][0]
    assert "a is damaged: it cannot be as large as the file says. Save it again." in found["short.npz"][0]
    assert "lacking.npz could not be read as .npz" in found["lacking.npz"][0]
    assert "cut.npz could not be read as .npz (BadZipFile)" in found["cut.npz"][0]


def test_kinds_of_compression_without_a_bound_are_refused(found):
    assert "a is compressed in a way that numpy does not write" in found["bzip2.npz"][0]


@pytest.mark.parametrize("name", [*LIES, "header"])
def test_a_safetensors_file_whose_header_lies_is_refused(name, found):
    said, used = found[f"{name}.safetensors"]
    assert f"{name}.safetensors could not be read as .safetensors" in said
    assert used < 8 * MEGABYTE


def test_a_safetensors_file_that_names_an_array_twice_is_refused(tmp_path):
    entry = '"a":{"dtype":"F32","shape":[%d],"data_offsets":[%d,%d]}'
    text = "{" + entry % (2, 0, 8) + "," + entry % (2, 8, 16) + "}"
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + np.arange(4, dtype="<f4").tobytes())
    with pytest.raises(ValueError, match=r"a\.safetensors"):
        open_array(path)


def test_two_arrays_saved_into_one_npy_file_are_not_taken_for_one(tmp_path):
    with (tmp_path / "a.npy").open("wb") as file:
        np.save(file, np.zeros((3, 2)))
        np.save(file, np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"its header says shape \(3, 2\) .* 48 bytes, but the file holds 224"):
        open_array(Path(tmp_path / "a.npy"))
