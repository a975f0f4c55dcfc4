"""Files that are either whole or not there: nested state as safetensors and json, never pickle."""

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opu.checks import first_line
from opu.json_text import parse
from opu.locks import NoLocks, close_file, is_at, is_ours, lock, open_file
from opu.tensor_file import CHECKSUM, from_file, to_bytes

_OURS = re.compile(r"\..*\.\d+-[0-9a-f]{8}\.tmp")  # temporary files


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a power cut, sees the old one or the new one and nothing between."""
    with replaced(path) as temporary:
        temporary.write_bytes(content)


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """The path of a temporary file to write piece by piece; it takes the place of ``path`` at the end, if nothing failed.

    Folders on the way are made. Several processes and threads may write the same path: each has a temporary file of its own,
    and the last one stays. What killed processes left in the folder is removed; where files cannot be locked it stays, since
    nobody can tell whether it is still being written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
        temporary, descriptor = _make_temporary(path)
    except OSError as error:
        raise _not_written(path, error) from error
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        if os.name == "nt":  # where an open file cannot be moved
            close_file(descriptor)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        if error.filename not in (None, str(temporary)):  # another file, which could not be read
            raise
        raise _not_written(path, error) from error
    finally:
        if is_ours(descriptor) or os.name == "nt":  # it is not in a child that was forked meanwhile
            if os.name == "nt":
                close_file(descriptor)
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            close_file(descriptor)


def _make_temporary(path: Path) -> tuple[Path, int]:
    """A new temporary file, open and locked as long as it is written."""
    while True:
        temporary = path.with_name(f".{path.name[:60]}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        descriptor = open_file(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            if lock(descriptor) and is_at(descriptor, temporary):
                return temporary, descriptor
        except NoLocks:
            return temporary, descriptor
        # Another process took it for a stale one, in the moment before it was locked.
        close_file(descriptor)


def _remove_stale(path: Path) -> None:
    """Remove temporary files of ours in the folder of ``path`` that nobody writes any more."""
    former = re.compile(re.escape(f".{path.name}.") + r"(\d+)\.tmp")  # the names of version 0.2, which locked nothing
    found: list[str] = []
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        found = [entry.path for entry in entries if entry.name.endswith(".tmp") and entry.name.startswith(".")]
    for each in map(Path, found):
        old = former.fullmatch(each.name)
        if _OURS.fullmatch(each.name) or (old is not None and not is_alive(int(old[1]))):
            with contextlib.suppress(OSError):
                _remove_unless_locked(each)


def _remove_unless_locked(path: Path) -> None:
    descriptor = open_file(path, os.O_RDWR)
    try:
        stale = lock(descriptor) and is_at(descriptor, path)
        if os.name == "nt":
            close_file(descriptor)
        if stale:
            path.unlink(missing_ok=True)
    finally:
        close_file(descriptor)


def is_alive(process: int) -> bool:
    """Whether there is a process of this number; True where nobody can tell."""
    if os.name == "nt":  # where signal 0 would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _not_written(path: Path, error: OSError) -> OSError:
    return OSError(
        error.errno,
        f"could not write {path}: {error.strerror or error}. What was there before is untouched; free some space or "
        "choose another folder",
    )


def write_json(path: Path, value: Any) -> None:
    """Write indented json, atomically."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def save_figure(figure: Any, path: Path, **options: Any) -> None:
    """Write a figure of matplotlib, atomically; its format is that of the suffix, or png where there is none."""
    path = path if path.suffix else path.with_name(f"{path.name}.png")
    with replaced(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), **options)


def read_json(path: Path) -> dict[str, Any]:
    """Read a json file that holds an object; anything else, and a name that occurs twice in it, is refused."""
    try:
        found = parse(path.read_text(encoding="utf-8"), constants=True)
    except ValueError as error:
        raise ValueError(f"{path} is not whole json ({error}); use another copy.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a json object; got {type(found).__name__}. Use another copy.")
    return found


def rounded(value: Any) -> Any:
    """Nested dicts and lists with every float cut to five digits, which is more than a result means."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """A value as it comes back from a json file."""
    return json.loads(json.dumps(value))


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write nested dicts and lists with tensors in them as one safetensors file with a checksum, atomically."""
    tensors: dict[str, Tensor] = {}
    skeleton = _encode(state, tensors)
    # An empty dict of tensors is not a file that every reader accepts.
    tensors["__empty__"] = torch.zeros(1)
    write_atomically(path, to_bytes(tensors, metadata={"state": json.dumps(skeleton)}))


def read_state(path: Path) -> dict[str, Any]:
    """Read what :func:`write_state` wrote; a file that is damaged is refused.

    The checksum is against damage, not malice. Files from before there was one are taken as they are.
    """
    try:
        tensors, metadata = from_file(path)
        if not metadata.keys() <= {"state", CHECKSUM}:
            raise ValueError(f"it holds {', '.join(sorted(metadata))}")
        state: dict[str, Any] = _decode(json.loads(metadata["state"]), tensors)
        if not isinstance(state, dict):
            raise TypeError("it holds no names")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a whole file of ours ({first_line(error)}); it may be cut short. Use another copy."
        ) from error
    return state


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut, where the system knows how."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _encode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"dict": [[key, _encode(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [_encode(item, tensors) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"a checkpoint can keep tensors, numbers, strings and containers of them; got {type(value).__name__}"
    )


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "dict" in value:
        return {key: _decode(item, tensors) for key, item in value["dict"]}
    return [_decode(item, tensors) for item in value["list"]]
