"""What a finished run leaves in its folder: the student, and some inputs with their particles for a report."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opu.batches import Batch, cat, first_rows, first_tensor, is_dataclass, num_rows, shapes, take, tensors
from opu.checks import check_particles, first_line
from opu.files import read_state, write_state
from opu.inputs.random_state import random_state, restore_random_state
from opu.students import BaseStudent
from opu.teachers import Teacher

EVALUATION = "evaluation.safetensors"
MAX_INPUTS, MAX_SEEN = 1000, 200
_MOST_BYTES = 2**24  # of inputs that a run folder keeps


def run_of(folder: Path) -> Path:
    """The run folder around a student's folder, if that is where it lies; otherwise the folder itself."""
    return folder.parent if folder.name == "student" and (folder.parent / EVALUATION).is_file() else folder


def leave_student(run: Path, student: BaseStudent) -> None:
    """Write the student into ``student/``, unless it is a module of the user's that cannot be built again."""
    save = getattr(student, "save", None)
    try:
        if save is None:
            raise ValueError("a module of your own class cannot be built again.")
        save(run / "student")
    except ValueError as error:
        warnings.warn(
            f"{run} holds no student/, so commands cannot read it: {error} The trained weights are in the student that was "
            "given to distill.",
            stacklevel=3,
        )


@torch.no_grad()
def leave_evaluation(
    run: Path, teacher: Teacher, held_out: list[Batch], seen: Batch | None, num_particles: int
) -> None:
    """Write particles of some held-out inputs for a later report; random numbers go on as if nothing had been drawn."""
    if not held_out:
        return
    groups: dict[Any, list[Batch]] = {}
    for part in held_out:
        groups.setdefault(shapes(part), []).append(part)
    alike = max(groups.values(), key=lambda parts: sum(map(num_rows, parts)))  # sequences have several lengths
    inputs = cat(list(first_rows(alike, _affordable(alike[0]))))
    seen = None if seen is None else take(seen, slice(0, min(MAX_SEEN, _affordable(seen))))
    state = random_state()
    keep_evaluation(run, teacher, inputs, None, seen, num_particles)
    restore_random_state(state)


def _affordable(batch: Batch) -> int:
    size = sum(t.numel() * t.element_size() for t in tensors(batch).values()) // num_rows(batch)
    return max(1, min(MAX_INPUTS // 2, _MOST_BYTES // max(1, size)))


@torch.no_grad()
def keep_evaluation(
    run: Path, teacher: Teacher, inputs: Batch, labels: Tensor | None, seen: Batch | None, num_particles: int = 500
) -> None:
    """Write particles for a later report into a run folder: for up to 1000 test inputs, and 200 that the student has seen."""
    labels = None if labels is None else _thinned(labels, MAX_INPUTS)
    inputs, seen = _thinned(inputs, MAX_INPUTS), None if seen is None else _thinned(seen, MAX_SEEN)
    state = {
        "kind": "opu evaluation",
        "inputs": _plain(inputs),
        "labels": labels,
        "log_particles": teacher(inputs, num_particles),
        "seen": _plain(seen),
        "seen_log_particles": None if seen is None else teacher(seen, num_particles),
    }
    write_state(run / EVALUATION, state)


def read_evaluation(run: Path) -> dict[str, Any]:
    """What :func:`keep_evaluation` wrote into a run folder, with tuples where a file has lists.

    Args:
        run: The run folder.
    """
    path = run / EVALUATION
    try:
        state = read_state(path)
        if state.get("kind") != "opu evaluation":
            raise ValueError(f"its kind is {state.get('kind')!r}")
        inputs = _check_part(state["inputs"], state["log_particles"])
        seen = None if state["seen"] is None else _check_part(state["seen"], state["seen_log_particles"])
        labels = state["labels"]
        if labels is not None and (not isinstance(labels, Tensor) or labels.shape != (num_rows(inputs),)):
            raise ValueError("its labels are not one for each input")
        if seen is not None and _other_sizes(state["log_particles"], state["seen_log_particles"]):
            raise ValueError("its particles have several sizes")
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, IndexError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else first_line(error)
        raise ValueError(f"{path} does not hold the particles of a run ({reason}); use another copy.") from error
    return {**state, "inputs": inputs, "seen": seen}


def _check_part(inputs: Any, log_particles: Any) -> Batch:
    """Inputs as they were, if they are tensors with one row for each column of particles."""
    batch: Batch = tuple(inputs) if isinstance(inputs, list) else inputs
    parts = tensors(batch) if isinstance(batch, Tensor | dict | tuple) else {}
    count = {len(t) if t.ndim else 0 for t in parts.values()}
    if len(count) != 1 or 0 in count or any(t.is_complex() for t in parts.values()):
        raise ValueError("its inputs are not tensors with the same number of rows")
    if not isinstance(log_particles, Tensor) or not log_particles.is_floating_point():
        raise ValueError("its particles are not a tensor of floating-point numbers")
    check_particles(log_particles, count.pop())
    return batch


def _other_sizes(one: Tensor, other: Tensor) -> bool:
    return one.shape[::2] != other.shape[::2]


def _thinned(rows: Batch, most: int) -> Batch:
    every = max(1, len(first_tensor(rows)) // most)  # evenly spaced, since rows may be sorted by class
    return take(take(rows, slice(None, None, every)), slice(0, most))


def _plain(batch: Any) -> Any:
    """A batch that a file can hold: a dict in place of a dataclass."""
    return tensors(batch) if is_dataclass(batch) else batch
