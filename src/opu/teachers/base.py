"""The interface of a teacher, and helpers that teachers share."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Protocol, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from opu.batches import Batch, as_batch
from opu.checks import check_at_least
from opu.files import read_state
from opu.teachers.modes import evaluating as evaluating  # where others look for it


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


def as_tensor(values: Any) -> Tensor:
    """A user's values as a tensor; an array is copied, since torch needs writable memory."""
    found = as_batch(np.array(values), "values") if isinstance(values, np.ndarray) else torch.as_tensor(values)
    assert isinstance(found, Tensor)
    return found


def choose(total: int, num_particles: int, device: torch.device | None = None) -> Int64[Tensor, " S"]:
    """Indices of posterior samples: all ``total`` of them in order, or a random subset."""
    check_at_least(1, num_particles=num_particles)
    if num_particles >= total:
        return torch.arange(total, device=device)
    if device is not None and device.type == "cuda":
        # torch.randperm waits for the GPU; sorting random numbers does not.
        return torch.rand(total, device=device).argsort()[:num_particles]
    return torch.randperm(total)[:num_particles]


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
