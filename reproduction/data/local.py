"""The files on this machine: where they are looked for, and whether they are intact."""

import hashlib
import os
from pathlib import Path

from reproduction.data.catalogue import DataFile, dataset_of


def places() -> list[Path]:
    """The folders to look in: ``$OPU_DATA`` if it is set, then the cache, ``$XDG_CACHE_HOME/opu`` or ``~/.cache/opu``."""
    own = os.environ.get("OPU_DATA")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "opu"
    return [place.expanduser() for place in ([Path(own), cache] if own else [cache])]


def folder_to_fetch_into() -> Path:
    """The first of the places that can be written to; the cache if none can, so that the error names it."""
    return next((place for place in places() if _is_writable(place)), places()[-1])


def locate(file: DataFile, folder: Path | None = None) -> Path | None:
    """The path of a file in a folder, by default in the first place that has it; None if it is not there."""
    candidates = (place / form.path for place in _searched(folder) for form in file.forms)
    return next((path for path in candidates if path.is_file()), None)


def find(file: DataFile, folder: Path | None = None) -> Path:
    """Like :func:`locate`, but a missing file is an error that says how to get it."""
    path = locate(file, folder)
    if path is None:
        raise ValueError(_how_to_get(file, folder))
    return path


def problem(file: DataFile, path: Path) -> str | None:
    """What is wrong with the bytes of a file, in words that follow its name; None if it is intact."""
    form = next(form for form in file.forms if Path(form.path).name == path.name)
    size = path.stat().st_size
    if form.size is not None and size != form.size:
        return f"has {size:,} bytes, but {form.size:,} are right"
    got = [checksum(path, algorithm) for algorithm in dict.fromkeys(each.split(":")[0] for each in form.checksums)]
    if set(got) & set(form.checksums):
        return None
    return f"has the checksum {got[0]}, but {' or '.join(form.checksums)} is right"


def verify(file: DataFile, folder: Path | None = None) -> Path:
    """Find a file and compare its size and checksum with the published ones; return its path."""
    path = find(file, folder)
    wrong = problem(file, path)
    if wrong:
        again = f"fetch it again with `opu data fetch {dataset_of(file).name}`" if file.sources else "copy it again"
        raise ValueError(f"{path} {wrong}; it is damaged. Delete it and {again}.")
    return path


def checked(file: DataFile, folder: Path | None = None) -> Path:
    """Like :func:`verify` by default; a file in a folder that the caller names is found but not hashed."""
    return verify(file) if folder is None else find(file, folder)


def checksum(path: Path, algorithm: str) -> str:
    """The checksum of a file, as ``"algorithm:digest"``."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


def _searched(folder: Path | None) -> list[Path]:
    return places() if folder is None else [folder]


def _how_to_get(file: DataFile, folder: Path | None) -> str:
    sentence = f"{file.path} is not here; it was looked for in {' and '.join(map(str, _searched(folder)))}"
    if folder is None and not os.environ.get("OPU_DATA"):
        sentence += " ($OPU_DATA is not set)"
    if not file.sources:
        return f"{sentence}. It has no official address and cannot be fetched: copy it there from where you have it."
    command = f"opu data fetch {dataset_of(file).name}"
    return f"{sentence}. Get it with `{command}`, or set OPU_DATA to the folder that has it."


def _is_writable(folder: Path) -> bool:
    there = next(parent for parent in [folder, *folder.absolute().parents] if parent.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
