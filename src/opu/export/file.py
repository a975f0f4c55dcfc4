"""One file from a student: inputs as they come, every measure out, checked against PyTorch before it is written."""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opu._version import __version__
from opu.distributions.dirichlet import Dirichlet
from opu.environment import environment
from opu.export import onnx_file
from opu.export.answers import Prediction
from opu.export.drift import drift
from opu.export.int8 import quantised
from opu.files import write_atomically
from opu.novelty import Blend, Novelty
from opu.students import Student
from opu.students.compressed import with_plain_layers

FORMATS = ("onnx", "pt2")
RATES = (0.01, 0.05)
_FEWEST_TO_CALIBRATE = 100


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        path: The file.
        size: In bytes.
        outputs: Names, in order.
        differences: How far each output of the float32 file is from PyTorch's on the example.
        drift: For int8, what it did to every measure (:func:`opu.export.drift.drift`), where inputs were given to judge.
    """

    path: Path
    size: int
    outputs: tuple[str, ...]
    differences: dict[str, float]
    drift: dict[str, Any] | None = None


def write(
    student: Student,
    path: str | Path,
    example: Tensor,
    *,
    prepare: Callable[[Tensor], Tensor] | None = None,
    classes: Sequence[Any] | None = None,
    int8: bool = False,
    calibration: Tensor | None = None,
    judged: Tensor | None = None,
    labels: Tensor | None = None,
    opset: int = onnx_file.OPSETS[0],
    overwrite: bool = False,
) -> Exported:
    """Write a student to an ONNX file, or to a ``.pt2`` of ``torch.export``, by the path's suffix.

    Args:
        student: Trained; it is not changed.
        path: Ends in ``.onnx`` or ``.pt2``.
        example: Some inputs as they will come, raw; the file is checked on them.
        prepare: From raw inputs to those that the student was distilled on; it becomes part of the file.
        classes: Names of the classes, kept in the file.
        int8: Layers in eight bits; ONNX only.
        calibration: For int8, ordinary raw inputs that set the ranges, and novelty anew; some hundreds.
        judged: For int8, other ordinary inputs, by which its drift is reported.
        labels: Classes of those.
        opset: Version of ONNX's operators.
        overwrite: Replace a file that is there.
    """
    path = Path(path)
    _check(path, example, int8, calibration, overwrite)
    student = _alone(student)
    answers = Prediction(student, prepare)
    if classes is not None:
        _check_names(answers, example, classes)
    if path.suffix == ".pt2":
        return _write_pt2(answers, path, example, _metadata(student, classes, int8))
    model = onnx_file.to_onnx(answers, example, _metadata(student, classes, int8), opset)
    whole = onnx_file.runner(model)
    differences = onnx_file.differences(whole, answers, example)
    found = None
    if int8:
        assert calibration is not None
        model = _in_eight_bits(answers, model, example, calibration, classes, opset)
        if judged is not None:
            known = None if labels is None else labels.numpy()
            found = drift(whole, onnx_file.runner(model), judged.numpy(), known)
    write_atomically(path, model.SerializeToString())
    return Exported(path, path.stat().st_size, answers.names, differences, found)


def _in_eight_bits(
    answers: Prediction, model: Any, example: Tensor, calibration: Tensor, classes: Sequence[Any] | None, opset: int
) -> Any:
    """The quantised model, with novelty calibrated on what that model itself says of ordinary inputs."""
    small = quantised(model, calibration.numpy())
    student = answers.student
    if student.novelty is None:
        return small
    said = onnx_file.runner(small)(calibration.numpy())
    q = Dirichlet(*(torch.from_numpy(said[name]) for name in ("probabilities", "log_precision")))
    share, tilt = student.novelty.blend.tolist()
    student.novelty = Novelty.fit(q, Blend(share, tilt))
    again = onnx_file.to_onnx(
        Prediction(student, answers.prepare), example, _metadata(student, classes, int8=True), opset
    )
    return quantised(again, calibration.numpy())


def _write_pt2(answers: Prediction, path: Path, example: Tensor, metadata: dict[str, str]) -> Exported:
    example = example if len(example) > 1 else torch.cat([example, example])
    try:
        program = torch.export.export(answers, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:  # of many kinds, by what the network does that cannot be exported
        raise ValueError(onnx_file.refusal(error)) from error
    module = program.module()
    differences = onnx_file.differences(
        lambda x: dict(zip(answers.names, (y.detach().numpy() for y in module(torch.from_numpy(x))), strict=True)),
        answers,
        example,
    )
    partial = path.with_name(f".{path.stem}.part.pt2")
    try:
        torch.export.save(program, partial, extra_files={"opu.json": json.dumps(metadata)})
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return Exported(path, path.stat().st_size, answers.names, differences)


def _metadata(student: Student, classes: Sequence[Any] | None, int8: bool) -> dict[str, str]:
    provenance = {"opu": __version__, "torch": torch.__version__, "commit": environment()["commit"]}
    thresholds = {} if student.novelty is None else {str(rate): student.novelty.threshold(rate) for rate in RATES}
    return {
        "kind": "opu student",
        "student": json.dumps(student.description()),
        "provenance": json.dumps(provenance),
        "classes": json.dumps(None if classes is None else list(classes)),
        "novelty_thresholds": json.dumps(thresholds),
        "precision": "int8" if int8 else "float32",
    }


def _alone(student: Student) -> Student:
    """A copy on the CPU in float32, which may be changed."""
    novelty = student.novelty
    single = with_plain_layers(copy.deepcopy(student).cpu().float()).eval()
    if novelty is not None:  # whose values are compared in float64
        single.novelty = copy.deepcopy(novelty).cpu().double()
    return single


@torch.no_grad()
def _check_names(answers: Prediction, example: Tensor, classes: Sequence[Any]) -> None:
    count = answers(example[:2])[0].shape[-1]
    if len(classes) != count:
        raise ValueError(
            f"the student has {count} classes; got {len(classes)} names. Name each of them, in their order."
        )


def _check(path: Path, example: Tensor, int8: bool, calibration: Tensor | None, overwrite: bool) -> None:
    if path.suffix not in (".onnx", ".pt2"):
        raise ValueError(f"a student is exported to a file that ends in .onnx or .pt2; got {path}.")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} exists and was not changed; choose another file, or say --overwrite.")
    if path.suffix == ".onnx":
        onnx_file.required()
    if not int8:
        return
    if path.suffix != ".onnx":
        raise ValueError(f"int8 is for ONNX; got {path}. Leave --int8 out, or export to .onnx.")
    if calibration is None or len(calibration) < _FEWEST_TO_CALIBRATE:
        got = "none" if calibration is None else str(len(calibration))
        raise ValueError(
            f"int8 needs at least {_FEWEST_TO_CALIBRATE} ordinary inputs to calibrate on; got {got}. Give --calibration."
        )
    if calibration.shape[1:] != example.shape[1:]:
        raise ValueError(
            f"calibration inputs must be of shape {tuple(example.shape[1:])} each, as the student's; got "
            f"{tuple(calibration.shape[1:])}."
        )
