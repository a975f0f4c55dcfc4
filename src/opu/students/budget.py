"""How much memory a program may take: it is run without memory first, and refused if it would take too much."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

META = torch.device("meta")
# For two inputs. Attention with 12 heads over 1,000 tokens, or an image of a million pixels in 60 channels, takes less.
_LEAST_BYTES = 2**30
_TIMES = 2**8
# Operators that make a list, or take a step for each place of an axis, take time for each also without memory.
_MOST_PIECES = 2**16
_OF_A_MASK = ("lift_fresh_copy", "alias", "detach", "detach_", "clone", "contiguous", "logical_not", "bitwise_not")
_IN_PIECES = ("split", "split_with_sizes", "chunk", "unbind", "lstm", "gru", "rnn_tanh", "rnn_relu", "meshgrid")


class Budget:
    """What the values of a program may take together at any time.

    It is what the file and its inputs warrant: 1 GB for two inputs, and 256 times the bytes of those inputs and of the
    weights. Inputs of other sizes than the file describes may take more, in proportion or, if its author meant harm, beyond.

    Args:
        num_bytes: Number of bytes of the weights and of two inputs.
    """

    def __init__(self, num_bytes: int) -> None:
        self._most = _LEAST_BYTES + _TIMES * num_bytes
        self._pieces = 0
        self._taken: dict[str, int] = {}
        self._total = 0

    def run(self, name: str, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What a step returns, if there is room for it.

        Args:
            name: Name of the result.
            function: The operator.
            args: Its arguments; tensors have no memory, except for masks.
            kwargs: Its arguments with names.
        """
        if _name(function) in _IN_PIECES:
            self._pieces += _pieces(args)
            if self._pieces > _MOST_PIECES:
                raise ValueError(f"it works in {self._pieces:,} pieces, and at most {_MOST_PIECES:,} are run")
        result = _without_memory(function, args, kwargs)
        self.free(name)
        self._taken[name] = _bytes(result)
        self._total += self._taken[name]
        if self._total > self._most:
            raise ValueError(
                f"it would take {self._total:,} bytes for two inputs, and at most {self._most:,} are granted"
            )
        return result

    def free(self, name: str) -> None:
        """Give back what a value took."""
        self._total -= self._taken.pop(name, 0)


def _without_memory(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What an operator returns on the device ``meta``, also one that makes a tensor of its own.

    Masks among the weights come with their values, since they decide how much of a tensor is selected.
    """
    name = _name(function)
    if name in _OF_A_MASK and _is_mask(args[0]):
        return function(*args, **kwargs)  # which is no larger
    if name == "index":
        places = [each.nonzero(as_tuple=True) if _is_mask(each) else (each,) for each in args[1]]
        args = [args[0], [each for parts in places for each in parts]]
    args, kwargs = _moved(args), _moved(kwargs)
    schema = getattr(function, "_schema", None)
    for place, argument in enumerate(schema.arguments if schema is not None else []):
        if argument.name == "device" and place < len(args):
            args[place] = META
        elif argument.name == "device":
            kwargs["device"] = META
    result = function(*args, **kwargs)
    for each in result if isinstance(result, list | tuple) else [result]:
        if isinstance(each, Tensor) and each.device != META:
            raise ValueError("it takes memory where there should be none")
    return result


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "overloadpacket", "")).removeprefix("aten.")


def _is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device != META


def _moved(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(META)
    if isinstance(value, dict):
        return {key: _moved(each) for key, each in value.items()}
    return [_moved(each) for each in value] if isinstance(value, list) else value


def _pieces(args: list[Any]) -> int:
    """At most so many pieces, by the longest axis; layers of recurrent networks come as a list of weights."""
    tensors = [each for each in args if isinstance(each, Tensor)]
    longest = max((max(each.shape, default=1) for each in tensors), default=1)
    return longest * max((len(each) for each in args if isinstance(each, list)), default=1)


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return math.prod(value.shape) * value.element_size()
    return sum(_bytes(each) for each in value) if isinstance(value, list | tuple) else 0
