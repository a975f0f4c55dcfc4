"""Images that are far larger than their files have a note, and cost no memory."""

import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import opu
from opu.predict_files import images, predict_files

PREDICT = """
import resource, sys
from pathlib import Path
from opu.predict_files import images, predict_files
images.MOST_PIXELS = 2**20
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 200 * 2**20,) * 2)
folder = Path(sys.argv[1])
predict_files(folder / "run", folder / "photos", folder / "out.csv")
"""


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width, height, pixels, bits=8, colours=2):
    """A PNG file that may lie about its size."""
    begin = struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0)
    parts = chunk(b"IHDR", begin), chunk(b"IDAT", zlib.compress(pixels, 9)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.fixture
def run(tmp_path):
    student = opu.students.mlp(64, 3, (8,))
    opu.calibrate(student, torch.rand(50, 1, 8, 8))
    student.save(tmp_path / "run")
    (tmp_path / "photos").mkdir()
    Image.fromarray(np.full((8, 8), 99, np.uint8)).save(tmp_path / "photos" / "good.png")
    return tmp_path / "run"


def test_a_pipe_among_the_images_is_not_waited_for(run, tmp_path):
    os.mkfifo(tmp_path / "photos" / "a.png")
    predict_files(run, tmp_path / "photos", tmp_path / "out.csv")
    found = pd.read_csv(tmp_path / "out.csv").set_index("input")
    assert found.loc["a.png", "note"] == "cannot be read: it is not a regular file"
    assert np.isfinite(found.loc["good.png", "novelty_p_value"])


def test_images_that_would_fill_the_memory_have_a_note(run, tmp_path):
    photos = tmp_path / "photos"
    (photos / "colours.png").write_bytes(png(8_000, 8_000, bytes(8_000 * 24_001)))  # 256 MB as Pillow keeps them
    (photos / "deep.png").write_bytes(png(8_000, 8_000, bytes(8_000 * 16_001), bits=16, colours=0))
    (photos / "lie.png").write_bytes(png(2**31 - 1, 2**31 - 1, b""))
    (photos / "cut.png").write_bytes(png(1_000, 1_000, b"short"))
    (photos / "more.png").write_bytes(png(8, 8, bytes(10**8)))  # pixels that have no place in the image
    assert sum(path.stat().st_size for path in photos.iterdir()) < 10**6
    command = [sys.executable, "-c", PREDICT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    notes = pd.read_csv(tmp_path / "out.csv", index_col="input")["note"].fillna("")
    assert notes["good.png"] == ""
    for name in ("colours.png", "deep.png"):
        assert notes[name] == "cannot be read: it has 8000 x 8000 pixels, more than 1 million; make it smaller"
    assert notes["lie.png"].startswith("cannot be read: ")
    assert notes["cut.png"].startswith("cannot be read: ")


def test_the_bound_lets_the_largest_photographs_pass(run, tmp_path):
    assert images.MOST_PIXELS > 108_000_000
    Image.new("L", (5000, 3000), 255).save(tmp_path / "photos" / "large.png")
    assert predict_files(run, tmp_path / "photos", tmp_path / "out.csv") == 2
    assert pd.read_csv(tmp_path / "out.csv")["note"].isna().all()


def test_an_archive_of_an_unknown_kind_and_one_of_many_names_cost_one_sentence(run, tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, inputs=np.zeros((2, 1, 8, 8), np.float32))
    raw = bytearray(path.read_bytes())
    raw[raw.find(b"PK\x01\x02") + 6] = 109  # the version of zip that it asks for
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=r"a.npz could not be read as .npz \(zip file version 10.9"):
        predict_files(run, path, tmp_path / "out.csv")
    np.savez(path, **{f"a{number}": np.zeros(1) for number in range(500)})
    with pytest.raises(ValueError, match=r"and 488 more\. Save the right one under the name inputs"):
        predict_files(run, path, tmp_path / "out.csv")
