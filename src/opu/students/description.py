"""What a file says about a student, checked before anything is built: types, and sizes against the shapes of its weights.

Sizes are not taken on trust: a width that no weight in the file has would only cost memory before it is refused.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opu.json_text import shown
from opu.students.families import parse_family
from opu.students.links import parse_link
from opu.students.signature import check_signature, shapes_by_name

MISFIT = "the description of this student does not fit {} ({}); it may have been edited."
MOST_LAYERS = 1000
_LONGEST_LINK = 100


def check_description(description: Mapping[str, Any], shapes: Iterable[tuple[int, ...]]) -> None:
    """Refuse a description that is of wrong types, or that asks for sizes that the weights do not have.

    Args:
        description: From a file: architecture, link, inputs, and the options of the architecture.
        shapes: Of all weights in the file.
    """
    name = description.get("architecture")
    if not isinstance(name, str) or name not in _FIELDS:
        raise ValueError(f"a saved student is one of {', '.join(_FIELDS)}; this one says {shown(name)}.")
    options = {key: value for key, value in description.items() if key not in ("architecture", "inputs")}
    try:
        known = _FIELDS[name] | _ALL
        for key, value in options.items():
            if key not in known:
                raise ValueError(f"{shown(key)} is not one of {', '.join(known)}")
            known[key](key, value)
        dirichlet = options.get("family", "dirichlet") == "dirichlet"
        missing = [key for key in (*(["link"] * dirichlet), "num_classes", *_NEEDED[name]) if key not in options]
        if missing:
            raise ValueError(f"{missing[0]} is missing")
        if not dirichlet:
            parse_family(options["family"], None, options["num_classes"])
        _check_sizes(name, options, list(shapes))
        if (inputs := description.get("inputs")) is not None:
            _check_inputs(name, options, inputs)
    except ValueError as error:
        raise ValueError(MISFIT.format(name, error)) from error


def _check_sizes(name: str, options: Mapping[str, Any], shapes: list[tuple[int, ...]]) -> None:
    """Every width must be that of some weight, and every layer needs one."""
    found = {size for shape in shapes for size in shape}
    hidden = options.get("hidden", [])
    widths = {"num_classes": [options["num_classes"]], "hidden": hidden if isinstance(hidden, list) else [hidden]}
    if "num_features" in options:
        widths["num_features"] = [options["num_features"]]
    if name == "lenet":
        depth, *sides = options.get("image_shape", [1, 28, 28])
        channels = options.get("channels", [20, 50])
        left = [max(0, (side - 4) // 2 - 4) // 2 for side in sides]
        widths |= {"image_shape": [depth, channels[1] * left[0] * left[1]], "channels": channels}
    if name == "from_teacher":  # its network may compute a class from others; check_programs counts what comes out
        del widths["num_classes"]
    if len(widths["hidden"]) > min(MOST_LAYERS, len(shapes)):
        raise ValueError(
            f"it has {len(widths['hidden']):,} hidden layers for {len(shapes):,} weights; at most {MOST_LAYERS:,} are read"
        )
    for key, sizes in widths.items():
        for size in sizes:
            if size not in found:
                raise ValueError(f"{key} asks for {shown(size)}, a size that none of its weights has")


def _check_inputs(name: str, options: Mapping[str, Any], inputs: Any) -> None:
    check_signature(inputs)
    if "shape" not in inputs or name not in ("mlp", "binary_mlp", "lenet"):
        return
    (shape,) = shapes_by_name(inputs).values()
    takes = options.get("image_shape", [1, 28, 28]) if name == "lenet" else [options["num_features"]]
    if _product(shape) != _product(takes):
        raise ValueError(f"inputs of shape {shape} have other sizes than its first layer takes, {takes}")


def _product(sizes: Iterable[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


# --- types -----------------------------------------------------------------------------------------------------------


def _size(key: str, value: Any) -> None:
    if type(value) is not int or value < 1:  # True is no size
        raise ValueError(f"{key} must be a positive integer, not {shown(value)}")


def _sizes(length: int | None = None) -> Callable[[str, Any], None]:
    def check(key: str, value: Any) -> None:
        if not isinstance(value, list) or (length is not None and len(value) != length):
            raise ValueError(f"{key} must be a list of {length or 'some'} numbers, not {shown(value)}")
        for each in value[: MOST_LAYERS + 1]:
            _size(key, each)

    return check


def _flag(key: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{key} must be true or false, not {shown(value)}")


def _text(key: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} must be a text, not {shown(value)}")


def _link(key: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) > _LONGEST_LINK:
        raise ValueError(f"{key} must be a short text, not {shown(value)}")
    parse_link(value)


def _family(key: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) > _LONGEST_LINK:
        raise ValueError(f"{key} must be a short text, not {shown(value)}")
    parse_family(value, None, 2)


_ALL: dict[str, Callable[[str, Any], None]] = {
    "family": _family,
    "link": _link,
    "num_classes": _size,
    "shared_trunk": _flag,
}
_MLP: dict[str, Callable[[str, Any], None]] = {"num_features": _size, "hidden": _sizes()}
_FIELDS: dict[str, dict[str, Callable[[str, Any], None]]] = {
    "mlp": _MLP,
    "lenet": {"image_shape": _sizes(3), "channels": _sizes(2), "hidden": _size},
    "from_backbone": {"num_features": _size},
    "binary_mlp": _MLP,
    "from_teacher": {"outputs": _text, "head": _text, "wrapped": _flag, "binary": _flag},
}
_NEEDED = {
    "mlp": ("num_features", "hidden"),
    "lenet": ("hidden",),
    "from_backbone": ("num_features",),
    "binary_mlp": ("num_features", "hidden"),
    "from_teacher": ("shared_trunk",),
}
