"""The run folders that a command may replace: how they are recognised, and what was written into them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from opu.files import read_json

MARKS = ("classifier.json", "encoding.json")  # a folder with these is a run of `opu fit`
# What `opu fidelity` and `opu export` add to a run.
_ADDED = frozenset({"fidelity.json", "fidelity.png", "student.onnx", "student-int8.onnx", "student.pt2"})
_OF_ALL = _ADDED | {"config.json", "metrics.json", "evaluation.safetensors", "model.safetensors"}
_OF_DEMO = {"seed", "settings", "speedup", "misclassification", "ood"}  # in its metrics
_DEMO_SETTINGS = {"hidden", "dropout", "teacher_epochs", "evaluation_particles"}


@dataclass(frozen=True)
class Kind:
    """Run folders of one command.

    Attributes:
        name: What the command makes, as in ``opu fit``.
        is_run: Whether a folder is a whole run of that command.
        files: Names of the files that are written into each folder within it; that of ``""`` is the run folder itself.
    """

    name: str
    is_run: Callable[[Path], bool]
    files: Mapping[str, frozenset[str]]

    def others(self, out: Path) -> list[str]:
        """What lies in a folder and is not of this kind; a user's own files may lie in a folder with the name of a file."""
        inside = [("", path) for path in out.iterdir()]
        inside += [(name, path) for name in self.files if name for path in (out / name).glob("*")]
        found = [path for folder, path in inside if not self._is_ours(folder, path)]
        return sorted(str(path.relative_to(out)) for path in found)

    def _is_ours(self, folder: str, path: Path) -> bool:
        if path.is_dir():
            return not folder and path.name in self.files and not path.is_symlink()
        return path.name in self.files[folder]


def _is_fit(folder: Path) -> bool:
    return all((folder / mark).exists() for mark in MARKS)


def _is_demo(folder: Path) -> bool:
    """Whether the settings and metrics are a demo's; programs of others have files of these names too."""
    try:
        config, metrics = read_json(folder / "config.json"), read_json(folder / "metrics.json")
    except (OSError, ValueError):
        return False
    settings = metrics.get("settings")
    of_demo = isinstance(settings, dict) and settings.keys() >= _DEMO_SETTINGS and metrics.keys() >= _OF_DEMO
    return of_demo and isinstance(config.get("distill"), dict)


_OF_FIT = _OF_ALL | {*MARKS, "calibration.png"}
FIT = Kind("fit", _is_fit, {"": _OF_FIT, "student": _OF_FIT})
_IN_DEMO = _ADDED | {"config.json", "metrics.json", "evaluation.safetensors", "log.jsonl"}
DEMO = Kind(
    "demo",
    _is_demo,
    {
        "": _IN_DEMO | {"simplex.png", "scores.png", "roc.png"},
        "student": _ADDED | {"model.safetensors", "config.json"},  # the latter in older versions
        "checkpoint": frozenset({"latest.safetensors"}),
    },
)
KINDS = (FIT, DEMO)


def kind_of(folder: Path) -> Kind | None:
    """The command whose whole run a folder is, if any."""
    return next((kind for kind in KINDS if kind.is_run(folder)), None)
