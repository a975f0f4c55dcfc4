"""Arrays in files, memory-mapped if the format allows it, and never unpickled.

What a file says about itself is compared with its size before anything is allocated.
"""

import json
import math
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

# A compressed array has to be inflated into memory. So much is always allowed, and as many times its size in the file.
LARGEST_INFLATED = 2**30
LARGEST_RATIO = 32
_MOST_DEFLATE_CAN_DO = 1032  # the bound of the format


class _NotWanted(ValueError):
    """The file can be read but does not hold what is needed; its message is written for the user."""


def as_array(values: Tensor | NDArray[Any]) -> NDArray[Any]:
    """A user's tensor or array as an array of floats."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    _must_be_numbers(array.dtype)
    return array if array.dtype.kind == "f" else array.astype(np.float32)


def array_names(path: Path) -> list[str]:
    """Names of the arrays in a ``.npz`` file, in the order in which they were saved."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except (
        zipfile.BadZipFile,
        NotImplementedError,
    ) as error:  # the second: of a kind of archive that zipfile does not know
        raise ValueError(f"{path} could not be read as .npz ({error}); it may be cut short. Save it again.") from error


def open_array(path: Path, key: str | None = None) -> NDArray[Any]:
    """The array in a ``.npy``, ``.npz`` or ``.safetensors`` file; ``key`` names it if there are several.

    Files are memory-mapped, so that their arrays may be larger than memory. A compressed array of a ``.npz`` file is
    inflated into memory, and refused if it takes more than 1 GiB and more than 32 times its size in the file.
    """
    readers: dict[str, Any] = {".npy": _open_npy, ".npz": _open_npz, ".safetensors": _open_safetensors}
    if path.suffix not in readers:
        raise ValueError(f"an array is read from a file that ends in {', '.join(readers)}; got {path.name!r}.")
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give the path of a saved array.")
    try:
        array: NDArray[Any] = readers[path.suffix](path, key)
        return array
    except _NotWanted as error:
        raise ValueError(f"{path}: {error}") from None
    except Exception as error:
        # Readers raise all kinds of errors for a broken file, some with bad advice; the original stays in the chain.
        raise ValueError(
            f"{path} could not be read as {path.suffix} ({type(error).__name__}); it may be cut short, or hold pickled "
            "objects. Save it again, as plain numbers."
        ) from error


def _must_be_numbers(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "fiu":
        raise _NotWanted(f"an array must hold numbers; got type {dtype}. Save it as float32.")


def _pick(path: Path, names: list[str], key: str | None) -> str:
    if key is None and len(names) == 1:
        return names[0]
    if key not in names:
        raise _NotWanted(
            f"{path.name} holds the arrays {', '.join(sorted(names))}; say which one with key=, got {key!r}."
        )
    return key


def _open_npy(path: Path, _key: str | None) -> NDArray[Any]:
    with path.open("rb") as stream:
        shape, fortran, dtype = _header(stream)
        offset = stream.tell()
    _must_fill(path.name, shape, dtype, path.stat().st_size - offset)
    return _mapped(path, shape, fortran, dtype, offset)


def _open_npz(path: Path, key: str | None) -> NDArray[Any]:
    with zipfile.ZipFile(path) as archive:
        name = _pick(path, [n.removesuffix(".npy") for n in archive.namelist()], key)
        member = archive.getinfo(f"{name}.npy")
        with archive.open(member) as stream:
            shape, fortran, dtype = _header(stream)
            begin = stream.tell()
        _must_fill(name, shape, dtype, member.file_size - begin)
        if member.compress_type != zipfile.ZIP_STORED:
            _must_be_inflatable(name, member)
            with archive.open(member) as stream:
                inflated: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
            return inflated
    # An array stored without compression can be memory-mapped from where it begins in the archive.
    with path.open("rb") as raw:
        raw.seek(member.header_offset + 26)
        lengths = np.frombuffer(raw.read(4), dtype="<u2")
    return _mapped(path, shape, fortran, dtype, member.header_offset + 30 + int(lengths.sum()) + begin)


def _header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type that the first bytes of an array in numpy's format tell."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    _must_be_numbers(dtype)
    return shape, fortran, dtype


def _must_fill(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], num_bytes: int) -> None:
    """Refuse an array of another size than its place in the file."""
    wanted = math.prod(shape) * dtype.itemsize
    if wanted != num_bytes or any(length < 0 for length in shape):
        raise _NotWanted(
            f"{name} is damaged or cut short: its header says shape {shape} and type {dtype}, which take {wanted} bytes, but "
            f"the file holds {num_bytes}. Save it again, one array at a time."
        )


def _must_be_inflatable(name: str, member: zipfile.ZipInfo) -> None:
    """Refuse a compressed array that is far larger than the file warrants."""
    if member.compress_type != zipfile.ZIP_DEFLATED:
        raise _NotWanted(f"{name} is compressed in a way that numpy does not write; save it again with numpy.savez.")
    if member.file_size > max(LARGEST_INFLATED, LARGEST_RATIO * member.compress_size):
        raise _NotWanted(
            f"{name} would take {member.file_size / 1e6:.0f} MB of memory, from {member.compress_size / 1e6:.1f} MB in the "
            "file; save it without compression, with numpy.savez, and it is read in parts."
        )
    if member.file_size > _MOST_DEFLATE_CAN_DO * (member.compress_size + 64):
        raise _NotWanted(f"{name} is damaged: it cannot be as large as the file says. Save it again.")


def _mapped(path: Path, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any], offset: int) -> NDArray[Any]:
    if 0 in shape:  # nothing to map
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order="F" if fortran else "C")


def _open_safetensors(path: Path, key: str | None) -> NDArray[Any]:
    with safe_open(path, framework="np") as file:  # refuses a file that is not whole
        name = _pick(path, list(file.keys()), key)
        kind = file.get_slice(name).get_dtype()
    if not re.fullmatch("[FIU](8|16|32|64)", kind):  # numpy does not know bfloat16, for instance
        raise _NotWanted(f"an array must hold numbers that numpy knows; got type {kind}. Save it as float32.")
    with path.open("rb") as raw:
        length = int.from_bytes(raw.read(8), "little")
        entry = json.loads(raw.read(length))[name]
    first, last = entry["data_offsets"]
    dtype, shape = np.dtype(f"<{kind[0].lower()}{int(kind[1:]) // 8}"), tuple(entry["shape"])
    _must_fill(name, shape, dtype, last - first)
    return _mapped(path, shape, False, dtype, 8 + length + first)
