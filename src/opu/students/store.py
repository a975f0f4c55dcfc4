"""Saving and loading students: one file, ``model.safetensors`` in a folder of its own, and no pickle anywhere.

The file holds the weights, and in its metadata the description of the student, the graph of a user's network, and a checksum
of everything. One file is replaced in one step, so a folder holds the old student or the new one at any time.
"""

import glob
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from opu.checks import first_line
from opu.files import write_atomically
from opu.json_text import MOST_CHARACTERS, parse, shown
from opu.students import compressed, networks
from opu.students.description import MISFIT, check_description
from opu.students.families import parse_family
from opu.students.from_teacher import from_network, trainable_copy, wrapped_network
from opu.students.saved_programs import check_programs, from_programs, parse_programs, to_programs
from opu.students.saved_weights import NOVELTY, OF_USERS, check_weights, read_novelty
from opu.students.student import Student
from opu.teachers.outputs import as_logits
from opu.tensor_file import CHECKSUM, checksum_in, from_file, to_bytes

FILE, FORMER_CONFIG = "model.safetensors", "config.json"
KIND, FORMAT = "opu student", 5
# Their description is in a file of its own, config.json. Version 2 is from before 0.1.0 and differs in the name of one
# tensor; version 3 knows inputs of one tensor only.
_FORMER = (2, 3, 4)
_BUILDERS = {
    "mlp": networks.mlp,
    "lenet": networks.lenet,
    "from_backbone": networks.from_backbone,
    "binary_mlp": compressed.binary_mlp,
}


def save(student: Student, folder: Path, texts: Mapping[str, str] | None = None) -> str:
    """Write a student, in the place of one that is there; returns the checksum of its file.

    Args:
        student: Made by one of our builders.
        folder: Made where it is missing.
        texts: More texts for the file's metadata, by name.
    """
    description = student.description()
    if description is None:
        raise ValueError(
            "only a student made by opu.students.mlp, lenet, binary_mlp, from_teacher or from_backbone can be built again; "
            "this one was put together by hand. Save its state_dict() yourself, or use from_backbone."
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"a student is saved into a folder; {folder} is a file. Choose another path.")
    if (folder / "student" / FILE).exists():
        raise ValueError(
            f"{folder} is a run folder, with a student in {folder / 'student'} that opu.load would find first. Save to that "
            "folder, or to another."
        )
    weights, metadata = dict(student.state_dict()), {"format": "pt"}
    if description["architecture"] in OF_USERS:
        programs, constants = to_programs(student, description)
        weights, metadata = weights | constants, metadata | {"programs": json.dumps(programs)}
    weights = {name: w.detach().cpu().contiguous().clone() for name, w in weights.items()}
    metadata["student"] = json.dumps({"format": FORMAT, "kind": KIND, **description}, default=_plain_number)
    try:
        check_description(_parsed(metadata["student"], (FORMAT,)), [tuple(w.shape) for w in weights.values()])
    except ValueError as error:
        raise ValueError(f"this student cannot be saved, since it could not be loaded: {error}") from error
    content = to_bytes(weights, metadata | dict(texts or {}))
    write_atomically(folder / FILE, content)
    _remove_former(folder / FORMER_CONFIG)
    return checksum_in(content)


def _plain_number(value: Any) -> Any:
    """Sizes may be numpy's integers."""
    return value.item()


def _remove_former(path: Path) -> None:
    """Remove the description of an older version, which nothing reads any more; a run's own ``config.json`` stays."""
    try:
        _parsed(_text(path), _FORMER)
        path.unlink()
    except (OSError, ValueError):
        return


def load(folder: str | Path, *, backbone: nn.Module | None = None) -> Student:
    """Read a student that :meth:`Student.save` wrote.

    A file that is damaged is refused. Its checksum is against damage, not malice, so all else is checked as well: nothing in
    a file is run as code, and nothing is built that its weights do not warrant. A graph is granted 1 GB for two inputs of the
    described size, and 256 times the bytes of these and the weights; larger or other inputs may take more.

    Args:
        folder: A folder of :meth:`Student.save`, or a run folder with ``student/`` in it.
        backbone: The user's network. A student made by ``from_backbone`` needs its trunk, whose weights are replaced. One
            made by ``from_teacher`` is built on a copy of the network; by default it runs the graph in the file.
    """
    return load_with_texts(folder, backbone=backbone)[0]


def load_with_texts(folder: str | Path, *, backbone: nn.Module | None = None) -> tuple[Student, dict[str, str]]:
    """The student of :func:`load`, and all texts in the metadata of its file."""
    if backbone is not None and not isinstance(backbone, nn.Module):
        raise ValueError(f"backbone must be a network, such as Net(); got {backbone!r}.")
    folder = student_folder(Path(folder))
    weights, metadata, description = _read(folder)
    check_description(description, [tuple(w.shape) for w in weights.values()])
    inputs = description.pop("inputs", None)
    if description["architecture"] == "from_teacher" or (backbone is None and metadata.get("programs", "{}") != "{}"):
        student = _from_teacher(description, inputs, backbone, metadata, weights)
        own = student.state_dict()  # the class may have other buffers than the graph
        weights = {name: w for name, w in weights.items() if name in own or name.startswith("novelty.")}
    else:
        student = _build(description, backbone)
    student.novelty = read_novelty(folder, weights)
    student.inputs = inputs
    check_weights(folder, student, weights)
    try:  # Assigned, not copied, so that a student saved in float64 comes back in float64.
        student.load_state_dict(weights, assign=True)
    except RuntimeError as error:  # a type that the user's own class does not take
        raise ValueError(f"the weights in {folder} do not fit their network ({first_line(error)}).") from error
    return student.eval(), metadata


