"""What a teacher is, and what every teacher needs."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from opu.cuda_graph import being_captured

Outputs = str  # "logits", "log_probabilities" or "probabilities"


@runtime_checkable
class Teacher(Protocol):
    """A Bayesian classifier seen through its particles: ``(S, B, K)`` log-probabilities for a batch of inputs.

    A teacher with a finite number of posterior samples answers with all of them when it is asked for more, and with a
    random choice when it is asked for fewer. One that knows particles for certain inputs only may define
    ``aligned_with(inputs)``, which :func:`opu.distill` calls once, and ``only_known_inputs = True``.
    """

    def __call__(self, x: Tensor, num_particles: int) -> Float[Tensor, "S B K"]:
        """Particles for a batch of inputs."""
        ...


def to_log_probabilities(values: Tensor, outputs: str, floor: float = 1e-12) -> Tensor:
    """What a network or an array gives, as log-probabilities.

    Args:
        values: The last axis holds the classes.
        outputs: What the values are.
        floor: Probabilities below it are raised to it, since an exact 0 has no logarithm.
    """
    if outputs == "probabilities" and not being_captured(values):
        low, high = float(values.min()), float(values.max())
        sums = values.double().sum(-1)
        least, most = float(sums.min()), float(sums.max())
        if not (low >= -1e-4 and high <= 1 + 1e-4 and least >= 1 - 1e-2 and most <= 1 + 1e-2):
            raise ValueError(
                f"particles must lie on the simplex; got values in {low:.3g} .. {high:.3g} and rows that sum to "
                f'{least:.3g} .. {most:.3g}. If these are logits, say outputs="logits".'
            )
    if outputs == "probabilities":
        raised = (values if values.dtype == torch.float64 else values.float()).clamp(min=floor)
        return (raised / raised.sum(-1, keepdim=True)).log()
    if outputs not in ("logits", "log_probabilities"):
        raise ValueError(f"outputs must be logits, log_probabilities or probabilities; got {outputs!r}.")
    if _look_like_probabilities(values):
        raise ValueError(
            f"the teacher's outputs were announced as {outputs} but lie on the simplex, row by row; a second softmax would "
            'flatten them. Say outputs="probabilities", or remove the softmax.'
        )
    if outputs == "log_probabilities":
        lowest = values.masked_fill(values == -torch.inf, 0.0).min().clamp(max=math.log(floor))
        values = torch.where(values == -torch.inf, lowest, values)
    return values.log_softmax(-1)  # which leaves log-probabilities as they are


def _look_like_probabilities(values: Tensor) -> bool:
    if being_captured(values):  # nothing may be read back then, and calls before this one were looked at
        return False
    return bool((values >= 0).all()) and bool(((values.sum(-1) - 1).abs() < 1e-4).all())


def as_tensor(values: Any) -> Tensor:
    """A tensor of what a user gave; an array is copied, since torch wants memory that it may write to."""
    return torch.from_numpy(np.array(values)) if isinstance(values, np.ndarray) else torch.as_tensor(values)


def choose(total: int, num_particles: int, device: torch.device | None = None) -> Int64[Tensor, " S"]:
    """Which of ``total`` posterior samples to use: all of them in order, or a random choice without repetition."""
    if num_particles < 1:
        raise ValueError(f"num_particles must be at least 1; got {num_particles}.")
    if num_particles >= total:
        return torch.arange(total, device=device)
    if device is not None and device.type == "cuda":
        # torch.randperm waits for the GPU; the order of random numbers does not.
        return torch.rand(total, device=device).argsort()[:num_particles]
    return torch.randperm(total)[:num_particles]


def device_of(module: nn.Module, x: Tensor) -> torch.device:
    """Where the module's weights live; where the input lives, if it has none."""
    parameter = next(module.parameters(), None)
    return x.device if parameter is None else parameter.device


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients; every submodule gets its own mode back at the end."""
    modes = {child: child.training for child in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for child, mode in modes.items():
            child.training = mode


def bytes_per_row(module: nn.Module, x: Tensor) -> int:
    """Memory that one input takes on its way through a module: the outputs of all its leaves, which is an upper bound."""
    total = 0

    def count(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal total
        tensors = output if isinstance(output, tuple | list) else [output]
        total += sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))

    leaves = [child for child in module.modules() if not any(child.children())]
    handles = [leaf.register_forward_hook(count) for leaf in leaves]
    try:
        with evaluating(module):
            module(x[:1])
    finally:
        for handle in handles:
            handle.remove()
    return max(total, 1)
