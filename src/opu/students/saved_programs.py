"""The networks of a student in its file: as programs, which need no class."""

import json
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from opu.batches import Batch, call, reads, rebuild, tensors
from opu.checks import first_line
from opu.json_text import parse
from opu.students.budget import Budget
from opu.students.families import Family
from opu.students.program import Program
from opu.students.signature import made_up
from opu.students.start import copied
from opu.students.student import Student
from opu.students.tracing import to_program


def to_programs(student: Student, description: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The student's networks as programs, and the constants in them, by name; none if they cannot be traced."""
    if "inputs" not in description:
        if description["architecture"] == "from_backbone":
            return {}, {}
        raise ValueError(
            "to save this student, its inputs must be known; distil it first, or give some: from_teacher(teacher, example=x)."
        )
    student = copied(student).cpu().eval()
    x = made_up(description["inputs"], floats=next(student.parameters()).dtype)
    x = x if student.like is None else rebuild(student.like, list(tensors(x).values()))
    programs: dict[str, Any] = {}
    constants: dict[str, Tensor] = {}
    try:
        for name in ("trunk", "mean_net", "precision_net"):
            net = getattr(student, name)
            if net is not None:
                programs[name], found = to_program(net, x)
                constants |= {f"{name}.{key}": value for key, value in found.items()}
            if name == "trunk" and net is not None:
                x = _features(net, x)
        again = from_programs(parse_programs(json.dumps(programs)), student.state_dict() | constants, student.family)
        check_programs(again, description["inputs"], description["num_classes"])
    except ValueError as error:
        warnings.warn(f"{error}; to load this student, give its class: opu.load(folder, backbone=net).", stacklevel=4)
        return {}, {}
    return programs, constants


@torch.no_grad()
def _features(trunk: nn.Module, x: Batch) -> Tensor:
    """What the heads read of inputs that are made up, which a network may refuse."""
    try:
        features: Tensor = call(trunk, x).flatten(1)
    except Exception as error:  # of many kinds, by what the network checks
        raise ValueError(
            f"the network {type(reads(trunk)).__name__} cannot be written as a graph, since it cannot read inputs that are "
            f"all zeros ({first_line(error)[:200].rstrip('.')})"
        ) from error
    return features


def parse_programs(text: str) -> dict[str, Any]:
    """The programs in a text from a file, by the name of the network."""
    programs = parse(text, constants=True)  # masks are filled with infinite numbers
    if not isinstance(programs, dict) or not programs.keys() <= {"trunk", "mean_net", "precision_net"}:
        raise ValueError("its graphs are not those of trunk, mean_net and precision_net")
    if not all(isinstance(program, dict) for program in programs.values()):
        raise ValueError("its graphs are not dicts")
    return programs


def from_programs(programs: Mapping[str, Any], weights: Mapping[str, Tensor], family: Family) -> Student:
    """The student that runs programs."""
    made = {name: Program(each, _below(name, weights)) for name, each in programs.items()}
    return Student(made["mean_net"], made["precision_net"], trunk=made.get("trunk"), family=family)


def check_programs(student: Student, inputs: Any, num_classes: int) -> None:
    """Run the programs without memory: they must fit their inputs, and may not ask for more than the file warrants.

    Without memory, operators compare shapes but not all types of numbers; those show when the student first predicts.

    Args:
        student: Runs programs.
        inputs: Description of its inputs.
        num_classes: K.
    """
    try:
        weight = next((w for w in student.parameters() if w.is_floating_point()), torch.empty(0))
        with torch.device("meta"):
            x = made_up(inputs, 2, weight.dtype)
        size = sum(w.nbytes for w in [*student.state_dict().values(), *tensors(x).values()])
        if student.trunk is not None:
            x = _dry_run(student.trunk, x, size).flatten(1)
        logits, z = (_dry_run(net, x, size) for net in (student.mean_net, student.precision_net))
        found, wanted = [tuple(logits.shape), tuple(z.shape)], student.family.num_outputs(num_classes)
        if found != [(2, num_classes), (2, wanted)] or not (logits.is_floating_point() and z.is_floating_point()):
            raise ValueError(
                f"for two inputs and {num_classes} classes it returns the shapes {found[0]} and {found[1]}"
            )
    except Exception as error:  # of many kinds, by what the operators check
        raise ValueError(f"the graph of this network cannot be run ({first_line(error)[:200].rstrip('.')})") from error


def _dry_run(net: nn.Module, x: Batch, size: int) -> Tensor:
    assert isinstance(net, Program)
    return net.dry_run(x, Budget(size))


def _below(part: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}."): w for name, w in weights.items() if name.startswith(f"{part}.")}
