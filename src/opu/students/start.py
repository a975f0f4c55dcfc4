"""Weights to start from: those of a teacher's network."""

import copy
import dis
import inspect
import zlib
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from opu.students.base import BaseStudent
from opu.teachers import BaseTeacher

Module = TypeVar("Module", bound=nn.Module)


def network_of(teacher: Any) -> nn.Module | None:
    """The network that a teacher holds, or a network itself."""
    if isinstance(teacher, BaseTeacher):
        return teacher.network()
    return teacher if isinstance(teacher, nn.Module) and not isinstance(teacher, BaseStudent) else None


def shares_parameters(teacher: Any, student: nn.Module) -> bool:
    """Whether a teacher computes with a weight of the student, so that training one would change the other."""
    theirs = {_memory(w) for net in _networks(teacher) for w in net.parameters()}
    return not theirs.isdisjoint({_memory(w) for w in student.parameters() if not w.is_meta} - {0})


def _memory(weight: Tensor) -> int:
    """Where the numbers lie; views of a tensor share it. 0 for a tensor without any."""
    return weight.untyped_storage().data_ptr() if weight.numel() and not weight.is_meta else 0


def _networks(value: Any, depth: int = 3) -> list[nn.Module]:
    """The networks that a teacher holds: as attributes, in lists and dicts, or around a function."""
    if isinstance(value, nn.Module):
        return [value]
    if depth == 0 or inspect.ismodule(value) or inspect.isclass(value):
        return []
    if isinstance(value, list | tuple):
        inner = list(value)
    elif isinstance(value, dict):
        inner = list(value.values())
    else:
        closure = getattr(value, "__closure__", None)
        cells = [cell.cell_contents for cell in closure if _is_full(cell)] if isinstance(closure, tuple) else []
        names = ("__self__", "func", "args", "keywords", "__defaults__", "__kwdefaults__")
        bound = [getattr(value, name, None) for name in names]
        inner = [*cells, *bound, *_globals(value), *getattr(value, "__dict__", {}).values()]
    return [net for each in inner for net in _networks(each, depth - 1)]


def _globals(value: Any) -> list[Any]:
    """What a function reads from its module, also inside comprehensions and by way of other functions there."""
    if not inspect.isfunction(value):
        return []
    codes, names = [value.__code__], set()
    for code in codes:  # which grows while it is read
        names |= {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        codes += [each for each in code.co_consts if inspect.iscode(each)]
    own = value.__module__
    found = [value.__globals__[name] for name in sorted(names) if name in value.__globals__]
    return [each for each in found if not inspect.isroutine(each) or getattr(each, "__module__", None) == own]


def _is_full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def copied(net: Module) -> Module:
    """A deep copy, also of a network with weights that a hook computes before each call (old weight norm, pruning)."""
    attributes = [value for layer in net.modules() for value in vars(layer).values() if isinstance(value, Tensor)]
    return copy.deepcopy(net, {id(value): value.detach().clone() for value in attributes})


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> bool:
    """Copy all weights and statistics in order, if their shapes agree; whether they did.

    Names need not agree, and layers without weights, such as dropout, do not count.
    """
    theirs, ours = _tensors(source), _tensors(target)
    if [w.shape for w in theirs] != [w.shape for w in ours]:
        return False
    for w, start in zip(ours, theirs, strict=True):
        w.copy_(start)
    return True


def checksum(module: nn.Module) -> int:
    """A number that changes when any weight of the module does."""
    total = 0
    for w in (each for each in _tensors(module) if not each.is_meta):
        total = zlib.crc32(w.detach().to("cpu", torch.float32).contiguous().numpy().tobytes(), total)
    return total


def _tensors(module: nn.Module) -> list[Tensor]:
    return list(module.state_dict().values())
