"""Digests of content, the same in every process and on every device: tensors, arrays and networks, bit for bit."""

import inspect
import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_AT_ONCE = 2**26  # bytes
MOST_BYTES = 2**32  # of an array that is read whole
_NUM_BLOCKS, _BLOCK = 2**14, 2**14  # of a larger one, evenly spaced


class Digest:
    """A digest of several things in their order; each has its name, so that none can take the place of another."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)

    def text(self) -> str:
        """The digest so far."""
        return self._hash.hexdigest()

    def add_text(self, name: str, value: str = "") -> None:
        """Add a text."""
        for each in (name, value):
            encoded = each.encode(errors="surrogatepass")
            self._hash.update(len(encoded).to_bytes(8, "little") + encoded)

    def add_bytes(self, name: str, value: bytes | bytearray) -> None:
        """Add bytes."""
        self.add_text(name, f"bytes {len(value)}")
        self._hash.update(value)

    def add_tensor(self, name: str, tensor: Tensor) -> None:
        """Add type, shape and all values of a tensor, wherever it is."""
        tensor = _plain(tensor.detach())
        self.add_text(name, f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}")
        for part in _parts(tensor):
            self._hash.update(part.reshape(-1).view(torch.uint8).numpy().data)

    def add_array(self, name: str, array: NDArray[Any]) -> None:
        """Add type, shape and all values of an array; of one with more than 4 GB, evenly spaced blocks."""
        if array.dtype.names:  # field by field: what lies between fields is not defined
            for field in array.dtype.names:
                self.add_array(f"{name}.{field}", array[field])
            return
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        self.add_text(name, f"{array.dtype} {array.shape}")
        for part in _array_parts(array):
            self._hash.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)

    def add_network(self, name: str, net: nn.Module) -> None:
        """Add the layers of a network, as they describe themselves, its dropout rates, and all its weights and statistics."""
        net = getattr(net, "_orig_mod", net)  # torch.compile wraps a network
        net = net.module if isinstance(net, nn.DataParallel | nn.parallel.DistributedDataParallel) else net
        self.add_text(name, layers_of(net))
        for key, value in sorted(net.state_dict().items()):
            if isinstance(value, Tensor) and not is_lazy(value):
                self.add_tensor(key, value)


def layers_of(net: nn.Module, without: type | tuple[()] = ()) -> str:
    """The layers of a network in words: no weights, and no addresses in memory.

    Args:
        net: The network.
        without: Layers of this class are left out.
    """
    left_out = [f"{name}." for name, layer in net.named_modules() if isinstance(layer, without)]
    lines = []
    for name, layer in net.named_modules():
        if any(f"{name}.".startswith(each) for each in left_out):
            continue
        words = layer.extra_repr() if any(layer.children()) else repr(layer)
        # Layers of a user's own may not say their rates, temperatures and switches. A whole number may be a counter.
        said = {
            key: value for key, value in vars(layer).items() if isinstance(value, float | bool | str) and _counts(key)
        }
        # An activation that is kept as a function is known by its name.
        said |= {key: value.__name__ for key, value in vars(layer).items() if inspect.isroutine(value) and _counts(key)}
        lines.append(f"{name}: {type(layer).__name__} {words} {dict(sorted(said.items()))}")
    return re.sub(r" at 0x[0-9a-fA-F]+", "", "\n".join(lines))


def _counts(name: str) -> bool:
    return name != "training" and not name.startswith("_")


def _plain(tensor: Tensor) -> Tensor:
    """The same values in one block of memory."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor in pieces that are contiguous and on the CPU; no second copy of it is ever made."""
    if tensor.is_meta or tensor.numel() == 0:
        return
    if tensor.device.type == "cpu" and tensor.is_contiguous():
        yield tensor
        return
    tensor = tensor.reshape(1) if tensor.ndim == 0 else tensor
    rows = max(1, _AT_ONCE * len(tensor) // max(1, tensor.numel() * tensor.element_size()))
    for part in tensor.split(rows):
        yield part.contiguous().cpu()


def _array_parts(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    if array.nbytes <= MOST_BYTES:
        array = array.reshape(1) if array.ndim == 0 else array
        rows = max(1, _AT_ONCE * len(array) // max(1, array.nbytes))
        yield from (array[start : start + rows] for start in range(0, len(array), rows))
        return
    flat = array if array.flags.c_contiguous else array.T
    if not flat.flags.c_contiguous:
        yield from (array[i] for i in _spaced(len(array), _NUM_BLOCKS * _BLOCK * len(array) // array.nbytes))
        return
    flat = flat.reshape(-1)
    size = max(1, _BLOCK // flat.itemsize)
    yield from (flat[i : i + size] for i in _spaced(len(flat) - size, _NUM_BLOCKS))


def _spaced(length: int, count: int) -> list[int]:
    return sorted({round(i * (length - 1) / max(1, count - 1)) for i in range(max(1, min(count, length)))})
