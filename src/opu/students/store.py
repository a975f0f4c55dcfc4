"""Saving and loading students: ``config.json`` and ``model.safetensors`` in one folder, and no pickle anywhere."""

import copy
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
from opu.students.from_teacher import from_teacher
from opu.students.links import parse_link
from opu.students.program import from_program, to_program
from opu.students.student import Student

FORMAT = 3
_READABLE = (2, FORMAT)  # version 2 is from before 0.1.0, and differs in the name of one tensor
PROGRAMS = "network.json"
NOVELTY_PARTS = ("entropy", "dispersion", "scores", "blend")
_BUILDERS = {
    "mlp": networks.mlp,
    "lenet": networks.lenet,
    "from_backbone": networks.from_backbone,
    "from_teacher": from_teacher,
    "binary_mlp": compressed.binary_mlp,
}


def save(student: Student, folder: Path) -> None:
    """Write a student. Files that are there already are replaced, each in one step."""
    description = student.description()
    if description is None:
        raise ValueError(
            "only a student made by opu.students.mlp, lenet, binary_mlp, from_teacher or from_backbone can be built again; this "
            "one was put together by hand. Save its state_dict() yourself, or use from_backbone."
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"a student is saved into a folder; {folder} is a file. Choose another path.")
    weights = {name: w.detach().cpu().contiguous().clone() for name, w in student.state_dict().items()}
    if description["architecture"] == "from_teacher":
        weights |= _write_programs(student, description, folder / PROGRAMS)
    write_atomically(folder / "model.safetensors", to_bytes(weights, metadata={"format": "pt"}))
    write_json(folder / "config.json", {"format": FORMAT, "kind": "opu student", **description})


def _write_programs(student: Student, description: dict[str, Any], path: Path) -> dict[str, Tensor]:
    """Write the networks of a user's own class as graphs; the constants in them, by name."""
    if "input_shape" not in description:
        raise ValueError(
            "to save this student, its inputs must be known; distil it first, or give some to from_teacher(teacher, example=x)."
        )
    example = torch.zeros(1, *description["input_shape"], dtype=getattr(torch, description["input_type"]))
    student = copy.deepcopy(student).cpu()
    first = next(student.parameters())
    if example.is_floating_point():
        example = example.to(first.dtype)
    networks = {"trunk": student.trunk, "mean_net": student.mean_net, "precision_net": student.precision_net}
    if student.trunk is not None:
        networks = {"trunk": student.trunk}
    programs, constants = {}, {}
    for name, net in networks.items():
        if net is not None:
            programs[name], found = to_program(net, example)
            constants |= {f"{name}.{key}": value.detach().contiguous().clone() for key, value in found.items()}
    write_json(path, programs)
    return constants


def load(folder: str | Path, *, backbone: nn.Module | None = None) -> Student:
    """Read a student that :meth:`Student.save` wrote.

    Args:
        folder: The folder with ``config.json`` and ``model.safetensors``.
        backbone: The user's network. A student made by ``from_backbone`` needs its trunk; one made by ``from_teacher`` is
            built from the graph in the folder unless the teacher's network is given. Its weights are replaced.
    """
    folder = Path(folder)
    description = _read_config(folder / "config.json")
    weights = _read_weights(folder / "model.safetensors")
    student = _build(description, backbone, folder, weights)
    if description["architecture"] == "from_teacher":  # a graph names fewer tensors than the class has, or more
        own = student.state_dict()
        weights = {name: w for name, w in weights.items() if name in own or name.startswith("novelty.")}
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
        return {_name_of_today(name): w for name, w in weights.items()}
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"there is no saved student in {path.parent}: {path.name} is missing. Give the folder of save()."
        ) from None
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({error}); it may be cut short. Use another copy."
        ) from error


def _name_of_today(name: str) -> str:
    """Dispersion had another name in version 2; all other parts of novelty had theirs."""
    group, _, part = name.partition(".")
    return "novelty.dispersion" if group == "novelty" and part not in NOVELTY_PARTS else name


def _build(
    description: dict[str, Any], backbone: nn.Module | None, folder: Path, weights: dict[str, Tensor]
) -> Student:
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
        if name == "from_teacher":
            return _from_teacher(options, backbone, folder, weights)
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


def _from_teacher(options: dict[str, Any], net: nn.Module | None, folder: Path, weights: dict[str, Tensor]) -> Student:
    """The student on the network that the user gives again, or on the graphs in the folder."""
    shared, link = bool(options["shared_trunk"]), options["link"]
    example = torch.zeros(2, *options["input_shape"], dtype=getattr(torch, options["input_type"]))
    if net is not None:
        student = from_teacher(net, shared_trunk=shared, link=link, example=example)
        if student.architecture is None or student.architecture["architecture"] != "from_teacher":
            raise ValueError("the network is a plain MLP, whose students are saved otherwise")
        return student
    programs = json.loads((folder / PROGRAMS).read_text())
    made = {
        each: from_program(
            program, {k.removeprefix(f"{each}."): w for k, w in weights.items() if k.startswith(f"{each}.")}
        )
        for each, program in programs.items()
    }
    if shared:
        width, classes = options["num_features"], options["num_classes"]
        made |= {"mean_net": nn.Linear(width, classes), "precision_net": nn.Linear(width, 1)}
    description = {key: value for key, value in options.items() if key != "link"}
    return Student(**made, link=link, architecture={"architecture": "from_teacher", **description})


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
