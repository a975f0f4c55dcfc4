"""Saving and loading students: ``config.json`` and ``model.safetensors`` in one folder, and no pickle anywhere."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from opu.batches import Batch, call, reads, rebuild, tensors
from opu.checks import first_line
from opu.files import write_atomically, write_json
from opu.novelty import Novelty
from opu.students import compressed, networks
from opu.students.from_teacher import from_network, trainable_copy, wrapped_network
from opu.students.links import parse_link
from opu.students.program import Program
from opu.students.signature import made_up
from opu.students.start import copied
from opu.students.student import Student
from opu.students.tracing import to_program
from opu.teachers.base import as_logits

FORMAT = 4
# Version 2 is from before 0.1.0 and differs in the name of one tensor; version 3 knows inputs of one tensor only.
_READABLE = (2, 3, FORMAT)
_MISFIT = "the description of this student does not fit {} ({}); it may have been edited."
_NOVELTY = [f"novelty.{part}" for part in ("entropy", "dispersion", "scores", "blend")]
_OF_USERS = ("from_teacher", "from_backbone")  # whose networks are of a user's own class, and kept as programs
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
            "only a student made by opu.students.mlp, lenet, binary_mlp, from_teacher or from_backbone can be built again; "
            "this one was put together by hand. Save its state_dict() yourself, or use from_backbone."
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"a student is saved into a folder; {folder} is a file. Choose another path.")
    weights, metadata = dict(student.state_dict()), {"format": "pt"}
    if description["architecture"] in _OF_USERS:
        programs, constants = _programs(student, description)
        weights, metadata = weights | constants, metadata | {"programs": json.dumps(programs)}
    weights = {name: w.detach().cpu().contiguous().clone() for name, w in weights.items()}
    write_atomically(folder / "model.safetensors", to_bytes(weights, metadata=metadata))
    write_json(folder / "config.json", {"format": FORMAT, "kind": "opu student", **description})


def _programs(student: Student, description: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
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


def load(folder: str | Path, *, backbone: nn.Module | None = None) -> Student:
    """Read a student that :meth:`Student.save` wrote.

    Args:
        folder: A folder of :meth:`Student.save`, or a run folder with ``student/`` in it.
        backbone: The user's network. A student made by ``from_backbone`` needs its trunk, whose weights are replaced. One
            made by ``from_teacher`` is built on a copy of the network; by default it runs the graph in the file.
    """
    if backbone is not None and not isinstance(backbone, nn.Module):
        raise ValueError(f"backbone must be a network, such as Net(); got {backbone!r}.")
    folder = student_folder(Path(folder))
    description = _read_config(folder / "config.json")
    weights, metadata = _read_weights(folder / "model.safetensors")
    inputs = _inputs_of(description)
    if description.get("architecture") == "from_teacher" or (
        backbone is None and metadata.get("programs", "{}") != "{}"
    ):
        student = _from_teacher(description, backbone, metadata, weights)
        own = student.state_dict()  # the class may have other buffers than the graph
        weights = {name: w for name, w in weights.items() if name in own or name.startswith("novelty.")}
    else:
        student = _build(description, backbone)
    if any(name.startswith("novelty.") for name in weights):
        student.novelty = Novelty(*(weights.get(name, torch.empty(0)) for name in _NOVELTY))
    student.inputs = inputs
    _refuse_other_shapes(folder, student, weights)
    # Assigned, not copied, so that a student saved in float64 comes back in float64.
    student.load_state_dict(weights, assign=True)
    return student.eval()


def student_folder(folder: Path) -> Path:
    """The folder of the student itself, for that of a run or of a student."""
    if (folder / "student" / "config.json").is_file():
        return folder / "student"
    if (folder / "checkpoint").is_dir():
        raise ValueError(
            f"the run in {folder} holds no student/: it has not ended, and goes on with opu.distill(..., out=folder, "
            "resume=True), or its student is of a class of your own, which cannot be built again."
        )
    return folder


def _missing(path: Path) -> ValueError:
    return ValueError(f"there is no saved student in {path.parent}: {path.name} is missing. Give the folder of save().")


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads(path.read_text())
        kind, version = config.pop("kind"), config.pop("format")
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(path) from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not the description of a student ({error}); it may be cut short.") from error
    if kind != "opu student" or version not in _READABLE:
        raise ValueError(
            f"{path} is of kind {kind!r}, version {version!r}; this release reads 'opu student', version {FORMAT}. Use the "
            "release that wrote it, or save the student again."
        )
    return config


def _read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            metadata = file.metadata() or {}
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(path) from None
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({error}); it may be cut short. Use another copy."
        ) from error
    unknown = [name for name in weights if name.startswith("novelty.") and name not in _NOVELTY]
    if len(unknown) == 1 and "novelty.dispersion" not in weights:  # which had another name in version 2
        weights["novelty.dispersion"] = weights.pop(unknown[0])
    return weights, metadata


def _build(description: dict[str, Any], backbone: nn.Module | None) -> Student:
    options = dict(description)
    name = options.pop("architecture", None)
    if name not in _BUILDERS:
        raise ValueError(f"a saved student is one of {', '.join(_BUILDERS)}, from_teacher; this one says {name!r}.")
    if name == "from_backbone":
        if backbone is None:
            raise ValueError(
                "this student stands on a network of your own, whose graph is not in its files; give it in Python: "
                "opu.load(folder, backbone=net), and export it with opu.export.write(student, 'student.onnx', x)."
            )
        options["trunk"] = backbone
    try:
        parse_link(str(options["link"]))
        for key, length in (("image_shape", 3), ("channels", 2)):
            if key in options:
                options[key] = tuple(options[key])
                if len(options[key]) != length:
                    raise ValueError(f"{key} needs {length} numbers")
        with torch.device("meta"):  # no memory for sizes that the weights in the file do not have
            student: Student = _BUILDERS[name](**options)  # type: ignore[operator]
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        raise ValueError(_MISFIT.format(name, error)) from error
    return student


def _from_teacher(
    description: dict[str, Any], net: nn.Module | None, metadata: dict[str, str], weights: dict[str, Tensor]
) -> Student:
    """The student on a copy of the network that the user gives, or on the programs in the file."""
    options = dict(description)
    try:
        link = parse_link(str(options.pop("link")))
        shared, num_classes, outputs = (
            bool(options["shared_trunk"]),
            int(options["num_classes"]),
            options.get("outputs", "logits"),
        )
        head, wrapped = options.get("head"), bool(options.get("wrapped"))
        programs = dict(json.loads(metadata.get("programs", "{}")))
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        raise ValueError(_MISFIT.format("from_teacher", error)) from error
    if net is not None:
        net = as_logits(trainable_copy(net), outputs)
        net = wrapped_network(net) if wrapped else net
        student = from_network(net, shared_trunk=shared, link=link, num_classes=num_classes, head_name=head)
    elif {"mean_net", "precision_net"} <= programs.keys():
        made = {name: Program(each, _below(name, weights)) for name, each in programs.items()}
        student = Student(made["mean_net"], made["precision_net"], trunk=made.get("trunk"), link=link)
    else:
        raise ValueError(
            "the network of this student could not be written as a graph; give its class: opu.load(folder, backbone=net)."
        )
    student.architecture = options
    return student


def _inputs_of(description: dict[str, Any]) -> dict[str, Any] | None:
    """What inputs look like, taken out of the description; files of version 3 kept it in two entries."""
    inputs = description.pop("inputs", None)
    shape, kind = description.pop("input_shape", None), description.pop("input_type", None)
    inputs = {"shape": shape, "type": kind} if inputs is None and shape is not None else inputs
    if inputs is not None:
        try:
            with torch.device("meta"):  # no memory for sizes that a file asks for
                made_up(inputs)
        except (TypeError, ValueError, KeyError, AttributeError, RuntimeError, RecursionError) as error:
            raise ValueError(_MISFIT.format("its inputs", error)) from error
    return inputs


def _below(part: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}."): w for name, w in weights.items() if name.startswith(f"{part}.")}


def _refuse_other_shapes(folder: Path, student: Student, weights: dict[str, Tensor]) -> None:
    own = student.state_dict(keep_vars=True)
    for name in sorted(own.keys() | weights.keys()):
        ours = tuple(own[name].shape) if name in own else "nothing"
        theirs = tuple(weights[name].shape) if name in weights else "nothing"
        if ours != theirs:
            raise ValueError(
                f"the weights in {folder} do not fit their description: {name} should be {ours}, the file has {theirs}. "
                "The two files come from different students."
            )
    for name, w in weights.items():
        # A buffer of a user's network may hold infinite values on purpose, as attention masks do.
        may_be_infinite = not isinstance(own[name], nn.Parameter) and name not in _NOVELTY
        if bool(w.isnan().any()) or not (may_be_infinite or bool(w.isfinite().all())):
            raise ValueError(
                f"the weights in {folder} are damaged: {name} holds NaN or infinite values. Use another copy."
            )
