"""What one input of a student looks like, as values for a json file: shapes and types, by name where there are several."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from opu.batches import Batch, each, parts_of, tensors
from opu.json_text import shown

_TYPES = {
    name: getattr(torch, name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64"),
    )
}
# Of one input, and far above any image or volume that a network reads at once; 512 x 512 x 512 is allowed.
MOST_VALUES = 2**27
_MOST_AXES, _MOST_PARTS = 32, 1000


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
    if signature["type"] not in _TYPES:
        raise ValueError(f"{shown(signature['type'])} is no type of numbers")
    dtype = _TYPES[signature["type"]]
    dtype = floats if floats is not None and dtype.is_floating_point else dtype
    return torch.zeros(num_rows, *(int(size) for size in signature["shape"]), dtype=dtype)


def check_signature(signature: Any) -> None:
    """Refuse a description from a file that :func:`described` cannot have made, or of inputs above 2^27 values.

    Whoever makes up a batch of such inputs, as ``opu export`` does, takes memory for all of its rows.
    """
    parts = _leaves(signature)
    if len(parts) > _MOST_PARTS:
        raise ValueError(f"inputs have {len(parts):,} parts; at most {_MOST_PARTS:,} are read")
    total = 0
    for part in parts:
        shape, kind, columns = part["shape"], part.get("type"), part.get("columns")
        if not isinstance(shape, list) or len(shape) > _MOST_AXES or any(type(s) is not int or s < 1 for s in shape):
            raise ValueError(f"the shape of an input must be a list of positive integers, not {shown(shape)}")
        if not isinstance(kind, str) or kind not in _TYPES:
            raise ValueError(f"the type of an input must be one of {', '.join(_TYPES)}, not {shown(kind)}")
        if columns is not None and not (_are_texts(columns) and shape[-1:] == [len(columns)]):
            raise ValueError(
                f"the columns of an input must be as many texts as its last axis has, not {shown(columns)}"
            )
        total += math.prod(shape)
    if total > MOST_VALUES:
        raise ValueError(f"one input would have more than {MOST_VALUES:,} values")


def _leaves(signature: Any) -> list[dict[str, Any]]:
    """The descriptions of the single tensors."""
    if isinstance(signature, dict) and "shape" in signature and signature.keys().isdisjoint({"dict", "tuple"}):
        return [signature]
    parts = signature.get("dict", signature.get("tuple")) if isinstance(signature, dict) else None
    if not isinstance(parts, dict) or not parts or {"dict", "tuple"} <= signature.keys():
        raise ValueError(
            f"an input is described by a shape, or by its parts in a dict or tuple, not by {shown(signature)}"
        )
    return [leaf for part in parts.values() for leaf in _leaves(part)]


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(each, str) for each in values)
