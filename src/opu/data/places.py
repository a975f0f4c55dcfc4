"""Where the files of datasets are looked for, and whether what lies there is what was published."""

import hashlib
import os
from pathlib import Path

from opu.data.catalogue import DataFile, dataset_of


def places() -> list[Path]:
    """``$OPU_DATA`` where it is set, then the per-user cache: ``$XDG_CACHE_HOME/opu`` or ``~/.cache/opu``."""
    own = os.environ.get("OPU_DATA")
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return [Path(place).expanduser() for place in ([own] if own else []) + [str(Path(cache) / "opu")]]


def folder_to_fetch_into() -> Path:
    """The first of the places that can be written to; the cache where none can, so that the error names it."""
    return next((place for place in places() if _is_writable(place)), places()[-1])


def locate(file: DataFile, folder: Path | None = None) -> Path | None:
    """The path of a file in a folder, or in the first place that has it; None where it is not there."""
    for place in places() if folder is None else [folder]:
        for form in file.forms:
            if (place / form.path).is_file():
                return place / form.path
    return None


def find(file: DataFile, folder: Path | None = None) -> Path:
    """The path of a file; a file that is not there costs a sentence which says how to get it."""
    path = locate(file, folder)
    if path is None:
        raise ValueError(_how_to_get(file, folder))
    return path


def problem(file: DataFile, path: Path) -> str | None:
    """What is wrong with a file's bytes, in words that follow its name; None for a file that is right."""
    form = next(form for form in file.forms if Path(form.path).name == path.name)
    size = path.stat().st_size
    if form.size is not None and size != form.size:
        return f"has {size:,} bytes, but {form.size:,} are right"
    if any(checksum(path, right.split(":")[0]) == right for right in form.checksums):
        return None
    got = checksum(path, form.checksums[0].split(":")[0])
    return f"has the checksum {got}, but {' or '.join(form.checksums)} is right"


def verify(file: DataFile, folder: Path | None = None) -> Path:
    """Find a file and hash it; the path of a file that is right."""
    path = find(file, folder)
    wrong = problem(file, path)
    if wrong:
        again = f"fetch it again with `opu data fetch {dataset_of(file).name}`" if file.sources else "copy it again"
        raise ValueError(f"{path} {wrong}; it is damaged. Delete it and {again}.")
    return path


def checked(file: DataFile, folder: Path | None = None) -> Path:
    """The path of a file whose bytes are the published ones; in a folder that the caller names, of whatever lies there."""
    return verify(file) if folder is None else find(file, folder)


def checksum(path: Path, algorithm: str) -> str:
    """The checksum of a file, as ``"algorithm:digest"``."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


def _how_to_get(file: DataFile, folder: Path | None) -> str:
    looked = places() if folder is None else [folder]
    sentence = f"{file.path} is not here; it was looked for in {' and '.join(map(str, looked))}"
    if folder is None and not os.environ.get("OPU_DATA"):
        sentence += " ($OPU_DATA is not set)"
    if not file.sources:
        return f"{sentence}. It has no official address and cannot be fetched: copy it there from where you have it."
    return (
        f"{sentence}. Get it with `opu data fetch {dataset_of(file).name}`, or set OPU_DATA to the folder that has it."
    )


def _is_writable(folder: Path) -> bool:
    there = next(parent for parent in [folder, *folder.absolute().parents] if parent.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
