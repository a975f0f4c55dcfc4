"""A run's folder: its settings, a log line for each step, and a checkpoint that is always whole."""

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opu.distillation.fingerprint import HAS_STATE, UNKNOWN, Fingerprint, refuse_other
from opu.distillation.locking import LOCK, alone_in
from opu.files import plain, read_json, read_state, write_atomically, write_json, write_state
from opu.students.links import parse_link


class RunFolder:
    """``config.json``, ``log.jsonl`` and ``checkpoint/latest.safetensors`` of one run.

    Args:
        path: Made where it is missing. A folder with something in it is refused, unless a run is resumed.
        settings: What the run was asked to do; a run can only be resumed with the same settings.
        resume: Go on with the run in this folder; start afresh where there is none yet.
        fingerprint: What the run is made with (:mod:`opu.distillation.fingerprint`); the same holds for it.
    """

    def __init__(
        self, path: Path, settings: dict[str, Any], *, resume: bool, fingerprint: Fingerprint | None = None
    ) -> None:
        self.path: Path | None = path
        self._log = path / "log.jsonl"
        self._checkpoint = path / "checkpoint" / "latest.safetensors"
        make_folder(path, resume=resume)
        self._fingerprint = fingerprint
        config = path / "config.json"
        if resume and config.exists():
            found = read_json(config)
            before, kept = found.get("distill", {}), found.get("fingerprint")
            if not isinstance(before, dict) or not (kept is None or _is_fingerprint(kept)):
                raise ValueError(f"{config} is not the config of a run; it may have been edited. Use another copy.")
            refuse_other_settings(_of_today(before, settings), settings)
            self._compare(kept)
        else:
            self._compare((self.checkpoint() or {"fingerprint": fingerprint}).get("fingerprint"))
            kept = {} if fingerprint is None else {"fingerprint": fingerprint}
            write_json(config, {"distill": settings, **kept})

    def _compare(self, before: Fingerprint | None) -> None:
        if self._fingerprint is not None and before is None:
            warnings.warn(UNKNOWN, stacklevel=6)
        elif self._fingerprint is not None and before is not None:
            refuse_other(before, self._fingerprint)
            if self._checkpoint.exists() and None in self._fingerprint.get("particles", {}).values():
                warnings.warn(HAS_STATE, stacklevel=6)

    def checkpoint(self) -> dict[str, Any] | None:
        """The last whole checkpoint, if there is one."""
        return read_state(self._checkpoint) if self._checkpoint.exists() else None

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint, in one step."""
        write_state(self._checkpoint, {**state, "fingerprint": self._fingerprint})

    def rewind_log(self, step: int) -> None:
        """Drop log lines after a step, and a last one that was cut short; a kill meanwhile leaves the old log or the new."""
        log, kept = self._log, []
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        for line in lines:
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except (ValueError, TypeError, KeyError):
                break
        if kept or lines:
            write_atomically(log, "".join(kept).encode())

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


def _is_fingerprint(found: Any) -> bool:
    return isinstance(found, dict) and all(isinstance(part, dict) for part in found.values())


@contextmanager
def open_folder(
    path: str | Path | None, settings: dict[str, Any], *, resume: bool, fingerprint: Fingerprint | None = None
) -> Iterator["RunFolder | NoFolder"]:
    """The folder of a run, for this process alone as long as the block lasts; None for a run that leaves nothing behind."""
    if path is None:
        yield NoFolder()
        return
    make_folder(Path(path), resume=resume)
    with alone_in(Path(path)):
        yield RunFolder(Path(path), settings, resume=resume, fingerprint=fingerprint)


def make_folder(path: Path, *, resume: bool = False) -> None:
    """Make an output folder; refuse one that cannot be made, or that holds something, unless a run is resumed."""
    if path.is_dir() and any(each.name != LOCK for each in path.iterdir()) and not resume:
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
    known = read_json(path).get("classes") if path.is_file() else None
    return [str(name) for name in known] if isinstance(known, list) and len(known) == num_classes else None
