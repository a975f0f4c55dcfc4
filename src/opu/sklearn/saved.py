"""What a classifier's files say about it: checked, and taken from one file, so that a kill while saving leaves no mixture."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opu.checks import first_line
from opu.files import write_json
from opu.json_text import MOST_CHARACTERS, parse, shown
from opu.students import Student
from opu.students.store import load_with_texts, save
from opu.tensor_file import CHECKSUM

FILE, KIND = "classifier.json", "opu classifier"
# Version 1 had no imputation. Since version 3 the description is in the student's file, where it is replaced together with
# the student; classifier.json is a copy to be read by people.
FORMAT, FORMER = 3, (1, 2)
_NUMBERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_TYPES = ("str", *_NUMBERS, "float16", "float32", "float64")


def write_classifier(folder: Path, student: Student, description: dict[str, Any]) -> None:
    """Write a classifier in the place of one that is there.

    Args:
        folder: Gets ``student/`` and ``classifier.json``.
        student: The classifier's network.
        description: Classes, imputation and scaling, and names of features.
    """
    description = {"format": FORMAT, "kind": KIND, **description}
    text = json.dumps(description)
    check_classifier(parse(text), student)  # nothing is written that could not be read
    checksum = save(student, folder / "student", {"classifier": text})
    write_json(folder / FILE, description | {"student": checksum})


def read_classifier(folder: Path) -> tuple[dict[str, Any], Student]:
    """The description of a classifier and its network; if a kill left two descriptions, that of the network counts."""
    path = folder / FILE
    try:
        beside = _beside(path)
        if beside is None and not (folder / "student").is_dir():
            raise ValueError(f"there is no saved classifier in {folder}: {path.name} is missing.")
        student, texts = load_with_texts(folder / "student")
        found = _parsed(texts["classifier"]) if "classifier" in texts else beside
        if found is None:
            raise ValueError(f"there is no saved classifier in {folder}: {path.name} is missing.")
        _check_origin(found, beside, texts)
        check_classifier(found, student)
    except _NotADescriptionError as error:
        raise ValueError(f"{path} is not the description of a classifier ({error}); use another copy.") from error
    return found, student


class _NotADescriptionError(ValueError):
    """What is wrong with the description of a classifier."""


def _beside(path: Path) -> dict[str, Any] | None:
    try:
        with path.open(encoding="utf-8") as file:
            return _parsed(file.read(MOST_CHARACTERS + 1))
    except FileNotFoundError:
        return None
    except (UnicodeDecodeError, OSError) as error:
        raise _NotADescriptionError(first_line(error)) from error


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = parse(text)
    except ValueError as error:
        raise _NotADescriptionError(first_line(error)) from error
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise _NotADescriptionError(f"it is not of kind {KIND!r}")
    return found


def _check_origin(found: dict[str, Any], beside: dict[str, Any] | None, texts: dict[str, str]) -> None:
    """Refuse a description that was edited, and a student that was saved without its classifier."""
    if "classifier" not in texts and found.get("format") not in FORMER:
        raise _NotADescriptionError(
            f"it is of version {shown(found.get('format'))}, and its student was saved apart from it; save both again"
        )
    copy = beside if beside is not None and beside.get("student") == texts.get(CHECKSUM, "") else None
    if copy is not None and {key: value for key, value in copy.items() if key != "student"} != found:
        raise _NotADescriptionError(
            "it was edited, but the classifier is in student/; change it in Python, and save it"
        )


def check_classifier(found: dict[str, Any], student: Student) -> None:
    """Refuse a description of wrong types, or that does not fit the student."""
    try:
        if type(found.get("format")) is not int or found["format"] not in (FORMAT, *FORMER):
            raise ValueError(f"it is of version {shown(found.get('format'))}, and versions up to {FORMAT} are read")
        known = student.architecture or {}
        _check_classes(found, known.get("num_classes"))
        fill = _numbers(found, "fill" if "fill" in found else "mean")
        mean, scale, indicated = _numbers(found, "mean"), _numbers(found, "scale"), found.get("indicated", [])
        if not isinstance(indicated, list) or any(type(each) is not int for each in indicated):
            raise ValueError(f"indicated must be a list of integers, not {shown(indicated)}")
        if len(set(indicated)) < len(indicated) or not set(indicated) <= set(range(len(fill))):
            raise ValueError(f"indicated must be different numbers of its {len(fill)} columns, not {shown(indicated)}")
        if not len(mean) == len(scale) == len(fill) + len(indicated) == known.get("num_features"):
            raise ValueError(
                f"it has {len(mean)} means, {len(scale)} scales, {len(fill)} columns and {len(indicated)} indicators for a "
                f"student of {known.get('num_features')} features"
            )
        if min(scale, default=1.0) <= 0:
            raise ValueError(f"scales must be positive, not {min(scale)}")
        names, missing = found.get("feature_names"), found.get("missing", "")
        if names is not None and not (_are_texts(names) and len(names) == len(fill)):
            raise ValueError(f"feature_names must be {len(fill)} texts, not {shown(names)}")
        if not isinstance(missing, str):
            raise ValueError(f"missing must be a text, not {shown(missing)}")
    except ValueError as error:
        raise _NotADescriptionError(error) from error


def _check_classes(found: dict[str, Any], num_classes: Any) -> None:
    classes, kind = found.get("classes"), found.get("dtype")
    if not isinstance(classes, list) or len(classes) != num_classes:
        raise ValueError(f"classes must be a list of {num_classes}, not {shown(classes)}")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ValueError(f"dtype must be one of {', '.join(_TYPES)}, not {shown(kind)}")
    if not all(isinstance(each, str | int | float) for each in classes) or len(set(classes)) < len(classes):
        raise ValueError(f"classes must be different texts or numbers, not {shown(classes)}")
    try:
        same = as_classes(found).tolist() == classes
    except (OverflowError, ValueError, TypeError):
        same = False
    if not same:
        raise ValueError(f"classes of type {kind} cannot be {shown(classes)}")


def as_classes(found: dict[str, Any]) -> NDArray[Any]:
    """The classes as scikit-learn has them."""
    return np.array(found["classes"], dtype=object if found["dtype"] == "str" else found["dtype"])


def _numbers(found: dict[str, Any], key: str) -> list[float]:
    values = found.get(key)
    if not isinstance(values, list) or any(
        type(each) not in (int, float) or not math.isfinite(each) for each in values
    ):
        raise ValueError(f"{key} must be a list of finite numbers, not {shown(values)}")
    return [float(each) for each in values]


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(each, str) for each in values)
