"""What every kind of file offers: its inputs in order, in parts small enough for memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opu.batches import Batch
from opu.students import Student


@dataclass(frozen=True)
class Part:
    """Some inputs, in order.

    Attributes:
        names: What the rows of the output are called: paths of images, or row numbers.
        notes: Why an input cannot be predicted; empty where it can.
        batch: Those that can be predicted, in order; None if there are none.
    """

    names: list[Any]
    notes: list[str]
    batch: Batch | None


class Source(ABC):
    """Inputs in files."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of inputs."""

    @abstractmethod
    def parts(self, size: int) -> Iterator[Part]:
        """One pass over all inputs, so many at a time."""

    @abstractmethod
    def remarks(self, low: float, high: float) -> Iterator[str]:
        """What a user should know before predicting, given the range of the inputs that the run kept."""

    @abstractmethod
    def summary(self) -> Iterator[str]:
        """What was done to the inputs, after the pass."""

    @abstractmethod
    def misfit(self) -> str:
        """What was expected and what came, as the beginning of a sentence for inputs that the student cannot read."""

    @property
    @abstractmethod
    def advice(self) -> str:
        """Where to look if most inputs seem to be unlike the data."""


def shape_of(student: Student) -> tuple[int, ...] | None:
    """Shape of a single input, from what the student saw or from how it was built."""
    known = student.input_shape()
    if known is None and student.inputs is None and student.architecture is not None:
        if "image_shape" in student.architecture:
            return tuple(student.architecture["image_shape"])
        if student.architecture["architecture"] in ("mlp", "binary_mlp"):
            return (int(student.architecture["num_features"]),)
    return known
