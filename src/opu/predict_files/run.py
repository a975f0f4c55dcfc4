"""``opu predict`` for students: images and arrays in files to a table of predictions."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from opu.batches import Batch, fit_to, take
from opu.checks import check_at_least
from opu.distillation.outcome import EVALUATION, read_evaluation, run_of
from opu.distillation.run_folder import class_names
from opu.files import replaced
from opu.novelty import Novelty
from opu.predict_files.arrays import open_arrays
from opu.predict_files.images import SUFFIXES, Images, Pixels, find_images
from opu.predict_files.sheet import SHEETS, Columns
from opu.predict_files.source import Part, Source
from opu.prediction import Prediction, novelty_of, predict_batches
from opu.students import Student, load
from opu.students.reading import Convert, conversion
from opu.students.store import student_folder
from opu.terminal import say

NOT_FINITE = "holds NaN, infinite or too large values"
_MANY = 0.2  # fraction of flagged inputs: a wrong scale need not flag all of them
_RATES = (0.01, 0.05, 0.1)
_MOST_NAMED = 3


def predict_files(
    run: Path,
    source: Path,
    out: Path,
    *,
    level: float | int = 0.9,
    classes: Sequence[str] | None = None,
    batch_size: int = 256,
    pixels: Pixels | None = None,
    overwrite: bool = False,
    console: Console | None = None,
) -> int:
    """Write a student's predictions for images or arrays, one row per input, and return the number of rows.

    The columns are ``input`` (the path of an image below the folder, or a row number from 0), those of
    :meth:`opu.prediction.Prediction.columns`, and ``note``, which says why an input has no prediction. An input with NaN or
    infinite values is novel, with the least p-value. Inputs are read and rows are written in batches, so that memory does
    not grow with their number.

    Args:
        run: A run folder of :func:`opu.distill` or ``opu demo``, or the folder of a saved student.
        source: A folder of images, one image, a ``.npy`` array, or a ``.npz`` file with an array for each input by name.
        out: The file to write, ``.csv`` or ``.parquet``.
        level: Level of the credible intervals.
        classes: Names of the classes; by default those in the run's ``metrics.json``, or else numbers.
        batch_size: Inputs per batch.
        pixels: How the pixels of images become numbers; by default 0 to 1.
        overwrite: Whether a file that exists is replaced.
        console: Where to print what was noticed.
    """
    console = console or Console()
    kind = _check_out(out, overwrite)
    if not 0 < level < 1:
        raise ValueError(f"--level must lie between 0 and 1; got {level}. Use 0.9 for 90 %.")
    check_at_least(1, batch_size=batch_size)
    student, run = _load(run), run_of(run)
    found, remarks = _open(source, student, pixels)
    for remark in (*remarks, *_remarks_on_range(run, found)):
        say(console, remark)
    watch = _Watch(novelty_of(student))
    with replaced(out) as temporary, SHEETS[kind](temporary) as sheet:
        for part, prediction in _predictions(student, found, batch_size, console):
            columns = None if prediction is None else _columns(prediction, run, classes, level)
            notes = _notes(part, prediction)
            watch.saw(part.names, notes, prediction)
            sheet.write(part.names, notes, [not note for note in part.notes], columns)
        watch.refuse_if_nothing(source)
    for sentence in (*found.summary(), *watch.sentences(found.advice)):
        say(console, sentence)
    return watch.num_inputs


def _predictions(
    student: Student, source: Source, batch_size: int, console: Console
) -> Iterator[tuple[Part, Prediction | None]]:
    """One part of the inputs after the other, and the predictions of those that could be read."""
    convert: Convert | None = None
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("predicting", total=len(source))
        for part in source.parts(batch_size):
            prediction = None
            if part.batch is not None:
                convert = convert or _conversion(student, source, part.batch)
                prediction = predict_batches(student, [fit_to(convert(part.batch), student)])
            yield part, prediction
            progress.advance(task, len(part.names))


def _notes(part: Part, prediction: Prediction | None) -> list[str]:
    """Why inputs have no prediction: they could not be read, or are not finite."""
    known = iter([] if prediction is None else prediction.finite.tolist())
    return [note or ("" if next(known) else NOT_FINITE) for note in part.notes]


def _conversion(student: Student, source: Source, batch: Batch) -> Convert:
    try:
        return conversion(student, take(batch, slice(0, 2)), finite=False)
    except ValueError as error:
        raise ValueError(f"{source.misfit()}, which it cannot read; prepare the inputs as for training.") from error


def _check_out(out: Path, overwrite: bool) -> str:
    kind = out.suffix.lower()
    if kind not in SHEETS:
        raise ValueError(f"--out must end in {' or '.join(SHEETS)}; got {out.name!r}.")
    if out.is_dir():
        raise ValueError(f"--out must be a file; {out} is a folder.")
    if out.exists() and not overwrite:
        raise ValueError(f"{out} exists already and was not changed; choose another --out, or say --overwrite.")
    return kind


def _load(run: Path) -> Student:
    if not run.is_dir() or not (student_folder(run) / "model.safetensors").is_file():
        raise ValueError(
            f"there is no saved classifier or student in {run}; give a folder of `opu fit`, of `opu demo`, of opu.distill "
            "with out=, or of student.save()."
        )
    return load(run)


def _open(source: Path, student: Student, pixels: Pixels | None) -> tuple[Source, list[str]]:
    """The inputs in a file or folder, and what to say about them."""
    kind = source.suffix.lower()
    if not source.exists():
        raise ValueError(f"there is no file or folder {source}; give images, a .npy or a .npz file.")
    if source.is_dir() or kind in SUFFIXES:
        several = next((part for part in ("dict", "tuple") if part in (student.inputs or {})), None)
        if several is not None and student.inputs is not None:
            names = ", ".join(student.inputs[several])
            raise ValueError(
                f"this student takes several inputs, {names}; give them as a .npz file with arrays of these names."
            )
        paths, names_, others = find_images(source)
        remarks = [f"Files in {source} that are not images were left out: {others}."] if others else []
        return Images(paths, names_, student, pixels), remarks
    if pixels is not None:
        raise ValueError("--scale, --mean and --std are for images; an array is taken as it is. Leave them out.")
    if kind not in (".npy", ".npz"):
        tables = " A table needs a run of `opu fit`." if kind in (".csv", ".tsv", ".parquet") else ""
        raise ValueError(
            f"a student predicts a folder of images, an image, a .npy or a .npz file; got {source.name!r}.{tables}"
        )
    arrays, unused = open_arrays(source, student)
    return arrays, [f"Arrays that the student does not take: {', '.join(unused)}."] if unused else []


def _columns(prediction: Prediction, run: Path, classes: Sequence[str] | None, level: float) -> Columns:
    names = class_names(run, classes, prediction.probabilities.shape[1])
    if names is not None and len(set(names)) < len(names):
        raise ValueError(f"names of classes must differ; got {', '.join(names)}. Give other ones with --classes.")
    return prediction.columns(names, level)


def _remarks_on_range(run: Path, source: Source) -> Iterator[str]:
    """What the inputs that the run kept say about the new ones."""
    path = run / EVALUATION
    if not path.is_file():
        return
    inputs = read_evaluation(run)["inputs"]
    if isinstance(inputs, Tensor) and inputs.numel():
        yield from source.remarks(float(inputs.min()), float(inputs.max()))


class _Watch:
    """Counts what was predicted, what was not, and what seems to be unlike the data."""

    def __init__(self, novelty: Novelty | None) -> None:
        self.num_inputs, self.num_flagged, self.num_broken = 0, 0, 0
        self.broken: list[str] = []
        # A p-value is never below 1 / (n + 1), so few calibration inputs allow for a larger rate only.
        least = 1.0 if novelty is None else novelty.least_p_value
        self.rate = next((rate for rate in _RATES if least < rate), None)

    def saw(self, names: list[str] | list[int], notes: list[str], prediction: Prediction | None) -> None:
        """Take note of a batch."""
        bad = [f"{name} ({note})" for name, note in zip(names, notes, strict=True) if note]
        self.num_inputs, self.num_broken = self.num_inputs + len(names), self.num_broken + len(bad)
        self.broken = (self.broken + bad)[:_MOST_NAMED]
        if self.rate is not None and prediction is not None and prediction.novelty_p_value is not None:
            self.num_flagged += int(np.count_nonzero(prediction.novelty_p_value[prediction.finite] < self.rate))

    def refuse_if_nothing(self, source: Path) -> None:
        """Refuse inputs of which none could be predicted."""
        if self.num_broken == self.num_inputs:
            raise ValueError(f"no input in {source} can be predicted, of {self.num_inputs}: {self._named()}.")

    def sentences(self, advice: str) -> Iterator[str]:
        """What a user should know."""
        if self.num_broken:
            yield f"Inputs with a note in place of a prediction: {self.num_broken} of {self.num_inputs}, {self._named()}."
        predicted = self.num_inputs - self.num_broken
        if self.rate is None:
            yield "This student's novelty is not calibrated, so there are no p-values; see opu.calibrate."
            return
        yield (
            f"Inputs with a novelty p-value below {self.rate:g}: {self.num_flagged} of {predicted} "
            f"({100 * self.num_flagged / predicted:.0f} %); of inputs like the training data, about {100 * self.rate:.0f} %."
        )
        if self.num_flagged > _MANY * predicted:
            many = "Most" if self.num_flagged > predicted / 2 else "Many"
            yield f"{many} inputs look unlike the training data. {advice}"

    def _named(self) -> str:
        rest = self.num_broken - len(self.broken)
        return ", ".join([*self.broken, *([f"and {rest} more"] if rest else [])])
