"""Closed sets of strings: types for editors and type checkers, tuples of names for error messages.

At run time these types are plain strings, so that a wrong one is refused in a sentence of ours by :func:`check_choice`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    Outputs = Literal["logits", "log_probabilities", "probabilities"]
    Schedule = Literal["cosine", "constant", "steps"]
    Updates = Literal["joint", "alternating"]
    OptimizerName = Literal["adam", "sgd"]
    Precision = Literal["float32", "bfloat16"]
    FileFormat = Literal["onnx", "pt2"]
    TableTeacher = Literal["polya-gamma", "gp", "forest", "ensemble"]
    ClassWeight = Literal["balanced", "none"]
else:
    Outputs = Schedule = Updates = OptimizerName = Precision = FileFormat = TableTeacher = ClassWeight = str

OUTPUTS: tuple[Outputs, ...] = ("logits", "log_probabilities", "probabilities")
SCHEDULES: tuple[Schedule, ...] = ("cosine", "constant", "steps")
UPDATES: tuple[Updates, ...] = ("joint", "alternating")
OPTIMIZERS: tuple[OptimizerName, ...] = ("adam", "sgd")
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
FILE_FORMATS: tuple[FileFormat, ...] = ("onnx", "pt2")
CLASS_WEIGHTS: tuple[ClassWeight, ...] = ("balanced", "none")
TABLE_TEACHERS: tuple[TableTeacher, ...] = ("polya-gamma", "gp", "forest", "ensemble")


def check_choice(name: str, value: object, choices: Sequence[str], advice: str = "") -> None:
    """Refuse a value that is not among the choices.

    Args:
        name: Name of the argument.
        value: The value that was given.
        choices: The values that exist.
        advice: One more sentence that says what to do.
    """
    if value not in choices:
        raise ValueError(
            f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}; got {value!r}.{advice and ' '}{advice}"
        )
