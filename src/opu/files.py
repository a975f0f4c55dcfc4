"""Files that are either whole or not there: nested state as safetensors and json, never pickle."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a power cut, sees the old one or the new one and nothing between."""
    with replaced(path) as temporary:
        temporary.write_bytes(content)


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """The path of a temporary file to write piece by piece; it takes the place of ``path`` at the end, if nothing failed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(path, error) from error
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.filename not in (None, str(temporary)):  # another file, which could not be read
            raise
        raise _not_written(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _not_written(path: Path, error: OSError) -> OSError:
    return OSError(
        error.errno,
        f"could not write {path}: {error.strerror or error}. What was there before is untouched; free some space or "
        "choose another folder",
    )


def write_json(path: Path, value: Any) -> None:
    """Write indented json, atomically."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def rounded(value: Any) -> Any:
    """Nested dicts with every float cut to five digits, which is more than a result means."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return value


def plain(value: Any) -> Any:
    """A value as it comes back from a json file."""
    return json.loads(json.dumps(value))


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write nested dicts and lists with tensors in them as one safetensors file, atomically."""
    tensors: dict[str, Tensor] = {}
    skeleton = _encode(state, tensors)
    # An empty dict of tensors is not a file that every reader accepts.
    tensors["__empty__"] = torch.zeros(1)
    write_atomically(path, to_bytes(tensors, metadata={"state": json.dumps(skeleton)}))


def read_state(path: Path) -> dict[str, Any]:
    """Read what :func:`write_state` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            skeleton = json.loads(file.metadata()["state"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a whole file of ours ({error}); it may be cut short. Use another copy."
        ) from error
    state: dict[str, Any] = _decode(skeleton, tensors)
    return state


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
