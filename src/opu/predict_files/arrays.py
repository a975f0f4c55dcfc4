"""Arrays in ``.npy`` and ``.npz`` files, memory-mapped and read in parts."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opu.batches import Batch, as_batch
from opu.checks import listed
from opu.predict_files.source import Part, Source, shape_of
from opu.students import Student
from opu.students.reading import refuse_single
from opu.students.signature import shapes_by_name
from opu.teachers.array_files import array_names, open_array

_NUM_LOOKED_AT = 256
_PLAINLY = 10  # times as wide: 0 to 255 in place of 0 to 1, and not a batch with an outlier


class Arrays(Source):
    """Rows of one array, or of several that make up one input.

    Args:
        path: The file, for messages.
        arrays: By name; the name is empty for a student with a single input.
        shapes: What one row of each should look like; None if that is unknown.
        kind: How the student takes them: ``tensor``, ``dict`` or ``tuple``.
    """

    def __init__(
        self, path: Path, arrays: dict[str, NDArray[Any]], shapes: dict[str, tuple[int, ...] | None], kind: str
    ) -> None:
        self.path, self.arrays, self.kind = path, arrays, kind
        self.shapes = {name: _row_shape(path, name, array, shapes[name]) for name, array in arrays.items()}
        self.wanted = shapes
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{name} has {count}" for name, count in lengths.items())
            raise ValueError(f"all arrays in {path} must have the same number of rows; {counts}.")
        if len(self) == 0:
            raise ValueError(f"{path} holds no inputs: its first axis, that of the inputs, has length 0.")

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def parts(self, size: int) -> Iterator[Part]:
        """Rows as they come."""
        for start in range(0, len(self), size):
            rows = slice(start, min(start + size, len(self)))
            names = list(range(rows.start, rows.stop))
            yield Part(names, [""] * len(names), self._batch(rows))

    def remarks(self, low: float, high: float) -> Iterator[str]:
        """A range that is many times as wide as that of the run's own inputs."""
        if self.kind != "tensor":
            return
        some = next(iter(self.arrays.values()))[:: max(1, len(self) // _NUM_LOOKED_AT)]
        some = some[np.isfinite(some)]
        if some.size and float(np.ptp(some)) > _PLAINLY * (high - low):
            yield (
                f"The inputs in {self.path.name} lie between {some.min():.3g} and {some.max():.3g}, those of the run between "
                f"{low:.3g} and {high:.3g}; prepare them as for training."
            )

    def summary(self) -> Iterator[str]:
        """Arrays are taken as they are."""
        return iter(())

    def misfit(self) -> str:
        """Shapes of rows, wanted and found."""
        wanted, found = _in_words(self.wanted), _in_words({name: each.shape[1:] for name, each in self.arrays.items()})
        return f"this student takes inputs of shape {wanted}; each row of {self.path} has shape {found}"

    @property
    def advice(self) -> str:
        """Arrays come prepared."""
        return "Scale or preprocessing of the array may differ from training."

    def _batch(self, rows: slice) -> Batch:
        parts = {
            name: as_batch(np.array(array[rows])).reshape(rows.stop - rows.start, *self.shapes[name])
            for name, array in self.arrays.items()
        }
        if self.kind == "tensor":
            return next(iter(parts.values()))
        return parts if self.kind == "dict" else tuple(parts.values())


def open_arrays(path: Path, student: Student) -> tuple[Arrays, list[str]]:
    """The arrays in a file that a student reads, and the names of those that it does not.

    Args:
        path: A ``.npy`` file for a student with a single input, or a ``.npz`` file.
        student: Says what it takes.
    """
    known = student.inputs or {}
    kind = next((each for each in ("dict", "tuple") if each in known), "tensor")
    if kind == "tensor":
        array, others = _single(path)
        refuse_single(student, array)
        return Arrays(path, {"": array}, {"": shape_of(student)}, kind), others
    wanted = shapes_by_name(known)
    if path.suffix.lower() != ".npz":
        raise ValueError(
            f"this student takes several inputs, {', '.join(wanted)}; {path.name} holds one array. Save them with "
            "numpy.savez under these names."
        )
    names = array_names(path)
    # numpy.savez calls arrays without a name arr_0, arr_1, and so on.
    keys = {name: f"arr_{name}" if kind == "tuple" and name not in names else name for name in wanted}
    missing = [name for name, key in keys.items() if key not in names]
    if missing:
        raise ValueError(
            f"this student takes the inputs {', '.join(wanted)}; {path} holds {listed(names)}. Save the missing ones "
            f"({', '.join(missing)}) in it too."
        )
    arrays = {name: open_array(path, key) for name, key in keys.items()}
    return Arrays(path, arrays, dict(wanted), kind), [name for name in names if name not in keys.values()]


def _single(path: Path) -> tuple[NDArray[Any], list[str]]:
    if path.suffix.lower() != ".npz":
        return open_array(path), []
    names = array_names(path)
    chosen = names[0] if len(names) == 1 else "inputs"
    if chosen not in names:
        raise ValueError(
            f"this student takes one array; {path} holds {listed(names)}. Save the right one under the name inputs."
        )
    return open_array(path, chosen), [name for name in names if name != chosen]


def _row_shape(path: Path, name: str, array: NDArray[Any], wanted: tuple[int, ...] | None) -> tuple[int, ...]:
    """The shape that rows are given: as wanted, where nothing but axes of length one or the flattening differs."""
    if array.ndim == 0 or (array.ndim == 1 and wanted != ()):
        raise ValueError(
            f"{path} must hold one row for each input; {name or 'its array'} has shape {array.shape}. A single input needs a "
            "leading axis: x[None]."
        )
    found = array.shape[1:]
    if wanted is None or found == wanted:
        return found
    if math.prod(found) == math.prod(wanted):
        if 1 in (len(found), len(wanted)) or [n for n in found if n > 1] == [n for n in wanted if n > 1]:
            return wanted
        raise ValueError(
            f"this student takes inputs of shape {wanted}; each row of {path} has shape {found}, the same numbers in another "
            "order. Reorder the axes with numpy.moveaxis."
        )
    return found


def _in_words(shapes: dict[str, Any]) -> str:
    return ", ".join(f"{name} {shape}".strip() for name, shape in shapes.items())
