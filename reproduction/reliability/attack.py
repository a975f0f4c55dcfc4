"""What an attack is: a promise, a number of cases, and how many of them broke it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import opu
from opu.students import Student


@dataclass(frozen=True)
class Outcome:
    """The outcome of one attack.

    Attributes:
        promise: What should hold, in a few words.
        cases: Number of cases.
        broken: Number of cases in which it did not hold.
    """

    promise: str
    cases: int
    broken: int


Attack = Callable[[], list[Outcome]]


def refused(call: Callable[[], object]) -> bool:
    """Whether a call is refused in a sentence."""
    try:
        call()
    except ValueError:
        return True
    return False


def logistic_normals() -> Any:
    """The family of logistic-normal distributions, or None in a version from before it."""
    return getattr(opu, "LogisticNormal", None)


def calibrated(student: Student, x: Tensor) -> Student:
    """The student in evaluation mode, with novelty calibrated on these inputs."""
    opu.calibrate(student.eval(), x)
    return student
