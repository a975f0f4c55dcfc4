"""Tensors and texts in one safetensors file, with a checksum of all of them."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from opu.checks import first_line

CHECKSUM = "checksum"


def to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file whose metadata also holds the checksum of the rest.

    Args:
        tensors: On the CPU, contiguous, and each with memory of its own.
        metadata: Texts by name.
    """
    metadata = dict(metadata or {})
    content: bytes = save(dict(tensors), metadata=metadata | {CHECKSUM: checksum(tensors, metadata)})
    return _in_order(content)


def _in_order(content: bytes) -> bytes:
    """The same file with its metadata in order of their names, so that equal contents are equal files."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text + content[start:]


def from_file(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and metadata of a file, whose checksum is verified; older files without one are taken as they are.

    What is wrong with a file is a ValueError. A file that is not there is a FileNotFoundError or a NotADirectoryError.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (SafetensorError, OSError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(first_line(error)) from error
    if CHECKSUM in metadata:
        rest = {name: text for name, text in metadata.items() if name != CHECKSUM}
        if checksum(tensors, rest) != metadata[CHECKSUM]:
            raise ValueError("its content does not have the checksum that was written with it")
    return tensors, metadata


def checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """A number for all names, types, shapes, values and texts.

    It is against damage, not malice: whoever changes a file on purpose can compute the checksum anew. What is read is
    therefore checked as if it had none.
    """
    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        # numpy does not know all types of numbers, but it knows bytes.
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return f"sha256:{digest.hexdigest()}"


def checksum_in(content: bytes) -> str:
    """The checksum in the metadata of a file that :func:`to_bytes` made."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    found: str = header["__metadata__"][CHECKSUM]
    return found