def student_folder(folder: Path) -> Path:
    """The folder of the student itself, for that of a run or of a student."""
    if (folder / "student" / FILE).is_file():
        return folder / "student"
    if (folder / "checkpoint").is_dir():
        raise ValueError(
            f"the run in {folder} holds no student/: it has not ended, and goes on with opu.distill(..., out=folder, "
            "resume=True), or its student is of a class of your own, which cannot be built again."
        )
    return folder


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, str], dict[str, Any]]:
    """The weights, the metadata and the description, which older versions kept in a file of its own."""
    path, former = folder / FILE, folder / FORMER_CONFIG
    try:
        weights, metadata = from_file(path)
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(path) from None
    except ValueError as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({error}); it may be cut short or damaged. Use another copy."
        ) from error
    try:
        if "student" in metadata:  # a config.json beside it is one of before, and a kill kept it from being removed
            if CHECKSUM not in metadata:
                raise ValueError("its checksum is missing")
            return weights, metadata, _parsed(metadata["student"], (FORMAT,))
        path = former
        return _of_today(weights), metadata, _parsed(_text(former), _FORMER)
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(former) from None
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is not the description of a student ({error}); it may be cut short.") from error


def _missing(path: Path) -> ValueError:
    folder = path.parent
    if any(folder.parent.glob(f".{glob.escape(folder.name)}.*.old")):
        return ValueError(
            f"there is no saved student in {folder}: a command was killed while it replaced it. Any other puts it back, such "
            f"as opu export {folder}; so does OnePassClassifier.load."
        )
    return ValueError(f"there is no saved student in {folder}: {path.name} is missing. Give the folder of save().")


def _text(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(MOST_CHARACTERS + 1)  # one more than is taken


def _parsed(text: str, versions: tuple[int, ...]) -> dict[str, Any]:
    """The description in a text, in the entries of today."""
    found = parse(text)
    if not isinstance(found, dict) or not {"kind", "format"} <= found.keys():
        raise ValueError("it has no kind and format")
    kind, version = found.pop("kind"), found.pop("format")
    if kind != KIND or type(version) is not int or version not in versions:
        raise ValueError(
            f"it is of kind {shown(kind)}, version {shown(version)}; this release reads {KIND!r}, version {FORMAT}, and "
            f"versions {_FORMER[0]} to {_FORMER[-1]} with a {FORMER_CONFIG}. Use the release that wrote it"
        )
    shape, type_ = found.pop("input_shape", None), found.pop("input_type", None)  # of version 3
    if shape is not None and "inputs" not in found:
        found["inputs"] = {"shape": shape, "type": type_}
    return found


def _of_today(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    unknown = [name for name in weights if name.startswith("novelty.") and name not in NOVELTY]
    if len(unknown) == 1 and "novelty.dispersion" not in weights:  # which had another name in version 2
        weights["novelty.dispersion"] = weights.pop(unknown[0])
    return weights


def _build(description: dict[str, Any], backbone: nn.Module | None) -> Student:
    options = dict(description)
    name = options.pop("architecture")
    if name == "from_backbone":
        if backbone is None:
            raise ValueError(
                "this student stands on a network of your own, whose graph is not in its files; give it in Python: "
                "opu.load(folder, backbone=net), and export it with opu.export.write(student, 'student.onnx', x)."
            )
        options["trunk"] = backbone
    try:
        for key in {"image_shape", "channels"} & options.keys():
            options[key] = tuple(options[key])
        with torch.device("meta"):  # no memory for sizes that the weights in the file do not have
            student: Student = _BUILDERS[name](**options)  # type: ignore[operator]
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        raise ValueError(MISFIT.format(name, error)) from error
    return student


def _from_teacher(
    description: dict[str, Any],
    inputs: Any,
    net: nn.Module | None,
    metadata: Mapping[str, str],
    weights: dict[str, Tensor],
) -> Student:
    """The student on a copy of the network that the user gives, or on the programs in the file."""
    options = dict(description)
    num_classes = options["num_classes"]
    family = parse_family(options.pop("family", "dirichlet"), options.pop("link", None), num_classes)
    if net is not None:
        net = as_logits(trainable_copy(net), options.get("outputs", "logits"), options.get("binary", False))
        net = wrapped_network(net) if options.get("wrapped") else net
        sizes = {"shared_trunk": options["shared_trunk"], "num_classes": num_classes, "head_name": options.get("head")}
        try:
            student = from_network(net, family=lambda _: family, **sizes)
        except AttributeError as error:  # no layer of this name
            raise ValueError(MISFIT.format("the network", first_line(error)[:200])) from error
    else:
        try:
            programs = parse_programs(metadata.get("programs", "{}"))
        except ValueError as error:
            raise ValueError(MISFIT.format("from_teacher", error)) from error
        if not {"mean_net", "precision_net"} <= programs.keys():
            raise ValueError(
                "the network of this student could not be written as a graph; give its class: opu.load(folder, backbone=net)."
            )
        student = from_programs(programs, weights, family)
        try:
            check_programs(student, inputs, num_classes)
        except ValueError as error:
            raise ValueError(
                f"{error}; use another copy, or give its class: opu.load(folder, backbone=net)."
            ) from error
    student.architecture = options
    return student
