"""Readers: known answers from made-up files, and one sentence for each kind of damage."""

import gzip
import sys

import numpy as np
import pytest

from reproduction.data.arrays import read_idx, read_numbers, read_omniglot, read_semeion
from tests.reproduction.data.made_up import idx, png, semeion_row, write, zipped

VALUES = np.arange(2 * 3 * 4).reshape(2, 3, 4)


def damaged(content, path, match, read, *arguments):
    write(path.parent, path.name, content)
    with pytest.raises(ValueError, match=match) as caught:
        read(path, *arguments)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_idx(tmp_path):
    got = read_idx(write(tmp_path, "x.gz", gzip.compress(idx(VALUES))), 3)
    np.testing.assert_array_equal(got, VALUES)
    assert got.dtype == np.uint8
    assert got.flags.writeable


def test_damaged_idx(tmp_path):
    path, good = tmp_path / "x.gz", idx(VALUES)
    damaged(gzip.compress(good)[:-12], path, "cannot be unpacked .*it is damaged", read_idx, 3)
    spoilt = bytearray(gzip.compress(good))
    spoilt[12] ^= 255
    damaged(bytes(spoilt), path, "cannot be unpacked", read_idx, 3)
    damaged(good, path, "cannot be unpacked .*Not a gzipped", read_idx, 3)
    damaged(gzip.compress(good), path, "begins with 00 00 08 03 where 00 00 08 01 marks 1 axes", read_idx, 1)
    damaged(gzip.compress(b"\0\0\x0d" + good[3:]), path, "begins with 00 00 0d 03", read_idx, 3)
    damaged(gzip.compress(b""), path, "begins with  where", read_idx, 3)
    damaged(gzip.compress(good[:10]), path, "ends within its header, after 10 of 16 bytes", read_idx, 3)
    damaged(gzip.compress(good[:-1]), path, r"promises values of shape \(2, 3, 4\) but holds 23 of them", read_idx, 3)
    damaged(gzip.compress(good + b"\0"), path, "but holds 25 of them", read_idx, 3)


def drawing(*black):
    is_white = np.ones((105, 105), dtype=bool)
    for place in black:
        is_white[place] = False
    return is_white


def test_omniglot(tmp_path):
    members = {
        "images_x/": b"",
        "images_x/B/character01/0003_01.png": png(drawing((7, 9))),
        "images_x/A/character02/0002_01.png": png(drawing()),
        "images_x/A/character01/0001_02.png": png(drawing((0, 0))),
        "images_x/A/character01/0001_01.png": png(drawing((104, 0))),
        "__MACOSX/images_x/A/character01/._0001_01.png": b"not a picture",
    }
    drawings, labels = read_omniglot(write(tmp_path, "x.zip", zipped(members)))
    expected = [drawing((104, 0)), drawing((0, 0)), drawing(), drawing((7, 9))]
    np.testing.assert_array_equal(drawings, expected)
    assert labels.tolist() == [0, 0, 1, 2]


def test_damaged_omniglot(tmp_path):
    path, good = tmp_path / "x.zip", zipped({"A/1/1.png": png(drawing())})
    damaged(good[:-5], path, "cannot be read as a zip of pictures", read_omniglot)
    damaged(zipped({"A/1/1.png": b"not a picture"}), path, "cannot be read as a zip of pictures", read_omniglot)
    damaged(zipped({"A/1/1.png": png(drawing())[:60]}), path, "cannot be read as a zip of pictures", read_omniglot)
    damaged(zipped({"readme": b""}), path, "holds no png pictures", read_omniglot)
    small = {"A/1/1.png": png(drawing()), "A/1/2.png": png(np.ones((5, 6)))}
    damaged(zipped(small), path, r"holds pictures of shapes \[\(5, 6\), \(105, 105\)\]", read_omniglot)


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r'PIL.Image; install it with: pip install "one-pass-uncertainty\[data\]"'):
        read_omniglot(tmp_path / "x.zip")


@pytest.mark.parametrize("name", ["x.data", "x.data.gz"])
def test_semeion(tmp_path, name):
    first, second = np.zeros((16, 16)), np.zeros((16, 16))
    first[0, 3] = second[15, 1] = 1
    text = (semeion_row(first, 7) + semeion_row(second, 0)).encode()
    images, labels = read_semeion(write(tmp_path, name, gzip.compress(text) if name.endswith("gz") else text))
    np.testing.assert_array_equal(images, [first, second])
    assert labels.tolist() == [7, 0]
    assert labels.dtype == np.int64


def test_damaged_semeion(tmp_path):
    path, image = tmp_path / "x.data", np.zeros((16, 16))
    row = semeion_row(image, 3)
    damaged(row.replace(" 1 ", " 0 ").encode(), path, "not 256 binary pixels and one mark", read_semeion)
    damaged(row.replace("0.0000", "0.5000", 1).encode(), path, "not 256 binary pixels", read_semeion)
    damaged((row + row[:100]).encode(), path, r"rows of \[\d+, 266\] columns where all have 266", read_semeion)
    damaged(b"", path, r"rows of \[\] columns", read_semeion)


def test_numbers(tmp_path):
    got = read_numbers(write(tmp_path, "x.csv", b"1,2.5,-3\r\n0,1e-3,4\r\n\r\n"), 3)
    np.testing.assert_array_equal(got, [[1, 2.5, -3], [0, 0.001, 4]])


def test_damaged_numbers(tmp_path):
    path = tmp_path / "x.csv"
    damaged(b"1,2\n3\n", path, r"rows of \[1, 2\] columns where all have 2", read_numbers, 2)
    damaged(b"a,b\n1,2\n", path, "not a number .*'a'", read_numbers, 2)
    damaged(b"1,2\n3,\xff\n", path, "not a number", read_numbers, 2)
    damaged(b"1,nan\n", path, "not finite", read_numbers, 2)
