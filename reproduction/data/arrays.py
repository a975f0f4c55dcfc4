"""Read the files of datasets into arrays, and refuse damaged ones in a sentence. Nothing here is ever unpickled."""

import gzip
import io
import math
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from opu.checks import optional

OMNIGLOT_SIDE = 105
SEMEION_PIXELS = 256
_UINT8 = 8  # the code for this dtype in idx files


def read_idx(path: Path, num_axes: int) -> NDArray[np.uint8]:
    """The ``uint8`` array of a gzipped idx file, the format of MNIST: axes and their lengths, then the values."""
    content = _read_bytes(path)
    magic = bytes([0, 0, _UINT8, num_axes])
    if content[:4] != magic:
        raise _damaged(
            path, f"begins with {content[:4].hex(' ')} where {magic.hex(' ')} marks {num_axes} axes of uint8"
        )
    header = 4 + 4 * num_axes
    if len(content) < header:
        raise _damaged(path, f"ends within its header, after {len(content)} of {header} bytes")
    shape = tuple(int(length) for length in np.frombuffer(content[4:header], ">u4"))
    if len(content) != header + math.prod(shape):
        raise _damaged(path, f"promises values of shape {shape} but holds {len(content) - header:,} of them")
    # A copy, since the bytes of a file are read-only memory, which torch warns about.
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()


def read_omniglot(path: Path) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """The drawings of an Omniglot zip ``(N, 105, 105)``, true where white, and the number of each one's character.

    Drawings are in the order of their names; characters are counted in that order from 0, through all alphabets.
    """
    image = optional("PIL.Image", "reading Omniglot", "data")
    with path.open("rb") as file:
        try:
            archive = zipfile.ZipFile(file)
            names = sorted(name for name in archive.namelist() if name.endswith(".png") and "__MACOSX" not in name)
            drawings = [np.asarray(image.open(io.BytesIO(archive.read(name))).convert("1")) for name in names]
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, SyntaxError) as error:
            raise _damaged(path, f"cannot be read as a zip of pictures ({error})") from error
    if not names:
        raise _damaged(path, "holds no png pictures")
    shapes = {drawing.shape for drawing in drawings}
    if shapes != {(OMNIGLOT_SIDE, OMNIGLOT_SIDE)}:
        raise _damaged(path, f"holds pictures of shapes {sorted(shapes)} where all have 105 x 105 pixels")
    _, labels = np.unique([name.rsplit("/", 1)[0] for name in names], return_inverse=True)
    return np.stack(drawings), labels.astype(np.int64)


def read_semeion(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """SEMEION's images ``(N, 16, 16)``, 1 where there is ink, and their digits; plain text or gzipped."""
    rows = read_numbers(path, SEMEION_PIXELS + 10, separator=None)
    pixels, digits = rows[:, :SEMEION_PIXELS], rows[:, SEMEION_PIXELS:]
    if not np.isin(rows, (0, 1)).all() or not (digits.sum(1) == 1).all():
        raise _damaged(path, "holds rows that are not 256 binary pixels and one mark among ten digits")
    return pixels.reshape(-1, 16, 16).astype(np.uint8), digits.argmax(1)


def read_numbers(path: Path, num_columns: int, separator: str | None = ",") -> NDArray[np.float64]:
    """A text file of numbers without a header, ``(N, num_columns)``; a separator of None is white space."""
    lines = _read_bytes(path).decode("ascii", errors="replace").splitlines()
    rows = [line.split(separator) for line in lines if line.strip()]
    widths = {len(row) for row in rows}
    if widths != {num_columns}:
        raise _damaged(path, f"holds rows of {sorted(widths)} columns where all have {num_columns}")
    try:
        numbers = np.array(rows, dtype=np.float64)
    except ValueError as error:
        raise _damaged(path, f"holds something that is not a number ({error})") from error
    if not np.isfinite(numbers).all():
        raise _damaged(path, "holds values that are not finite")
    return numbers


def _read_bytes(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _damaged(path, f"cannot be unpacked ({error})") from error


def _damaged(path: Path, what: str) -> ValueError:
    return ValueError(f"{path} {what}; it is damaged or another file. Compare it with `opu data verify`.")
