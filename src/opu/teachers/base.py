"""What a teacher is, and what every teacher needs."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from opu.choices import OUTPUTS, Outputs, check_choice
from opu.cuda_graph import being_captured


@runtime_checkable
class Teacher(Protocol):
    """A Bayesian classifier seen through its particles: ``(S, B, K)`` log-probabilities for a batch of inputs.

    Any callable of this form will do. A teacher with a finite number of posterior samples returns all of them when more
    are requested, and a random subset when fewer are.
    """

    def __call__(self, x: Tensor, num_particles: int) -> Float[Tensor, "S B K"]:
        """Particles for a batch of inputs."""
        ...


class BaseTeacher(ABC):
    """A teacher that can say more than its particles; each method has a default that suits most.

    Attributes:
        known_inputs_only: Whether particles exist for certain inputs only, so that augmented inputs cannot be labelled.
    """

    known_inputs_only: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, x: Tensor, num_particles: int) -> Float[Tensor, "S B K"]:
        """Particles for a batch of inputs."""

    def bind(self, batches: Iterable[Tensor]) -> "BaseTeacher":
        """The teacher for a run over these inputs; :func:`opu.distill` calls this once."""
        return self

    def network(self) -> nn.Module | None:
        """One network that predicts about what the teacher predicts on average, if there is one."""
        return None


@final
class _Callable(BaseTeacher):
    def __init__(self, function: Teacher) -> None:
        self.function = function

    def __call__(self, x: Tensor, num_particles: int) -> Float[Tensor, "S B K"]:
        return self.function(x, num_particles)


def as_teacher(teacher: Teacher) -> BaseTeacher:
    """The teacher itself, or a plain callable with the defaults of :class:`BaseTeacher`."""
    return teacher if isinstance(teacher, BaseTeacher) else _Callable(teacher)


def to_log_probabilities(values: Tensor, outputs: Outputs, floor: float = 1e-12) -> Tensor:
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
    check_choice("outputs", outputs, OUTPUTS)
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


class _Log(nn.Module):
    def forward(self, probabilities: Tensor) -> Tensor:
        return probabilities.clamp(min=1e-12).log()


def as_logits(net: nn.Module, outputs: Outputs) -> nn.Module:
    """A network whose softmax is the class probabilities; log-probabilities are logits already."""
    return nn.Sequential(net, _Log()) if outputs == "probabilities" else net


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
