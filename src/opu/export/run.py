"""``opu export``: the student of a run folder, of a fitted table or of a student's folder, as one file."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opu.batches import Batch, each, take
from opu.choices import FILE_FORMATS, FileFormat, check_choice
from opu.distillation.outcome import EVALUATION, read_evaluation, run_of
from opu.export.file import Exported, write
from opu.export.onnx_file import OPSETS
from opu.students import Student, load
from opu.students.impute import Prepare
from opu.students.signature import made_up
from opu.teachers.array_files import open_array

_NUM_EXAMPLES = 64


def export_run(
    source: Path,
    *,
    out: Path | None = None,
    format: FileFormat = "onnx",
    int8: bool = False,
    calibration: Path | None = None,
    opset: int = OPSETS[0],
    classes: list[str] | None = None,
    overwrite: bool = False,
) -> Exported:
    """Export the student in a folder.

    Args:
        source: A folder that ``opu demo``, ``opu fit`` or ``Student.save`` wrote.
        out: The file; by default ``student.onnx`` or ``student.pt2`` in the source.
        format: ``onnx`` or ``pt2``.
        int8: Whether the layers have eight bits.
        calibration: A ``.npy`` file with in-distribution inputs for int8; by default the inputs that the run kept.
        opset: Version of ONNX's operators.
        classes: Names of the classes, kept in the file; by default those that a fitted table knows.
        overwrite: Whether a file that exists is replaced.
    """
    from opu.distillation.replacing import put_back

    check_choice("--format", format, FILE_FORMATS)
    put_back(source)  # where a command was killed while it replaced this one
    student, standardise, known, columns = _find(source)
    kept, labels = _kept(source)
    example = _made_up(student) if kept is None else take(kept, slice(0, _NUM_EXAMPLES))
    if standardise is not None:  # inputs in the run folder are standardised, and those to come are raw
        # In float64, since the file is checked on inputs as they will come, which float32 would round.
        example, kept = (None if rows is None else standardise.inverse(rows.double()) for rows in (example, kept))
    ranges, test = None if calibration is None else _read(calibration), None if kept is None else (kept, labels)
    if calibration is None and kept is not None:  # one half calibrates, and the drift is measured on the other
        halves = [take(kept, slice(start, None, 2)) for start in (0, 1)]
        ranges, test = halves[0], (halves[1], None if labels is None else labels[1::2])
    name = f"student{'-int8' if int8 else ''}.{format}"
    return write(
        student,
        source / name if out is None else out,
        example,
        prepare=standardise,
        classes=classes or known,
        columns=columns,
        int8=int8,
        calibration=ranges if int8 else None,
        test=test,
        opset=opset,
        overwrite=overwrite,
    )


def _find(source: Path) -> tuple[Student, Prepare | None, list[Any] | None, list[dict[str, Any]] | None]:
    """The student, and for a fitted table the preparation of its rows, its classes and its columns."""
    if (source / "classifier.json").exists():
        from opu.sklearn import OnePassClassifier

        model = OnePassClassifier.load(source)
        return model.student_, model.standardise_, model.classes_.tolist(), _columns(source, model)
    return load(source), None, None, None


def _columns(source: Path, model: Any) -> list[dict[str, Any]] | None:
    from opu.sklearn.run import read_encoding

    path = source / "encoding.json"
    if path.exists():
        return read_encoding(path).columns
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else [{"name": str(name)} for name in names]


def _kept(source: Path) -> tuple[Batch | None, Tensor | None]:
    """Test inputs in the run folder, and their labels."""
    path = run_of(source) / EVALUATION
    if not path.exists():
        return None, None
    state = read_evaluation(path.parent)
    return each(lambda t: t.float() if t.is_floating_point() else t, state["inputs"]), state["labels"]


def _made_up(student: Student) -> Batch:
    """Inputs of the shape and type that the student takes."""
    known = student.architecture or {}
    if student.inputs is None:
        shape = next((known[name] for name in ("image_shape", "num_features") if name in known), None)
        if shape is None:
            raise ValueError(
                "it is not known what this student's inputs look like; in Python: opu.export.write(student, file, x)."
            )
        return torch.randn(_NUM_EXAMPLES, *([shape] if isinstance(shape, int) else shape))
    batch = made_up(student.inputs, _NUM_EXAMPLES, torch.float32)
    return each(lambda t: torch.randn_like(t) if t.is_floating_point() else t, batch)


def _read(path: Path) -> Batch:
    return torch.from_numpy(np.array(open_array(path), dtype=np.float64))
