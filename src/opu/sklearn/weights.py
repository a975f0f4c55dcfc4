"""Weights of rows: those of the user times those of the classes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_class_weight


def check_sample_weight(sample_weight: Any, num_rows: int) -> NDArray[np.float64] | None:
    """One finite weight of at least 0 for each row, not all 0; a number weighs all rows alike."""
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight, dtype=np.float64)
    weights = np.full(num_rows, float(weights)) if weights.ndim == 0 else weights
    if weights.shape != (num_rows,):
        raise ValueError(
            f"sample_weight must be one weight for each of the {num_rows} rows; got shape {weights.shape}."
        )
    if not np.isfinite(weights).all() or weights.min() < 0:
        raise ValueError("sample_weight must be finite and at least 0; got negative, infinite or missing weights.")
    if not weights.any():
        raise ValueError("Sample weights must contain at least one non-zero number; got zeros only.")
    return weights


def row_weights(
    sample_weight: NDArray[np.float64] | None, class_weight: Any, labels: NDArray[np.int64], classes: NDArray[Any]
) -> NDArray[np.float64] | None:
    """The weight of each row, or None if all are 1.

    Args:
        sample_weight: Positive weights of the rows, or None.
        class_weight: None, ``"balanced"`` (all classes count alike, and the weights sum to the number of rows), or a dict
            from classes to weights; classes that are not in it have weight 1.
        labels: Class number of each row.
        classes: Label of each class number.
    """
    weights = np.ones(len(labels)) if sample_weight is None else sample_weight
    weights = weights * _of_classes(class_weight, labels, classes)[labels]
    return None if np.all(weights == 1) else weights


def _of_classes(class_weight: Any, labels: NDArray[np.int64], classes: NDArray[Any]) -> NDArray[np.float64]:
    numbers = np.arange(len(classes))
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, str) and class_weight == "balanced":
        return np.asarray(compute_class_weight("balanced", classes=numbers, y=labels), dtype=np.float64)
    if not isinstance(class_weight, Mapping):
        raise ValueError(
            f"class_weight must be None, 'balanced', or a dict from classes to weights; got {class_weight!r}."
        )
    known = classes.tolist()
    unknown = [each for each in class_weight if each not in known]
    if unknown:
        raise ValueError(
            f"class_weight names the class {unknown[0]!r}, which has no rows; the classes are {', '.join(map(repr, known))}."
        )
    found = np.array([class_weight.get(each, 1.0) for each in known], dtype=np.float64)
    if not np.isfinite(found).all() or found.min() <= 0:
        raise ValueError(
            "class_weight must be positive and finite; got others. Remove the rows of a class to leave it out."
        )
    return found
