"""The weights in a student's file, checked against the student: names, shapes, types, and values."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from opu.checks import first_line
from opu.json_text import shown
from opu.novelty import Blend, Novelty
from opu.students.student import Student

NOVELTY = [f"novelty.{part}" for part in ("entropy", "dispersion", "scores", "blend")]
OF_USERS = ("from_teacher", "from_backbone")  # whose networks are of a user's own class, and kept as programs


def read_novelty(folder: Path, weights: Mapping[str, Tensor]) -> Novelty | None:
    """The calibrated score, of sorted values; none if there is none in the file."""
    if not any(name.startswith("novelty.") for name in weights):
        return None
    parts = {name: weights.get(name, torch.empty(0)) for name in NOVELTY}
    for name, values in parts.items():
        if values.ndim != 1 or len(values) < 2 or not values.is_floating_point() or values.element_size() < 2:
            raise ValueError(_no_calibration(folder, f"{name} should be two or more numbers"))
        _refuse_values(folder, name, values, may_be_infinite=False)
        if name != "novelty.blend" and bool((values.diff() < 0).any()):
            raise ValueError(_no_calibration(folder, f"{name} is not sorted"))
    try:
        Blend(*parts["novelty.blend"].tolist())
    except (ValueError, TypeError) as error:
        raise ValueError(_no_calibration(folder, first_line(error).rstrip("."))) from error
    return Novelty(*parts.values())


def _no_calibration(folder: Path, reason: str) -> str:
    return f"the weights in {folder} hold no calibration of novelty that can be used: {reason}. Use another copy."


def check_weights(folder: Path, student: Student, weights: Mapping[str, Tensor]) -> None:
    """Refuse weights of other names, shapes or types than the student has, and values that are no numbers."""
    own = student.state_dict(keep_vars=True)
    for name in sorted(own.keys() | weights.keys()):
        ours = tuple(own[name].shape) if name in own else "nothing"
        theirs = tuple(weights[name].shape) if name in weights else "nothing"
        if ours != theirs:
            raise ValueError(
                f"the weights in {folder} do not fit their description: {shown(name)[1:-1]} should be {ours}, the file has "
                f"{theirs}. Use another copy."
            )
    for name, w in weights.items():
        # A buffer of a user's network may hold infinite values on purpose, as attention masks do.
        may_be_infinite = not isinstance(own[name], nn.Parameter) and name not in NOVELTY
        _refuse_values(folder, name, w, may_be_infinite)
    if student.architecture is not None and student.architecture["architecture"] not in OF_USERS:
        types = {weights[name].dtype for name, _ in student.named_parameters()}
        if len(types) > 1 or not types <= {torch.float16, torch.bfloat16, torch.float32, torch.float64}:
            names = ", ".join(sorted(str(each).removeprefix("torch.") for each in types))
            raise ValueError(
                f"the weights in {folder} must be floating-point numbers of one type of at least 16 bits; they are {names}."
            )


def _refuse_values(folder: Path, name: str, values: Tensor, may_be_infinite: bool) -> None:
    if values.is_floating_point() and values.element_size() == 1:  # which can be checked in no other way
        values = values.float()
    if bool(values.isnan().any()) or not (may_be_infinite or bool(values.isfinite().all())):
        raise ValueError(
            f"the weights in {folder} are damaged: {shown(name)[1:-1]} holds NaN or infinite values. Use another copy."
        )
