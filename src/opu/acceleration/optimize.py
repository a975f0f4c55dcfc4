"""Times every backend that a machine has, and keeps the fastest one that agrees with the student."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from opu.acceleration.captured import Captured, Outputs, fields_of
from opu.acceleration.fused import WIDEST, Fused
from opu.acceleration.stacked import Stacked, layers_of
from opu.checks import first_line
from opu.choices import PRECISIONS, Precision, check_choice
from opu.distributions import SimplexDistribution
from opu.novelty import Novelty
from opu.prediction import Prediction, predict_batches
from opu.students import Student
from opu.students.families import DirichletFamily
from opu.students.reading import batches_for
from opu.timing import median_seconds

REPEATS = 20
# How far probabilities and log-precisions may be from the student's own. Float32 leaves room for rounding, and for TF32
# where the user allows it; bfloat16 has eight bits.
TOLERANCES: dict[Precision, tuple[float, float]] = {"float32": (1e-4, 2e-3), "bfloat16": (0.05, 0.1)}

Backend = Callable[[Tensor], Outputs]


class Optimized(nn.Module):
    """A student that predicts by its fastest backend; made by :func:`optimize`.

    Args:
        student: The student, whose weights no longer change.
        kind: The class of its distributions, which takes what a backend gives.
        backends: From inputs to the fields of distributions, by name.
        timings: See below.
        precision: The precision of the layers.

    Attributes:
        backend: The name of the backend for batches of the example's shape.
        timings: Seconds of each backend by name, or the error of one that failed or predicted otherwise.
    """

    def __init__(
        self,
        student: Student,
        kind: type[SimplexDistribution],
        backends: dict[str, Backend],
        timings: dict[str, float | str],
        precision: Precision,
    ) -> None:
        super().__init__()
        self.student, self.kind, self.timings, self.precision = student, kind, timings, precision
        self.backend = min(backends, key=lambda name: float(timings[name]))
        self._predict = backends[self.backend]

    @torch.no_grad()
    def forward(self, x: Tensor) -> SimplexDistribution:
        """One distribution for each row of ``x``, in batches of any size."""
        return self.kind(*self._predict(x))

    def predict(self, inputs: Any, *, batch_size: int = 1024) -> Prediction:
        """Predict inputs of any kind in batches; see :meth:`opu.students.BaseStudent.predict`."""
        return predict_batches(self, batches_for(self.student, inputs, batch_size, finite=False))

    @property
    def novelty(self) -> Novelty | None:
        """The student's calibrated novelty score, if it has one."""
        novelty = self.student.novelty
        return None if novelty is None else novelty.in_arithmetic(getattr(torch, self.precision))


@torch.no_grad()
def optimize(student: Student, example: Any, *, precision: Precision = "float32", compiled: bool = False) -> Optimized:
    """Make a student as fast as this machine allows, with the same predictions.

    Every backend of the machine runs on the example, is compared with the student and is timed: plain PyTorch, both
    networks stacked, code by ``torch.compile``, and on a GPU CUDA graphs and a Triton kernel. The fastest is kept.

    Args:
        student: A trained student. It is copied: later changes have no effect.
        example: A batch like those to come, on the student's device. CUDA graphs are captured for its shape; batches of
            other shapes run without a graph.
        precision: ``"float32"``, or on a GPU ``"bfloat16"``: several times as fast, with predictions that differ by rounding.
        compiled: Try ``torch.compile`` too. It takes seconds to minutes, and needs a C++ compiler on a CPU.
    """
    check_choice("precision", precision, PRECISIONS)
    if not isinstance(example, Tensor):
        raise ValueError(
            f"optimize is for students whose input is one tensor; got {type(example).__name__}. Use student.predict, or "
            "torch.compile."
        )
    if precision == "bfloat16" and not example.is_cuda:
        raise ValueError(f"bfloat16 is for a GPU; the example is on {example.device}. Leave precision out.")
    student = copy.deepcopy(student).eval()
    expected = student(example)
    backends: dict[str, Backend] = {}
    timings: dict[str, float | str] = {}
    for name, make in _backends(student, example, precision, compiled):
        try:
            backend = make()
            _check(type(expected)(*backend(example)), expected, precision)
            timings[name] = median_seconds(lambda backend=backend: backend(example), REPEATS)  # type: ignore[misc]
            backends[name] = backend
        except Exception as error:  # whatever a compiler or a driver may raise: this machine does not have the backend
            timings[name] = f"{type(error).__name__}: {first_line(error)}"
    if not backends:
        raise ValueError(f"no backend in {precision} agrees with this student on the example ({timings}); use float32.")
    return Optimized(student, type(expected), backends, timings, precision)


def _backends(
    student: Student, example: Tensor, precision: Precision, compiled: bool
) -> Iterator[tuple[str, Callable[[], Backend]]]:
    dtype = getattr(torch, precision)

    def plain(x: Tensor) -> Outputs:
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            return fields_of(student(x))

    stackable = layers_of(student) is not None
    yield "plain", lambda: plain
    if example.is_cuda:
        yield "plain, CUDA graph", lambda: Captured.for_example(plain, example)
    if stackable:
        yield "stacked", lambda: Stacked(student, dtype)
    if stackable and example.is_cuda:
        # Inputs are converted where they are copied to the placeholder, so that the graph need not do it.
        yield "stacked, CUDA graph", lambda: Captured.for_example(Stacked(student, dtype), example.to(dtype))
        if precision == "bfloat16" and fits_the_kernel(student):
            yield "fused, CUDA graph", lambda: Fused(Stacked(student, dtype)).captured(example)
    if compiled:
        yield "compiled", lambda: torch.compile(plain)
        if stackable:
            yield "stacked, compiled", lambda: torch.compile(Stacked(student, dtype).__call__)


def fits_the_kernel(student: Student) -> bool:
    """Whether the Triton kernel can compute this student.

    It is for Dirichlets, and the last two hidden layers need one width, not above the limit.
    """
    pairs = layers_of(student)
    if pairs is None or len(pairs) < 3 or not isinstance(student.family, DirichletFamily):
        return False
    return pairs[-2][0].in_features == pairs[-2][0].out_features <= WIDEST


def _check(found: SimplexDistribution, expected: SimplexDistribution, precision: Precision) -> None:
    most_in_mean, most_in_precision = TOLERANCES[precision]
    off_in_precision = (found.log_precision - expected.log_precision).abs()
    worst = float((found.mean - expected.mean).abs().max()), float(off_in_precision.max())
    if not (worst[0] <= most_in_mean and worst[1] <= most_in_precision):
        raise ArithmeticError(f"off by {worst[0]:.1g} in the mean and {worst[1]:.1g} in the log-precision")
