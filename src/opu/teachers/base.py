"""The interface of a teacher, and helpers that teachers share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from opu.batches import Batch, as_scores, call, take
from opu.checks import check_at_least
from opu.choices import OUTPUTS, Outputs, check_choice
from opu.cuda_graph import being_captured
from opu.files import read_state


@runtime_checkable
class Teacher(Protocol):
    """A Bayesian classifier as a source of particles: ``(S, B, K)`` log-probabilities for a batch of inputs.

    Any callable of this form will do. A teacher with a finite number of posterior samples returns all of them when more
    are requested, and a random subset when fewer are.
    """

    def __call__(self, x: Batch, num_particles: int) -> Float[Tensor, "S B K"]:
        """Particles for a batch of inputs."""
        ...


class BaseTeacher(ABC):
    """A teacher that tells :func:`opu.distill` more about itself; each method has a default that suits most teachers.

    Attributes:
        known_inputs_only: Whether particles exist for certain inputs only; augmentation is then impossible.
    """

    known_inputs_only: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, x: Batch, num_particles: int) -> Float[Tensor, "S B K"]:
        """Particles for a batch of inputs."""

    def bind(self, batches: Iterable[Batch]) -> "BaseTeacher":
        """Get ready for a run over these inputs; :func:`opu.distill` calls this once and uses the result."""
        return self

    def network(self) -> nn.Module | None:
        """One network whose predictions are close to the teacher's average, if there is one."""
        return None


@final
class _Callable(BaseTeacher):
    def __init__(self, function: Teacher) -> None:
        self.function = function

    def __call__(self, x: Batch, num_particles: int) -> Any:  # what it returns is checked by its user
        return self.function(x, num_particles)


def as_teacher(teacher: Teacher) -> BaseTeacher:
    """The teacher itself, or a plain callable with the defaults of :class:`BaseTeacher`."""
    return teacher if isinstance(teacher, BaseTeacher) else _Callable(teacher)


def to_log_probabilities(values: Tensor, outputs: Outputs, floor: float = 1e-12) -> Tensor:
    """Outputs of a network or values of an array as log-probabilities.

    Args:
        values: Outputs with the classes on the last axis.
        outputs: Kind of the values.
        floor: Smallest probability; smaller ones are raised to it, since an exact 0 has no logarithm.
    """
    check_choice("outputs", outputs, OUTPUTS)
    if not being_captured(
        values
    ):  # no value may be read during the capture of a CUDA graph; earlier calls were checked
        _check_outputs(values, outputs)
    if outputs == "probabilities":
        raised = (values if values.dtype == torch.float64 else values.float()).clamp(min=floor)
        return (raised / raised.sum(-1, keepdim=True)).log()
    if outputs == "log_probabilities":
        lowest = values.masked_fill(values == -torch.inf, 0.0).min().clamp(max=math.log(floor))
        values = torch.where(values == -torch.inf, lowest, values)
    return values.log_softmax(-1)  # leaves log-probabilities unchanged


def _check_outputs(values: Tensor, outputs: Outputs) -> None:
    if outputs == "probabilities":
        low, high = float(values.min()), float(values.max())
        sums = values.double().sum(-1)
        least, most = float(sums.min()), float(sums.max())
        if not (low >= -1e-4 and high <= 1 + 1e-4 and least >= 1 - 1e-2 and most <= 1 + 1e-2):
            raise ValueError(
                f"particles must lie on the simplex; got values in {low:.3g} .. {high:.3g} and rows that sum to "
                f'{least:.3g} .. {most:.3g}. If these are logits, say outputs="logits".'
            )
    elif bool((values >= 0).all()) and bool(((values.sum(-1) - 1).abs() < 1e-4).all()):
        raise ValueError(
            f"the teacher's outputs were announced as {outputs} but lie on the simplex, row by row; a second softmax would "
            'flatten them. Say outputs="probabilities", or remove the softmax.'
        )


class Log(nn.Module):
    """The logarithm of probabilities; an exact 0 is raised to 1e-12."""

    def forward(self, probabilities: Any) -> Tensor:
        """Log-probabilities."""
        return as_scores(probabilities).clamp(min=1e-12).log()


def as_logits(net: nn.Module, outputs: Outputs) -> nn.Module:
    """A network whose softmax is the class probabilities; log-probabilities are logits already."""
    return nn.Sequential(net, Log()) if outputs == "probabilities" else net


def as_tensor(values: Any) -> Tensor:
    """A user's values as a tensor; an array is copied, since torch needs writable memory."""
    return torch.from_numpy(np.array(values)) if isinstance(values, np.ndarray) else torch.as_tensor(values)


def choose(total: int, num_particles: int, device: torch.device | None = None) -> Int64[Tensor, " S"]:
    """Indices of posterior samples: all ``total`` of them in order, or a random subset."""
    check_at_least(1, num_particles=num_particles)
    if num_particles >= total:
        return torch.arange(total, device=device)
    if device is not None and device.type == "cuda":
        # torch.randperm waits for the GPU; sorting random numbers does not.
        return torch.rand(total, device=device).argsort()[:num_particles]
    return torch.randperm(total)[:num_particles]


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients within the block; every submodule's own mode is restored after it."""
    modes = {child: child.training for child in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for child, mode in modes.items():
            child.training = mode


def bytes_per_row(module: nn.Module, x: Batch) -> int:
    """Upper bound of the memory that one input needs in a module: the sizes of the outputs of all its leaves."""
    total = 0

    def count(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal total
        tensors = output if isinstance(output, tuple | list) else [output]
        total += sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))

    leaves = [child for child in module.modules() if not any(child.children())]
    handles = [leaf.register_forward_hook(count) for leaf in leaves]
    try:
        with evaluating(module):
            call(module, take(x, slice(0, 1)))
    finally:
        for handle in handles:
            handle.remove()
    return max(total, 1)


def chunk_sizes(memory_budget: int, bytes_per_row: int, num_rows: int, fixed_bytes: int = 0) -> tuple[int, int]:
    """How many rows, and how many posterior samples of so many rows, one chunk may have; each is at least one.

    Args:
        memory_budget: Largest number of bytes for one chunk.
        bytes_per_row: Bytes that one row needs under one sample.
        num_rows: Number of rows in all; they are split only if one sample of all of them is too large.
        fixed_bytes: Bytes that one sample needs besides its rows.
    """
    rows = max(1, min(num_rows, (memory_budget - fixed_bytes) // bytes_per_row))
    return rows, max(1, memory_budget // (fixed_bytes + rows * bytes_per_row))


def read_saved(path: str | Path, kind: str) -> dict[str, Any]:
    """The parts of a teacher of this kind, from the file that its ``save`` wrote."""
    try:
        state = read_state(Path(path))
    except FileNotFoundError as error:
        raise ValueError(f"there is no file {path}; give the path of a saved teacher.") from error
    found = state.pop("kind", None)
    if found != kind:
        raise ValueError(
            f"{path} must hold a teacher of kind {kind!r}; got {found!r}. Load it with the class that saved it."
        )
    return state
