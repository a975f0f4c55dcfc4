"""Indices that a network looks up in a table, such as tokens: which rows of a batch have some that the table lacks.

PyTorch refuses a whole batch for an index below 0 or beyond the end. A runtime may count a negative one from the end, and
gives a row of zeros for one that is too large to be one-hot, without a word. So each look-up of a network is watched while it
is written to a file: rows with such an index are known by it, and another index takes its place.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_aten = torch.ops.aten
# Where the indices and the size of the table are among the arguments of each function.
_LOOKUPS: dict[Callable[..., Any], tuple[int, Callable[[Sequence[Any]], int]]] = {
    nn.functional.embedding: (0, lambda args: args[1].shape[0]),
    torch.embedding: (1, lambda args: args[0].shape[0]),
    _aten.embedding.default: (1, lambda args: args[0].shape[0]),
    nn.functional.one_hot: (0, lambda args: args[1]),
    _aten.one_hot.default: (0, lambda args: args[1]),
    torch.index_select: (2, lambda args: args[0].shape[args[1]]),
    Tensor.index_select: (2, lambda args: args[0].shape[args[1]]),
    _aten.index_select.default: (2, lambda args: args[0].shape[args[1]]),
}
_NAMES = {nn.functional.embedding: ("input", "weight"), nn.functional.one_hot: ("tensor", "num_classes")}


class Lookups(TorchFunctionMode):
    """Watches look-ups while a network runs.

    Args:
        watched: The numbers of the look-ups, in their order, whose indices belong to rows of the batch; all by default.
    """

    def __init__(self, watched: frozenset[int] | None = None) -> None:
        super().__init__()
        self.watched = watched
        self.first_axes: list[int] = []
        self._sound: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func not in _LOOKUPS:
            return func(*args, **kwargs)
        args = [*args, *(kwargs.pop(name) for name in _NAMES.get(func, ())[len(args) :] if name in kwargs)]
        place, size_of = _LOOKUPS[func]
        if len(args) <= place or not isinstance(args[place], Tensor):
            return func(*args, **kwargs)
        indices, size, number = args[place], size_of(args), len(self.first_axes)
        self.first_axes.append(indices.shape[0] if indices.ndim else 0)
        if self.watched is not None and number in self.watched:
            self._sound.append((indices >= 0) & (indices < size))
            args[place] = indices.clamp(0, size - 1)
        return func(*args, **kwargs)

    def sound(self, num_rows: int | torch.SymInt) -> Bool[Tensor, " B"] | None:
        """Which rows have no index that a table lacks; None if nothing was watched."""
        # As a product, since ONNX Runtime reduces an empty batch to a wrong shape.
        counts = [
            (~each).flatten(1).float() if each.ndim > 1 else (~each).float().reshape(num_rows, -1)
            for each in self._sound
        ]
        wrong = [each @ torch.ones(each.shape[1], 1) for each in counts]
        return None if not wrong else (sum(wrong[1:], start=wrong[0]) == 0).squeeze(-1)


@torch.no_grad()
def of_rows(run: Callable[[int], object]) -> frozenset[int]:
    """The numbers of the look-ups whose indices grow with the batch.

    Args:
        run: Runs the network on so many rows.
    """
    axes = []
    for count in (2, 3):
        with Lookups() as seen:
            run(count)
        axes.append(seen.first_axes)
    two, three = axes
    if len(two) != len(three):
        return frozenset()
    return frozenset(n for n, (a, b) in enumerate(zip(two, three, strict=True)) if a > 0 and 3 * a == 2 * b)
