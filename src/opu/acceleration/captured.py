"""A backend as a CUDA graph: one launch per batch in place of a dozen."""

from collections.abc import Callable

import torch
from torch import Tensor

from opu.cuda_graph import CudaGraph

Outputs = tuple[Tensor, Tensor, Tensor]  # mean, log-precision and log-mean: the fields of a Dirichlet, in its order


class Captured:
    """A backend that is captured for batches of one shape; batches of other shapes run without the graph.

    Args:
        backend: From inputs to outputs, all of it on a GPU.
        placeholder: The tensor that the graph reads its inputs from.
        packed: The captured work: the outputs for the placeholder as one row of numbers, so that a call copies them once.
    """

    def __init__(self, backend: Callable[[Tensor], Outputs], placeholder: Tensor, packed: Callable[[], Tensor]) -> None:
        self.backend, self.placeholder = backend, placeholder
        self.graph = CudaGraph(lambda _: packed(), placeholder.device).capture(placeholder)

    @classmethod
    def for_example(cls, backend: Callable[[Tensor], Outputs], example: Tensor) -> "Captured":
        """The backend, captured for inputs of the example's shape and precision."""
        placeholder = example.clone()
        return cls(backend, placeholder, lambda: pack(backend(placeholder)))

    def __call__(self, x: Tensor) -> Outputs:
        """Mean, log-precision and log-mean, in memory of their own."""
        if x.shape != self.placeholder.shape:
            return self.backend(x)
        outputs = self.graph(x).clone()
        return unpack(outputs, (len(outputs) // len(x) - 1) // 2)


def pack(outputs: Outputs) -> Tensor:
    """Mean, log-precision and log-mean as one row of numbers."""
    return torch.cat([part.flatten() for part in outputs])


def unpack(packed: Tensor, num_classes: int) -> Outputs:
    """Mean, log-precision and log-mean as views of one row of numbers."""
    rows = len(packed) // (2 * num_classes + 1)
    shape, strides = (rows, num_classes), (num_classes, 1)
    return (
        packed.as_strided(shape, strides, 0),
        packed.as_strided((rows,), (1,), rows * num_classes),
        packed.as_strided(shape, strides, rows * (num_classes + 1)),
    )
