"""Checks of what users give; each error says what was expected, what was given, and what to do."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the error's type if it has no message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names with commas between them; of many, the first ones and the number of the others."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def optional(package: str, purpose: str, extra: str) -> Any:
    """Import an optional package, or say which extra of ours installs it.

    Args:
        package: Name under which it is imported.
        purpose: What needs it, as the subject of a sentence.
        extra: Name of the extra.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(
            f'{purpose} needs the package {package}; install it with: pip install "one-pass-uncertainty[{extra}]".'
        ) from error


def check_at_least(least: int, **numbers: int) -> None:
    """Refuse numbers below a bound; each is given by its name."""
    for name, number in numbers.items():
        if number < least:
            raise ValueError(f"{name} must be at least {least}; got {number}.")


def check_positive(**numbers: float) -> None:
    """Refuse numbers that are not positive and finite; each is given by its name."""
    for name, number in numbers.items():
        if not 0 < number < float("inf"):
            raise ValueError(f"{name} must be positive and finite; got {number:g}.")


def check_inputs(x: Tensor, what: str = "inputs", first_row: int = 0, *, finite: bool = True) -> None:
    """Refuse inputs that are empty, not finite, or no plain numbers.

    Args:
        x: A batch of inputs.
        what: Name of the inputs in the error.
        first_row: Number of the first row in the error.
        finite: Whether NaN and infinite values are refused.
    """
    if x.ndim > 0 and len(x) == 0:
        raise ValueError(f"{what} must have at least one row; got none. Check the path or the filter that made them.")
    if x.ndim < 2 or x.numel() == 0:
        raise ValueError(
            f"{what} must be a batch with at least one row and one feature; got shape {tuple(x.shape)}. "
            "A single example needs a leading axis: x.unsqueeze(0)."
        )
    if x.is_complex() or x.layout != torch.strided:
        kind = f"complex ones ({x.dtype})" if x.is_complex() else f"a tensor of layout {x.layout}"
        raise ValueError(f"{what} must be real numbers in a dense tensor; got {kind}. Convert them first.")
    if finite and x.is_floating_point() and not bool(torch.isfinite(x).all()):
        bad = (~torch.isfinite(x.flatten(1))).any(1)
        raise ValueError(
            f"{what} must be finite; got NaN or infinite features in {int(bad.sum())} of {len(x)} rows, the first at row "
            f"{first_row + int(bad.nonzero()[0])}. Impute or drop those rows."
        )


def check_features(x: Tensor, num_features: int | None = None) -> None:
    """Refuse inputs that are not rows of features, or that have another number of features than expected."""
    if x.ndim != 2:
        raise ValueError(
            f"inputs must have two axes (rows, features); got shape {tuple(x.shape)}. Flatten each example to one row: "
            "x.flatten(1)."
        )
    if num_features is not None and x.shape[1] != num_features:
        raise ValueError(
            f"the teacher was fitted to {num_features} features; got inputs with {x.shape[1]}. Give the same features, "
            "scaled alike."
        )


def check_labels(labels: Tensor, num_rows: int, num_classes: int | None = None) -> tuple[Int64[Tensor, " N"], int]:
    """The labels as int64, and the number of classes.

    Args:
        labels: One class ``0 .. K-1`` for each row, of any dtype.
        num_rows: Expected number of labels.
        num_classes: Number of classes; needed only if a class has no rows.
    """
    if labels.shape != (num_rows,):
        raise ValueError(
            f"labels must be one class for each of the {num_rows} inputs; got shape {tuple(labels.shape)}."
        )
    if labels.is_complex() or bool((labels != labels.long()).any()) or int(labels.min()) < 0:
        raise ValueError(
            "labels must be the integers 0 .. K - 1; got others. Number the classes from 0, for instance with "
            "np.unique(labels, return_inverse=True)."
        )
    labels = labels.detach().long()
    highest = int(labels.max())
    if num_classes is not None:
        if num_classes < max(2, highest + 1):
            raise ValueError(
                f"num_classes must be at least 2 and above every label; got {num_classes}, a label {highest}."
            )
        return labels, num_classes
    empty = (labels.bincount(minlength=2) == 0).nonzero()
    if len(empty):
        raise ValueError(
            f"every class from 0 to {max(1, highest)} needs rows; class {int(empty[0])} has none. Number the classes "
            "without gaps, or give num_classes if the teacher takes it."
        )
    return labels, highest + 1


