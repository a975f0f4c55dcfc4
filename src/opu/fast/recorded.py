"""Answers on a GPU as a CUDA graph: one launch in place of a dozen."""

from collections.abc import Callable

import torch
from torch import Tensor

from opu.fast.side_by_side import Answer


class Recorded:
    """A way to answer, recorded for batches of one shape; others are answered as they come.

    Args:
        way: From inputs to answers, all of it on a GPU.
        example: Of the shape and the precision that the recording takes; inputs are copied, and converted, into it.
    """

    def __init__(self, way: Callable[[Tensor], Answer], example: Tensor) -> None:
        self.way, self.inputs = way, example.clone()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries set themselves up, kernels are compiled and chosen
            for _ in range(3):
                way(self.inputs)
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.answer = way(self.inputs)

    def __call__(self, x: Tensor) -> Answer:
        """Mean, log-precision and log-mean, in tensors of their own."""
        if x.shape != self.inputs.shape:
            return self.way(x)
        self.inputs.copy_(x)
        self.graph.replay()
        mean, log_precision, log_mean = self.answer
        return mean.clone(), log_precision.clone(), log_mean.clone()
