"""Arrays in files, memory-mapped if the format allows it, and never unpickled."""

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor


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
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} could not be read as .npz ({error}); it may be cut short. Save it again.") from error


def open_array(path: Path, key: str | None = None) -> NDArray[Any]:
    """The array in a ``.npy``, ``.npz`` or ``.safetensors`` file; ``key`` names it if there are several."""
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
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    _must_be_numbers(array.dtype)
    return array


def _open_npz(path: Path, key: str | None) -> NDArray[Any]:
    with zipfile.ZipFile(path) as archive:
        name = _pick(path, [n.removesuffix(".npy") for n in archive.namelist()], key)
        member = archive.getinfo(f"{name}.npy")
        with archive.open(member) as stream:
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(stream)
            header = stream.tell()
        _must_be_numbers(dtype)
    if member.compress_type != zipfile.ZIP_STORED:
        with np.load(path, allow_pickle=False) as arrays:
            compressed: NDArray[Any] = arrays[name]
        return compressed
    # An array stored without compression can be memory-mapped from where it begins in the archive.
    with path.open("rb") as raw:
        raw.seek(member.header_offset + 26)
        lengths = np.frombuffer(raw.read(4), dtype="<u2")
    offset = member.header_offset + 30 + int(lengths.sum()) + header
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
    offset = 8 + length + entry["data_offsets"][0]
    dtype = f"<{kind[0].lower()}{int(kind[1:]) // 8}"
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=tuple(entry["shape"]))
