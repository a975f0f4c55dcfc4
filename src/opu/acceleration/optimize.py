"""Tries what a machine has, keeps what is fastest, and never answers otherwise than the student."""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from opu.checks import first_line
from opu.distributions.dirichlet import Dirichlet
from opu.acceleration.fused import WIDEST, Fused
from opu.acceleration.recorded import recorded
from opu.acceleration.stacked import Answer, Stacked, layers_of
from opu.novelty import Novelty
from opu.students import Student
from opu.timing import median_seconds

REPEATS = 20
# How far probabilities, and log-precisions, may be from the student's own: rounding, with TF32 where the user allows it,
# and that of eight bits.
TOLERANCES = {"float32": (1e-4, 2e-3), "bfloat16": (0.05, 0.1)}


class Optimized(nn.Module):
    """A student's answers by the fastest of the ways that were tried; made by :func:`optimize`.

    Attributes:
        how: The way that is taken for batches of the example's shape.
        tried: Seconds of each way that was tried, or why it was not taken.
    """

    def __init__(self, student: Student, ways: dict[str, Callable[[Tensor], Answer]], tried: dict[str, float | str]):
        super().__init__()
        self.student, self.tried = student, tried
        self.how = min(ways, key=lambda name: float(tried[name]))
        self._answer = ways[self.how]

    @torch.no_grad()
    def forward(self, x: Tensor) -> Dirichlet:
        """One Dirichlet for each row of ``x``; batches of any size are answered."""
        return Dirichlet(*self._answer(x))

    @property
    def novelty(self) -> Novelty | None:
        """The student's, where it was calibrated."""
        return self.student.novelty


@torch.no_grad()
def optimize(student: Student, example: Tensor, *, precision: str = "float32", compiled: bool = False) -> Optimized:
    """The student as fast as this machine can compute it, with the same answers.

    Every way that the machine has is tried on the example, checked against the student itself, and timed: plain PyTorch,
    both networks side by side, code compiled for this machine, and on a GPU CUDA graphs and a kernel of ours. The fastest
    is kept. Later changes of the student are not seen.

    Args:
        student: Trained; it is copied, and not changed.
        example: A batch like those to come, on the student's device. A recorded way is for its shape; batches of other
            shapes are answered by the same way unrecorded.
        precision: ``"bfloat16"`` for a GPU: within its rounding of the student's answers, and several times as fast.
        compiled: Whether to try ``torch.compile``, which takes from seconds to minutes and needs a C++ compiler on a CPU.
    """
    if precision not in TOLERANCES:
        raise ValueError(f"precision is 'float32' or 'bfloat16'; got {precision!r}.")
    if precision == "bfloat16" and not example.is_cuda:
        raise ValueError(f"bfloat16 is for a GPU; the example is on {example.device}. Leave precision out.")
    student = copy.deepcopy(student).eval()
    expected = student(example)
    ways: dict[str, Callable[[Tensor], Answer]] = {}
    tried: dict[str, float | str] = {}
    for name, make in _ways(student, example, precision, compiled):
        try:
            way = make()
            _check(way(example), expected, precision)
            tried[name] = median_seconds(lambda way=way: way(example), REPEATS)  # type: ignore[misc]
            ways[name] = way
        except Exception as error:  # whatever a compiler or a driver may raise: that way is not for this machine
            tried[name] = f"{type(error).__name__}: {first_line(error)}"
    if not ways:
        raise ValueError(f"no way in {precision} answers as this student does on the example ({tried}); use float32.")
    return Optimized(student, ways, tried)


def _ways(
    student: Student, example: Tensor, precision: str, compiled: bool
) -> Iterator[tuple[str, Callable[[], Callable[[Tensor], Answer]]]]:
    dtype = getattr(torch, precision)

    def plain(x: Tensor) -> Answer:
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            q = student(x)
        return q.mean, q.log_precision, q.log_mean

    yield "plain", lambda: plain
    if example.is_cuda:
        yield "plain, recorded", lambda: recorded(plain, example)
    if layers_of(student) is not None:
        yield "side by side", lambda: Stacked(student, dtype)
        if example.is_cuda:
            # The conversion of inputs happens where they are copied to, and then need not be recorded.
            yield "side by side, recorded", lambda: recorded(Stacked(student, dtype), example.to(dtype))
            if precision == "bfloat16" and fits_the_kernel(student):
                yield "fused, recorded", lambda: Fused(Stacked(student, dtype)).recorded(example)
    if compiled:
        yield "compiled", lambda: torch.compile(plain)
        if layers_of(student) is not None:
            yield "side by side, compiled", lambda: torch.compile(Stacked(student, dtype).__call__)


def fits_the_kernel(student: Student) -> bool:
    """Whether the last two hidden layers are there, of one width, and not too wide for what our kernel computes."""
    pairs = layers_of(student)
    if pairs is None or len(pairs) < 3:
        return False
    return pairs[-2][0].in_features == pairs[-2][0].out_features <= WIDEST


def _check(answer: Answer, expected: Dirichlet, precision: str) -> None:
    of_mean, of_precision = TOLERANCES[precision]
    mean, log_precision, _ = answer
    worst = float((mean - expected.mean).abs().max()), float((log_precision - expected.log_precision).abs().max())
    if not (worst[0] <= of_mean and worst[1] <= of_precision):
        raise ArithmeticError(f"off by {worst[0]:.1g} in the mean and {worst[1]:.1g} in the log-precision")
