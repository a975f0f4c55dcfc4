"""Saving and loading students: ``config.json`` and ``model.safetensors`` in one folder, and no pickle anywhere."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from opu.files import write_atomically, write_json
from opu.novelty import Novelty
from opu.students import compressed, networks
from opu.students.links import parse_link
from opu.students.student import Student

FORMAT = 3
# Version 2 is from before 0.1.0; it differs in one name.
_READABLE = (2, FORMAT)
_FORMER_NAMES = {"novelty.bluntness": "novelty.dispersion"}
NOVELTY_PARTS = ("entropy", "dispersion", "scores", "blend")
_BUILDERS = {
    "mlp": networks.mlp,
    "lenet": networks.lenet,
    "from_backbone": networks.from_backbone,
    "binary_mlp": compressed.binary_mlp,
}


def save(student: Student, folder: Path) -> None:
    """Write a student. Files that are there already are replaced, each in one step."""
    description = student.description()
    if description is None:
        raise ValueError(
            "only a student made by opu.students.mlp, lenet, binary_mlp or from_backbone knows how to be built again; this "
            "one was put together by hand. Save its state_dict() yourself, or use from_backbone."
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"a student is saved into a folder; {folder} is a file. Choose another path.")
    weights = {name: w.detach().cpu().contiguous().clone() for name, w in student.state_dict().items()}
    write_atomically(folder / "model.safetensors", to_bytes(weights, metadata={"format": "pt"}))
    write_json(folder / "config.json", {"format": FORMAT, "kind": "opu student", **description})


def load(folder: str | Path, *, backbone: nn.Module | None = None) -> Student:
    """Read a student that :meth:`Student.save` wrote.

    Args:
        folder: The folder with ``config.json`` and ``model.safetensors``.
        backbone: The trunk, for a student made by ``from_backbone``; its weights are replaced by the saved ones.
    """
    folder = Path(folder)
    description = _read_config(folder / "config.json")
    weights = _read_weights(folder / "model.safetensors")
    student = _build(description, backbone)
    calibration = {name.removeprefix("novelty."): w for name, w in weights.items() if name.startswith("novelty.")}
    if calibration:
        student.novelty = Novelty(**{name: calibration.get(name, torch.empty(0)) for name in NOVELTY_PARTS})
    _refuse_other_shapes(folder, student, weights)
    # Assigned, not copied, so that a student saved in float64 comes back in float64.
    student.load_state_dict(weights, assign=True)
    return student.eval()


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads(path.read_text())
        kind, version = config.pop("kind"), config.pop("format")
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"there is no saved student in {path.parent}: {path.name} is missing. Give the folder of save()."
        ) from None
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is not the description of a student ({error}); it may be cut short.") from error
    if kind != "opu student" or version not in _READABLE:
        raise ValueError(
            f"{path} is of kind {kind!r}, version {version!r}; this release reads 'opu student', version {FORMAT}. Use the "
            "release that wrote it, or save the student again."
        )
    return config


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        weights: dict[str, Tensor] = load_file(path)
        return {_FORMER_NAMES.get(name, name): w for name, w in weights.items()}
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"there is no saved student in {path.parent}: {path.name} is missing. Give the folder of save()."
        ) from None
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({error}); it may be cut short. Use another copy."
        ) from error


def _build(description: dict[str, Any], backbone: nn.Module | None) -> Student:
    options = dict(description)
    name = options.pop("architecture", None)
    if name not in _BUILDERS:
        raise ValueError(f"a saved student is one of {', '.join(_BUILDERS)}; this one says {name!r}.")
    if name == "from_backbone":
        if backbone is None:
            raise ValueError("this student stands on a backbone; give it: opu.load(folder, backbone=net).")
        options["trunk"] = backbone
    try:
        parse_link(str(options["link"]))
        for key, length in (("image_shape", 3), ("channels", 2)):
            if key in options:
                options[key] = tuple(options[key])
                if len(options[key]) != length:
                    raise ValueError(f"{key} needs {length} numbers")
        student: Student = _BUILDERS[name](**options)  # type: ignore[operator]
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        raise ValueError(
            f"the description of this student does not fit {name} ({error}); it may have been edited."
        ) from error
    return student


def _refuse_other_shapes(folder: Path, student: Student, weights: dict[str, Tensor]) -> None:
    own = student.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        ours = tuple(own[name].shape) if name in own else "nothing"
        theirs = tuple(weights[name].shape) if name in weights else "nothing"
        if ours != theirs:
            raise ValueError(
                f"the weights in {folder} do not fit their description: {name} should be {ours}, the file has {theirs}. "
                "The two files come from different students."
            )
    for name, w in weights.items():
        if w.is_floating_point() and not bool(torch.isfinite(w).all()):
            raise ValueError(
                f"the weights in {folder} are damaged: {name} holds NaN or infinite values. Use another copy."
            )