def check_weights(weights: Tensor, num_rows: int) -> Float64[Tensor, " N"]:
    """The weights of rows in float64; each must be positive and finite."""
    if weights.shape != (num_rows,):
        raise ValueError(
            f"weights must be one number for each of the {num_rows} inputs; got shape {tuple(weights.shape)}."
        )
    weights = weights.detach().cpu().double()
    if not bool(((weights > 0) & torch.isfinite(weights)).all()):
        raise ValueError("weights must be positive and finite; got others. Leave rows of weight 0 out.")
    return weights


def check_particles(log_particles: Any, num_rows: int | None = None, num_classes: int | None = None) -> None:
    """Refuse particles that are not log-probabilities of shape ``(S, B, K)``."""
    if not isinstance(log_particles, Tensor):
        raise ValueError(
            f"a teacher must return a tensor of log-probabilities of shape (S, B, K); got {type(log_particles).__name__}. "
            'Wrap a callable that returns arrays: opu.teachers.Function(f, outputs="probabilities").'
        )
    check_particle_shape(tuple(log_particles.shape), num_rows, num_classes)
    if bool(torch.isnan(log_particles).any()) or bool((log_particles == torch.inf).any()):
        raise ValueError("particles must not be NaN or infinite; got some that are. Check the teacher on these inputs.")
    totals = log_particles.double().logsumexp(-1)
    low, high = float(totals.min()), float(totals.max())
    if low < -1e-2 or high > 1e-2:
        sums = log_particles.double().sum(-1)
        if float(log_particles.min()) >= 0 and float((sums - 1).abs().max()) < 1e-2:
            raise ValueError(
                "particles must be log-probabilities; got plain probabilities (rows that sum to 1). Return p.log(), or "
                'wrap the callable: opu.teachers.Function(f, outputs="probabilities").'
            )
        raise ValueError(
            "particles must be log-probabilities, whose exponentials sum to 1; got rows that sum to "
            f"{torch.tensor(low).exp():.3g} .. {torch.tensor(high).exp():.3g}. If these are logits, apply log_softmax, or "
            'wrap the callable: opu.teachers.Function(f, outputs="logits").'
        )


def check_particle_shape(shape: tuple[int, ...], num_rows: int | None = None, num_classes: int | None = None) -> None:
    """Refuse particles of a shape that is not ``(S, B, K)``."""
    if len(shape) != 3 or 0 in shape:
        raise ValueError(
            f"particles must have three axes (S, B, K): samples, batch, classes; got shape {shape}. For two classes, "
            "stack the probabilities of both on a last axis."
        )
    if shape[2] < 2:
        raise ValueError(
            f"particles need at least two classes on their last axis; got shape {shape}. For a binary classifier with "
            "probability p, stack [1 - p, p]."
        )
    if num_rows is not None and shape[1] != num_rows:
        raise ValueError(
            f"particles must have one column for each of the {num_rows} inputs on their second axis; got shape {shape}. "
            "The axes are (samples, batch, classes)."
        )
    if num_classes is not None and shape[2] != num_classes:
        raise ValueError(
            f"the student predicts {num_classes} classes but the teacher gives particles for {shape[2]}; build the "
            f"student with num_classes={shape[2]}."
        )


def check_randomness(log_particles: Tensor) -> None:
    """Refuse a teacher whose particles are all the same."""
    if len(log_particles) > 1 and bool((log_particles == log_particles[:1]).all()):
        raise ValueError(
            f"a teacher must be random, but its {len(log_particles)} particles are identical for all of "
            f"{log_particles.shape[1]} inputs. If it is a network with dropout, use opu.teachers.MCDropout(net), and check "
            "that forward() calls its dropout and that the rate is not 0. If its members agree everywhere, there is no "
            "uncertainty to distil: use one of them, or another teacher."
        )
