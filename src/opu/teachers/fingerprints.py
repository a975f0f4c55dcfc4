"""What a teacher is made of, to tell whether a run is resumed with the one it began with: its state, bit for bit."""

import dis
import functools
import inspect
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from opu.digests import Digest
from opu.teachers.base import BaseTeacher, _Callable
from opu.teachers.function import Function

_DEPTH, _MOST = 8, 100_000  # levels and objects that are looked into
_IRRELEVANT = ("memory_budget",)  # what changes no particle but by rounding and order
_SEALED = (str, int, float, complex, type(None), type, np.random.Generator, np.random.RandomState, torch.Generator)
_KEEP_STATE = ("sklearn", "xgboost", "lightgbm", "catboost")  # packages whose objects hide arrays behind __getstate__


def fingerprint(teacher: BaseTeacher) -> dict[str, str]:
    """A digest for each part of a teacher that holds networks, tensors or arrays, and the settings of a teacher of ours.

    A teacher of ours is made of its public attributes, or of what its method ``compared`` returns. A function is made of what
    it reads: attributes, closures, default and partial arguments, and names of its module. Of a function that reads
    no network, tensor or array nothing is known here; what it says is compared as well (:mod:`opu.distillation.fingerprint`).
    """
    asked: Any = teacher.function if isinstance(teacher, _Callable) else teacher
    home = getattr(asked, "__module__", "")
    found = {"class": type(teacher).__name__} if _is_ours(asked) else {}
    for name, part in _named(asked, home).items():
        walk = _Walk(home)
        walk.add("", part, _DEPTH)
        if walk.count:
            found[name] = walk.digest.text()
        elif _is_ours(asked) and isinstance(part, str | int | float):
            found[name] = str(part)
    return found


def unchanged(teacher: BaseTeacher, before: dict[str, str]) -> dict[str, str | None]:
    """A fingerprint that was taken before the first call, with None for parts that calls change, such as caches."""
    if _is_ours(teacher) and not isinstance(teacher, _Callable | Function):
        return dict(before)
    now = fingerprint(teacher)
    return {name: now[name] if now.get(name) == before.get(name) else None for name in before | now}


def _is_ours(value: Any) -> bool:
    return isinstance(value, BaseTeacher) and type(value).__module__.startswith("opu.")


def _named(value: Any, home: str) -> dict[str, Any]:
    """The parts of an object or of a function, by name; what a function reads from its module counts in ``home`` alone."""
    if isinstance(value, nn.Module):
        return {"network": value}
    if _is_ours(value):
        own = value.compared() if hasattr(value, "compared") else vars(value)
        return {name: part for name, part in own.items() if name[0] != "_" and name not in _IRRELEVANT}
    if isinstance(value, functools.partial):
        given = {f"argument {place}": part for place, part in enumerate(value.args)}
        return {**_named(value.func, home), **given, **value.keywords}
    if inspect.ismethod(value):
        return {**_named(value.__func__, home), **_named(value.__self__, home)}
    if inspect.isfunction(value):
        return _read_by(value, home)
    call = getattr(type(value), "__call__", None)  # noqa: B004 - what it reads, not whether it is there
    return {**(_read_by(call, home) if inspect.isfunction(call) else {}), **_attributes(value)}


def _attributes(value: Any) -> dict[str, Any]:
    if type(value).__module__.split(".")[0] in _KEEP_STATE and hasattr(value, "__getstate__"):
        state = value.__getstate__()
        return state if isinstance(state, dict) else {"state": state}
    slots = [name for kind in type(value).__mro__ for name in _slots(kind) if hasattr(value, name)]
    return {name: getattr(value, name) for name in slots} | dict(getattr(value, "__dict__", {}))


def _slots(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _read_by(function: Any, home: str) -> dict[str, Any]:
    """What a function reads: its defaults, its closure, and names of its module, also inside comprehensions."""
    codes, names = [function.__code__] if function.__module__ == home else [], set[str]()
    for code in codes:  # which grows while it is read
        names |= {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        codes += [each for each in code.co_consts if inspect.iscode(each)]
    known = function.__globals__
    found = {name: known[name] for name in sorted(names) if name in known and not _is_foreign(known[name], function)}
    found |= {f"default {place}": part for place, part in enumerate(function.__defaults__ or ())}
    found |= function.__kwdefaults__ or {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _is_foreign(value: Any, function: Any) -> bool:
    """Whether this is a function of another module, such as those of torch."""
    return inspect.isroutine(value) and getattr(value, "__module__", None) != function.__module__


class _Walk:
    """Collects networks, tensors, arrays and bytes from whatever holds them."""

    def __init__(self, home: str) -> None:
        self.digest, self.count = Digest(), 0
        self._home, self._seen = home, dict[int, Any]()

    def add(self, name: str, value: Any, depth: int) -> None:
        """Add all that is found in a value."""
        if isinstance(value, _SEALED) or inspect.ismodule(value) or id(value) in self._seen:
            return
        if depth == 0 or len(self._seen) >= _MOST or isinstance(value, torch.optim.Optimizer | DataLoader):
            return
        self._seen[id(value)] = value  # kept, so that its number stays its own
        if not self._is_leaf(name, value):
            for key, part in self._inside(value).items():
                self.add(f"{name}.{key}", part, depth - 1)

    def _is_leaf(self, name: str, value: Any) -> bool:
        if isinstance(value, Tensor):
            self.digest.add_tensor(name, value)
        elif isinstance(value, nn.Module):
            self.digest.add_network(name, value)
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            self.digest.add_array(name, value)
        elif isinstance(value, bytes | bytearray):
            self.digest.add_bytes(name, value)
        else:
            return False
        self.count += 1
        return True

    def _inside(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Mapping):
            named = ((re.sub(r" at 0x[0-9a-fA-F]+", "", str(key)), part) for key, part in value.items())
            ordered = sorted(named, key=lambda pair: pair[0])
            return {f"{place} {key}": part for place, (key, part) in enumerate(ordered)}
        if isinstance(value, np.ndarray):
            value = value.reshape(-1).tolist()
        if isinstance(value, list | tuple):
            return {str(place): part for place, part in enumerate(value)}
        parts = dict(sorted(_named(value, self._home).items()))
        if _is_ours(value):
            settings = {name: part for name, part in parts.items() if isinstance(part, str | int | float)}
            self.digest.add_text(type(value).__name__, str(settings))
        return parts
