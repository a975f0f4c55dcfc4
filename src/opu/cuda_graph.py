"""CUDA graphs: work on a GPU that is captured once and replayed without Python.

Small networks spend most of a step on launching kernels; a graph launches all of them at once.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opu.checks import first_line

WARM_UP = 3


def being_captured(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being captured on this tensor's device: the CPU may then read no value."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


class CudaGraph:
    """A function of tensors on a GPU, captured as a CUDA graph: at its fourth call, or at once by :meth:`capture`.

    The calls before the capture run on a stream of their own. They do real work, and caches and optimisers are created in
    them. The function must change its state (weights, optimisers) in place, must not read values back to the CPU while it
    is captured (see :func:`being_captured`), and must always be given the same shapes.

    Args:
        function: From tensors to what a replay overwrites: a tensor, or several.
        device: The GPU that it works on; the current one by default.
    """

    def __init__(self, function: Callable[..., Any], device: torch.device | None = None) -> None:
        self._function, self._device = function, device
        self._calls = 0
        self._placeholders: tuple[Tensor, ...] = ()
        self._output: Any = None
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *inputs: Tensor) -> Any:
        """The function's output, which the next call overwrites."""
        if self._graph is None:
            if self._calls < WARM_UP:
                return self._warm_up(inputs)
            self._capture(tuple(each.clone() for each in inputs))
        for placeholder, each in zip(self._placeholders, inputs, strict=True):
            assert placeholder.shape == each.shape, "a CUDA graph takes inputs of one shape"
            placeholder.copy_(each)
        self.replay()
        return self._output

    def capture(self, *placeholders: Tensor) -> "CudaGraph":
        """Warm up and capture now; inputs of later calls are copied, and converted, into these tensors."""
        while self._calls < WARM_UP:
            self._warm_up(placeholders)
        self._capture(placeholders)
        return self

    def replay(self) -> None:
        """Run the captured work on what the placeholders hold."""
        assert self._graph is not None, "nothing was captured yet"
        self._graph.replay()

    def _warm_up(self, inputs: tuple[Tensor, ...]) -> Any:
        self._calls += 1
        with torch.cuda.device(self._device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                output = self._function(*inputs)
            torch.cuda.current_stream().wait_stream(stream)
        return output

    def _capture(self, placeholders: tuple[Tensor, ...]) -> None:
        self._placeholders, graph = placeholders, torch.cuda.CUDAGraph()
        try:
            with torch.cuda.device(self._device), torch.cuda.graph(graph):
                self._output = self._function(*placeholders)
        except RuntimeError as error:
            raise RuntimeError(
                f"this work could not be captured as a CUDA graph ({first_line(error)}); perhaps a teacher, an "
                "augmentation or a network of your own reads a value back to the CPU. Run it without a graph."
            ) from error
        self._graph = graph


def captured(function: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
    """The function itself on the CPU, and a CUDA graph of it on a GPU."""
    return CudaGraph(function, device) if device.type == "cuda" else function
