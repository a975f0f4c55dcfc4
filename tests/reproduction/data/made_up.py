"""Small files in the formats of the datasets, and tests that need the real ones."""

import gzip
import io
import zipfile

import numpy as np
import pytest

from reproduction.data import data_file, locate


def need(folder, path):
    if locate(data_file(path), folder) is None:
        pytest.skip(f"no {path} in {folder}")


def idx(values):
    values = np.asarray(values, dtype=np.uint8)
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


def write(folder, path, content):
    path = folder / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def write_pair(folder, images_path, images, labels):
    """Gzipped images and, beside them, their labels."""
    labels_path = images_path.replace("images-idx3", "labels-idx1")
    write(folder, labels_path, gzip.compress(idx(labels)))
    return write(folder, images_path, gzip.compress(idx(images)))


def png(is_white):
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.asarray(is_white, dtype=bool)).save(buffer, "png")
    return buffer.getvalue()


def zipped(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def semeion_row(image, digit):
    """As in the file: numbers with four decimals and one-hot digits, each followed by a space, and CRLF."""
    marks = ["1" if number == digit else "0" for number in range(10)]
    return " ".join([*(f"{value:.4f}" for value in np.asarray(image).reshape(-1)), *marks]) + " \r\n"
