"""`opu export`: the student of a run, of a fitted table or of a folder, as one file."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from opu.export.file import FORMATS, Exported, write
from opu.export.onnx_file import OPSETS
from opu.fidelity.run import EVALUATION
from opu.files import read_state
from opu.students import Student, load
from opu.teachers.array_files import open_array

_NUM_EXAMPLES = 64


class Standardised(nn.Module):
    """Raw rows of a table to those that a student was distilled on; in float64, since columns can be large."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: list[float], scale: list[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64))
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Standardised rows, in float32."""
        return ((x.double() - self.mean) / self.scale).float()

    def undone(self, x: Tensor) -> Tensor:
        """Raw rows again."""
        return (x.double() * self.scale + self.mean).float()


def export_run(
    source: Path,
    *,
    out: Path | None = None,
    format: str = "onnx",
    int8: bool = False,
    calibration: Path | None = None,
    opset: int = OPSETS[0],
    classes: list[str] | None = None,
    overwrite: bool = False,
) -> Exported:
    """Export the student of a folder.

    Args:
        source: A folder of ``opu demo``, ``opu fit`` or ``Student.save``.
        out: The file; ``student.onnx`` or ``student.pt2`` in the source unless given.
        format: ``onnx`` or ``pt2``.
        int8: Layers in eight bits.
        calibration: A ``.npy`` file with ordinary inputs for int8; what the run kept of its own, unless given.
        opset: Version of ONNX's operators.
        classes: Their names, kept in the file; those that a fitted table knows, unless given.
        overwrite: Replace a file that is there.
    """
    if format not in FORMATS:
        raise ValueError(f"--format takes {' or '.join(FORMATS)}; got {format!r}.")
    student, prepare, known = _found(source)
    kept, labels = _kept(source)
    example = torch.randn(_NUM_EXAMPLES, *_shape(student)) if kept is None else kept[:_NUM_EXAMPLES]
    if prepare is not None:  # what was kept is standardised, and what comes will be raw
        example, kept = prepare.undone(example), None if kept is None else prepare.undone(kept)
    ordinary = None if calibration is None else _read(calibration)
    if calibration is None and kept is not None:  # one half calibrates, and the other judges
        ordinary, kept, labels = kept[::2], kept[1::2], None if labels is None else labels[1::2]
    name = f"student{'-int8' if int8 else ''}.{format}"
    return write(
        student,
        source / name if out is None else out,
        example,
        prepare=prepare,
        classes=classes or known,
        int8=int8,
        calibration=ordinary if int8 else None,
        judged=kept,
        labels=labels,
        opset=opset,
        overwrite=overwrite,
    )


def _found(source: Path) -> tuple[Student, Standardised | None, list[Any] | None]:
    if (source / "classifier.json").exists():
        from opu.sklearn import OnePassClassifier

        model = OnePassClassifier.load(source)
        prepare = Standardised(model.mean_.tolist(), model.scale_.tolist())
        return model.student_, prepare, model.classes_.tolist()
    folder = source / "student" if (source / "student" / "config.json").exists() else source
    return load(folder), None, None


def _kept(source: Path) -> tuple[Tensor | None, Tensor | None]:
    """Test inputs that the run has kept, and their labels."""
    path = source / EVALUATION
    if not path.exists():
        return None, None
    state = read_state(path)
    return state["inputs"].float(), state["labels"]


def _shape(student: Student) -> tuple[int, ...]:
    known = student.architecture or {}
    return tuple(known["image_shape"]) if "image_shape" in known else (known["num_features"],)


def _read(path: Path) -> Tensor:
    return torch.from_numpy(np.array(open_array(path), dtype=np.float32))
