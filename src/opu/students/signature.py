"""What one input of a student looks like, as values for a json file: shapes and types, by name where there are several."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from opu.batches import Batch, each, parts_of, tensors


def described(x: Batch) -> dict[str, Any]:
    """The shape and type of an input; those of its parts for a dict, a tuple or a dataclass.

    Args:
        x: A batch of inputs.
    """
    if isinstance(x, Tensor):
        return {"shape": list(x.shape[1:]), "type": str(x.dtype).removeprefix("torch.")}
    kind = "tuple" if isinstance(x, tuple | list) else "dict"
    return {kind: {name: described(part) for name, part in parts_of(x).items() if tensors(part)}}


def shapes_by_name(signature: Mapping[str, Any], name: str = "") -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of an input, by its name; dots stand between levels.

    Args:
        signature: What :func:`described` returned.
        name: Name of what is described.
    """
    if "shape" in signature:
        return {name: tuple(signature["shape"])}
    parts = signature.get("dict", signature.get("tuple", {})).items()
    return {
        each: shape for key, part in parts for each, shape in shapes_by_name(part, f"{name}.{key}".strip(".")).items()
    }


def made_up(signature: Mapping[str, Any], num_rows: int = 2, floats: torch.dtype | None = None) -> Batch:
    """Inputs of this description: zeros, and ones in masks.

    Args:
        signature: What :func:`described` returned.
        num_rows: Number of inputs.
        floats: Type of floating-point numbers; by default the one described.
    """
    if "dict" in signature:
        made = {name: made_up(part, num_rows, floats) for name, part in signature["dict"].items()}
        return {name: each(torch.ones_like, part) if "mask" in name else part for name, part in made.items()}
    if "tuple" in signature:
        return tuple(made_up(part, num_rows, floats) for part in signature["tuple"].values())
    dtype = getattr(torch, str(signature["type"]), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{signature['type']!r} is no type of numbers")
    dtype = floats if floats is not None and dtype.is_floating_point else dtype
    return torch.zeros(num_rows, *(int(size) for size in signature["shape"]), dtype=dtype)
