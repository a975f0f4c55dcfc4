"""A hidden folder for what is not whole yet, held by one fetch at a time."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl


@contextlib.contextmanager
def staging(folder: Path, name: str) -> Iterator[Path]:
    """Lend a hidden folder, and remove it at the end and after every error.

    It outlives a process that was killed or interrupted, and the next fetch of the same name goes on with what is in
    it. Another fetch of that name, be it in this process or another, waits until this one is done.
    """
    stage = folder / f".fetch-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    lock = _lock(stage)
    if lock is None:
        # Without locks nobody can tell a leftover from a download in progress, so nothing is shared.
        stage = Path(tempfile.mkdtemp(prefix=f"{stage.name}-", dir=folder))
    with lock or contextlib.nullcontext():
        try:
            yield stage
        except Exception:
            _remove(stage)
            raise
        _remove(stage)


def _lock(stage: Path) -> BinaryIO | None:
    """A lock file in the stage, locked and still the one that others would find; None where files cannot be locked."""
    if sys.platform == "win32":
        return None
    while True:
        # Not Path.mkdir(exist_ok=True), which stumbles over a folder that is removed while it looks.
        with contextlib.suppress(FileExistsError):
            os.mkdir(stage)
        try:
            file = (stage / "lock").open("wb")
        except FileNotFoundError:  # removed a moment ago by the fetch that held it
            continue
        with contextlib.ExitStack() as closing:
            closing.enter_context(file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:  # some network file systems have no locks
                with contextlib.suppress(OSError):
                    if [path.name for path in stage.iterdir()] == ["lock"]:
                        _remove(stage)
                return None
            if _is_at(file, stage / "lock"):
                closing.pop_all()
                return file


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _remove(stage: Path) -> None:
    """Empty the stage and take it away, the lock last: from then on the folder may be another's."""
    for path in stage.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != "lock":
            path.unlink(missing_ok=True)
    (stage / "lock").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        stage.rmdir()
