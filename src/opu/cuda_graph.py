"""Work on a GPU recorded once and replayed without Python: small networks spend most of a step on launching kernels."""

from collections.abc import Callable

import torch
from torch import Tensor

from opu.checks import first_line

WARM_UP = 3


def being_captured(tensor: Tensor) -> bool:
    """Whether the work on this tensor is being recorded, so that nothing may wait for its values."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


class CudaGraph:
    """A function of tensors on a GPU that is recorded as a CUDA graph at its fourth call, and replayed from then on.

    The first calls run as they are, on a stream of their own: they do real work, and let caches and optimisers come into
    being. The function must keep its state (weights, optimisers) in place, must not read values back to the CPU while it
    is recorded (see :func:`being_captured`), and must always be given the same shapes. It works on ``device``, or on the
    current one.
    """

    def __init__(self, function: Callable[..., Tensor], device: torch.device | None = None) -> None:
        self._function, self._device = function, device
        self._calls = 0
        self._inputs: tuple[Tensor, ...] = ()
        self._output = torch.empty(0)
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """What the function gives, in a tensor that the next call overwrites."""
        if self._graph is None:
            with torch.cuda.device(self._device):
                if self._calls < WARM_UP:
                    self._calls += 1
                    return self._aside(inputs)
                self._record(inputs)
        for ours, theirs in zip(self._inputs, inputs, strict=True):
            assert ours.shape == theirs.shape, "a recording takes inputs of one shape"
            ours.copy_(theirs)
        assert self._graph is not None
        self._graph.replay()
        return self._output

    def _aside(self, inputs: tuple[Tensor, ...]) -> Tensor:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            output = self._function(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return output

    def _record(self, inputs: tuple[Tensor, ...]) -> None:
        self._inputs = tuple(each.clone() for each in inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._output = self._function(*self._inputs)
        except RuntimeError as error:
            raise RuntimeError(
                f"this work could not be recorded as a CUDA graph ({first_line(error)}); perhaps a teacher or a "
                "transformation of your own reads a value back to the CPU. Run it without a graph."
            ) from error
        self._graph = graph


def captured(function: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
    """The function itself on the CPU, and its recording on a GPU."""
    return CudaGraph(function, device) if device.type == "cuda" else function
