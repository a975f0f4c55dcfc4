"""A backend as a CUDA graph: one launch per batch in place of a dozen."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from opu.cuda_graph import CudaGraph
from opu.distributions import Dirichlet, SimplexDistribution

Outputs = tuple[Tensor, ...]  # the fields of a distribution in its order, so that its class takes them
Shapes = Sequence[tuple[int, ...]]  # of each of these, for a single input


def fields_of(q: SimplexDistribution) -> Outputs:
    """The tensors that a distribution is made of."""
    if isinstance(q, Dirichlet):
        return q.mean, q.log_precision, q.log_mean
    return q.location, q.log_scale, q.factors


class Captured:
    """A backend that is captured for batches of one shape; batches of other shapes run without the graph.

    Args:
        backend: From inputs to outputs, all of it on a GPU.
        placeholder: The tensor that the graph reads its inputs from.
        packed: The captured work: the outputs for the placeholder as one row of numbers, so that a call copies them once.
        shapes: The shape of each output for a single input.
    """

    def __init__(
        self, backend: Callable[[Tensor], Outputs], placeholder: Tensor, packed: Callable[[], Tensor], shapes: Shapes
    ) -> None:
        self.backend, self.placeholder, self.shapes = backend, placeholder, shapes
        self.graph = CudaGraph(lambda _: packed(), placeholder.device).capture(placeholder)

    @classmethod
    def for_example(cls, backend: Callable[[Tensor], Outputs], example: Tensor) -> "Captured":
        """The backend, captured for inputs of the example's shape and precision."""
        placeholder = example.clone()
        shapes = [tuple(part.shape[1:]) for part in backend(placeholder)]
        return cls(backend, placeholder, lambda: pack(backend(placeholder)), shapes)

    def __call__(self, x: Tensor) -> Outputs:
        """The backend's outputs, in memory of their own."""
        if x.shape != self.placeholder.shape:
            return self.backend(x)
        return unpack(self.graph(x).clone(), self.shapes)


def pack(outputs: Outputs) -> Tensor:
    """Several outputs as one row of numbers."""
    return torch.cat([part.flatten() for part in outputs])


def unpack(packed: Tensor, shapes: Shapes) -> Outputs:
    """Outputs of these shapes for each input, as views of one row of numbers."""
    sizes = [math.prod(shape) for shape in shapes]
    rows, start, parts = len(packed) // sum(sizes), 0, []
    for shape, size in zip(shapes, sizes, strict=True):
        strides = [math.prod(shape[axis:]) for axis in range(len(shape) + 1)]
        parts.append(packed.as_strided((rows, *shape), strides, start))
        start += rows * size
    return tuple(parts)
