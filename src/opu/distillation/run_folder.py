"""A run's folder: its settings, a log line for each step, and a checkpoint that is always whole."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opu.files import plain, read_state, write_json, write_state
from opu.students.links import parse_link


class RunFolder:
    """``config.json``, ``log.jsonl`` and ``checkpoint/latest.safetensors`` of one run.

    Args:
        path: Made where it is missing. A folder with something in it is refused, unless a run is resumed.
        settings: What the run was asked to do; a run can only be resumed with the same settings.
        resume: Go on with the run in this folder; start afresh where there is none yet.
    """

    def __init__(self, path: Path, settings: dict[str, Any], *, resume: bool) -> None:
        self.path: Path | None = path
        self._log = path / "log.jsonl"
        self._checkpoint = path / "checkpoint" / "latest.safetensors"
        make_folder(path, resume=resume)
        config = path / "config.json"
        if resume and config.exists():
            refuse_other_settings(_of_today(json.loads(config.read_text()).get("distill", {}), settings), settings)
        write_json(config, {"distill": settings})

    def checkpoint(self) -> dict[str, Any] | None:
        """The last whole checkpoint, if there is one."""
        return read_state(self._checkpoint) if self._checkpoint.exists() else None

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint, in one step."""
        write_state(self._checkpoint, state)

    def rewind_log(self, step: int) -> None:
        """Drop log lines after a step, and a last one that was cut short."""
        log, kept = self._log, []
        for line in log.read_text().splitlines() if log.exists() else []:
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except ValueError:
                break
        log.write_text("".join(kept))

    def log(self, **values: float | int) -> None:
        """Append one line to ``log.jsonl``."""
        log = self._log
        try:
            with log.open("a") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as error:
            raise OSError(
                error.errno,
                f"could not write {log}: {error.strerror}. The last checkpoint is whole; free some space and resume",
            ) from error


def open_folder(path: str | Path | None, settings: dict[str, Any], *, resume: bool) -> "RunFolder | NoFolder":
    """The folder of a run; None for a run that leaves nothing behind."""
    return NoFolder() if path is None else RunFolder(Path(path), settings, resume=resume)


def make_folder(path: Path, *, resume: bool = False) -> None:
    """Make an output folder; refuse one that cannot be made, or that holds something, unless a run is resumed."""
    if path.is_dir() and any(path.iterdir()) and not resume:
        raise ValueError(
            f"the output folder {path} exists and is not empty; nothing in it was changed. Choose another folder."
        )
    if path.exists() and not path.is_dir():
        raise ValueError(f"the output folder {path} is a file; choose another path.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the output folder {path} cannot be made: {error.strerror}. Choose another path.") from error


class NoFolder:
    """A run that leaves nothing behind."""

    path: Path | None = None

    def checkpoint(self) -> None:
        """There is none."""

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Nothing to do."""

    def rewind_log(self, step: int) -> None:
        """Nothing to do."""

    def log(self, **values: float | int) -> None:
        """Nothing to do."""


def refuse_other_settings(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to go on with a run under other settings than it began with."""
    different = [name for name in now if plain(now[name]) != before.get(name)]
    if different:
        name = different[0]
        raise ValueError(
            f"a run is resumed with the settings it began with; {name} was {before.get(name)!r} and is {now[name]!r} now. "
            "Use the old settings, or another folder."
        )


def _of_today(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Settings of a run that began before 0.1.0, in the names of today; those that were not kept then are taken as equal."""
    former = {"broadened_fraction": "augmented_fraction"}
    later = ("start_from_teacher", "optimizer", "augment", "blend", "steps")
    settings = {name: plain(now[name]) for name in later if name in now}
    settings |= {former.get(name, name): value for name, value in before.items()}
    if settings.get("link"):
        settings["link"] = str(parse_link(settings["link"]))
    return settings | {"objective": str(settings.get("objective")).replace("steady_kl", "clipped_kl")}


def class_names(run: Path, given: Sequence[str] | None, num_classes: int) -> list[str] | None:
    """Names of the classes that the user gave, or that the run's ``metrics.json`` holds; None if nobody knows them."""
    if given:
        if len(given) != num_classes:
            raise ValueError(f"--classes must name all {num_classes} classes; got {len(given)}: {', '.join(given)}.")
        return list(given)
    path = run / "metrics.json"
    known = json.loads(path.read_text()).get("classes") if path.is_file() else None
    return [str(name) for name in known] if isinstance(known, list) and len(known) == num_classes else None
