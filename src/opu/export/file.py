"""A student as one file: raw inputs in, every measure out, checked against PyTorch before it is written."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opu._version import __version__
from opu.batches import Batch, each, num_rows, repeat, shapes, take, tensors
from opu.environment import environment
from opu.export import onnx_file
from opu.export.drift import drift
from opu.export.int8 import quantised
from opu.export.outputs import WITNESSES, StudentWithMeasures, Witnesses, library_outputs
from opu.export.ranges import SHARE, Ranges
from opu.export.ranks import NoveltyRanks
from opu.files import write_atomically
from opu.inputs import Features
from opu.novelty import shares_of, threshold
from opu.students import Student
from opu.students.compressed import with_plain_layers
from opu.students.impute import Prepare
from opu.students.reading import conversion
from opu.students.standardise import Standardise
from opu.students.start import copied

RATES = (0.01, 0.05)  # rates of false alarms whose novelty thresholds a file holds
_FEWEST_TO_CALIBRATE = 100


@dataclass(frozen=True)
class Exported:
    """A description of the file that was written.

    Attributes:
        path: The file.
        size: Its size in bytes.
        outputs: Names of the outputs in order.
        differences: Largest difference of each output of the float32 file from PyTorch's on the example.
        drift: What int8 changed in every measure (:func:`opu.export.drift.drift`), if inputs to measure it were given.
    """

    path: Path
    size: int
    outputs: tuple[str, ...]
    differences: dict[str, float]
    drift: dict[str, Any] | None = None


def write(
    student: Student,
    path: str | Path,
    example: Any,
    *,
    prepare: Callable[[Tensor], Tensor] | None = None,
    classes: Sequence[Any] | None = None,
    columns: Sequence[Mapping[str, Any]] | None = None,
    int8: bool = False,
    calibration: Any = None,
    test: tuple[Any, Tensor | None] | None = None,
    opset: int = onnx_file.OPSETS[0],
    overwrite: bool = False,
) -> Exported:
    """Write a student to an ONNX file, or to a ``.pt2`` file of ``torch.export``; the path's suffix decides.

    Args:
        student: A trained student. It is not changed.
        path: A file that ends in ``.onnx`` or ``.pt2``.
        example: A few raw inputs as they will come: a tensor, an array, or a dict, tuple or dataclass of these, whose keys or
            fields become the names of the file's inputs. The file is checked on them.
        prepare: From raw inputs to those that the student was distilled on. It becomes part of the file. Raw inputs that
            are not finite are novel, whatever it makes of them; :class:`opu.students.impute.Prepare` knows missing values.
        classes: Names of the classes, kept in the file.
        columns: The columns of a table in the order of the inputs, kept in the file: the ``name`` of each, and the
            ``categories`` of one that holds texts.
        int8: Whether the layers have eight bits; for ONNX only.
        calibration: Some hundreds of raw in-distribution inputs for int8. They set the ranges of activations and calibrate
            novelty anew.
        test: Other in-distribution inputs, and their classes if known, on which the drift of int8 is measured.
        opset: Version of ONNX's operators.
        overwrite: Whether a file that exists is replaced.
    """
    path = Path(path)
    single = _exportable_copy(student)
    read = _reader(single, example, prepare)
    example, calibration = read(example), None if calibration is None else read(calibration)
    _check(path, example, int8, calibration, overwrite)
    network = StudentWithMeasures(single, prepare, example)
    if classes is not None:
        _check_names(network, example, classes)
    kept = {} if columns is None else {"columns": json.dumps(list(columns))}
    metadata = _metadata(single, classes, "int8" if int8 else "float32") | kept
    expected = library_outputs(student, prepare, example)
    if path.suffix == ".pt2":
        return _write_pt2(network, path, example, metadata, expected)
    model = onnx_file.to_onnx(network, example, metadata, opset)
    float32 = onnx_file.runner(model)
    differences = onnx_file.differences(float32, example, expected)
    found = None
    if int8:
        assert calibration is not None
        model = _quantise(network, model, example, calibration, metadata, opset)
        if test is not None:
            inputs, labels = test
            known = None if labels is None else labels.numpy()
            found = drift(float32, onnx_file.runner(model), read(inputs), known)
    write_atomically(path, model.SerializeToString())
    return Exported(path, path.stat().st_size, network.names, differences, found)


def _reader(student: Student, example: Any, prepare: Any) -> Callable[[Any], Batch]:
    """From inputs to what the file will take: in float32 where the student reads floating-point numbers.

    Raw columns of a table stay in float64, since one with a large offset, such as a time in seconds, would lose its
    variation in float32. They are standardised in the file.
    """
    features = Features(student.reads())
    kept = torch.float64 if isinstance(prepare, Prepare | Standardise) else torch.float32

    def typed(inputs: Any) -> Batch:
        return each(lambda t: (t.to(kept) if t.is_floating_point() else t).cpu().contiguous(), features(inputs))

    if prepare is not None:
        return typed
    convert = conversion(student, take(typed(example), slice(0, 2)))
    return lambda inputs: convert(typed(inputs))


def _quantise(
    network: StudentWithMeasures, model: Any, example: Batch, calibration: Batch, metadata: dict[str, str], opset: int
) -> Any:
    """The model in int8, with novelty calibrated on what the quantised layers give, and on the range where they clip."""
    if network.student.novelty is None:
        return quantised(model, calibration)
    ranks, ranges = _calibrated(network, example, calibration, opset)
    again = StudentWithMeasures(network.student, network.prepare, example, ranks, ranges)
    return quantised(onnx_file.to_onnx(again, example, metadata | _of_novelty(ranks.ordered), opset), calibration)


@torch.no_grad()
def _calibrated(
    network: StudentWithMeasures, example: Batch, calibration: Batch, opset: int
) -> tuple[NoveltyRanks, Ranges | None]:
    assert network.student.novelty is not None
    small = quantised(onnx_file.to_onnx(Witnesses(network), example, {}, opset), calibration)
    columns = torch.from_numpy(onnx_file.runner(small)(calibration)[WITNESSES])
    shares = shares_of(network.student.novelty.blend.cpu())
    seen = network.prepared(tuple(tensors(calibration).values()))
    places = network.numbers(seen)
    if not places:
        return NoveltyRanks.fit(columns, shares), None
    columns = torch.cat([columns, Ranges.excess_left_out(seen, places)], -1)
    shares = torch.cat([(1 - SHARE) * shares, shares.new_tensor([SHARE])])
    return NoveltyRanks.fit(columns, shares), Ranges(seen, places)


def _write_pt2(
    network: StudentWithMeasures, path: Path, example: Batch, metadata: dict[str, str], expected: dict[str, Tensor]
) -> Exported:
    several = example if num_rows(example) > 1 else repeat(example, 2)
    program = _program(network, tuple(tensors(several).values()))
    module = program.module()

    def predict(x: Batch) -> dict[str, Any]:
        return dict(zip(network.names, (y.detach().numpy() for y in module(*tensors(x).values())), strict=True))

    differences = onnx_file.differences(predict, example, expected)
    # To memory first: torch's own writer ends the process where a disk is full.
    content = io.BytesIO()
    torch.export.save(program, content, extra_files={"opu.json": json.dumps(metadata)})
    write_atomically(path, content.getvalue())
    return Exported(path, path.stat().st_size, network.names, differences)


def _program(network: StudentWithMeasures, parts: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    *first, last = onnx_file.axes_of(parts)
    for axes in (*first, last):
        try:
            return torch.export.export(network, parts, dynamic_shapes=(axes,))
        except Exception as error:  # of many kinds, by what the network does that cannot be exported
            if axes is last:
                raise ValueError(onnx_file.refusal(error)) from error
    raise AssertionError("the last attempt returns or raises")


def _metadata(student: Student, classes: Sequence[Any] | None, precision: str) -> dict[str, str]:
    provenance = {"opu": __version__, "torch": torch.__version__, "commit": environment()["commit"]}
    return {
        "kind": "opu student",
        "student": json.dumps(student.description()),
        "provenance": json.dumps(provenance),
        "classes": json.dumps(None if classes is None else list(classes)),
        **_of_novelty(None if student.novelty is None else student.novelty.scores),
        "precision": precision,
    }


def _of_novelty(scores: Tensor | None) -> dict[str, str]:
    """Thresholds by rate of false alarms, those that so many calibration inputs can hold, and the least p-value."""
    if scores is None:
        return {"novelty_thresholds": "{}", "novelty_calibration": "{}"}
    least = 1 / (len(scores) + 1)
    thresholds = {str(rate): threshold(scores, rate) for rate in RATES if rate >= least}
    calibration = {"num_inputs": len(scores), "least_p_value": least}
    return {"novelty_thresholds": json.dumps(thresholds), "novelty_calibration": json.dumps(calibration)}


def _exportable_copy(student: Student) -> Student:
    """A copy on the CPU in float32, which may be changed."""
    return with_plain_layers(copied(student).cpu().float()).eval()


@torch.no_grad()
def _check_names(network: StudentWithMeasures, example: Batch, classes: Sequence[Any]) -> None:
    count = network(*tensors(take(example, slice(0, 2))).values())[0].shape[-1]
    if len(classes) != count:
        raise ValueError(
            f"the student has {count} classes; got {len(classes)} names. Name each of them, in their order."
        )


def _check(path: Path, example: Batch, int8: bool, calibration: Batch | None, overwrite: bool) -> None:
    if path.suffix not in (".onnx", ".pt2"):
        raise ValueError(f"a student is exported to a file that ends in .onnx or .pt2; got {path}.")
    if path.exists() and not overwrite:
        raise ValueError(
            f"{path} exists and was not changed; choose another file, or overwrite it (overwrite=True, --overwrite)."
        )
    if path.suffix == ".onnx":
        onnx_file.required()
    if not int8:
        return
    if path.suffix != ".onnx":
        raise ValueError(f"int8 is for ONNX; got {path}. Leave --int8 out, or export to .onnx.")
    count = 0 if calibration is None else num_rows(calibration)
    if calibration is None or count < _FEWEST_TO_CALIBRATE:
        raise ValueError(
            f"int8 needs at least {_FEWEST_TO_CALIBRATE} in-distribution inputs to calibrate on; got {count or 'none'}. "
            "Give --calibration."
        )
    if shapes(calibration) != shapes(example):
        raise ValueError(
            f"calibration inputs must be of shape {shapes(example)} each, as the student's; got {shapes(calibration)}."
        )
