"""A hidden folder for files that are not complete yet, held by one fetch at a time."""

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
    """A hidden folder that is removed at the end and after every error.

    It remains if the process is killed or interrupted, and the next fetch with the same name continues from its content.
    Other fetches with that name, in this process or another, wait until this one is done.
    """
    stage = folder / f".fetch-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    lock = _lock(stage)
    if lock is None:
        # Without locks a leftover looks like a download in progress, so each fetch has a folder of its own.
        stage = Path(tempfile.mkdtemp(prefix=f"{stage.name}-", dir=folder))
    with lock or contextlib.nullcontext():
        try:
            yield stage
        except Exception:
            _remove(stage)
            raise
        _remove(stage)


def _lock(stage: Path) -> BinaryIO | None:
    """The locked lock file of the stage; None if files cannot be locked here."""
    if sys.platform == "win32":
        return None
    while True:
        # Not Path.mkdir(exist_ok=True), which fails if the folder is removed meanwhile.
        with contextlib.suppress(FileExistsError):
            os.mkdir(stage)
        try:
            file = (stage / "lock").open("wb")
        except FileNotFoundError:  # removed a moment ago by the fetch that held it
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # some network file systems have no locks
            file.close()
            with contextlib.suppress(OSError):
                if [path.name for path in stage.iterdir()] == ["lock"]:
                    _remove(stage)
            return None
        with contextlib.suppress(FileNotFoundError):
            # The lock file may have been removed while this fetch waited; others would not find that one.
            if os.path.samestat(os.fstat(file.fileno()), (stage / "lock").stat()):
                return file
        file.close()


def _remove(stage: Path) -> None:
    """Remove the stage and its content, the lock last: from then on the folder may belong to another fetch."""
    for path in stage.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != "lock":
            path.unlink(missing_ok=True)
    (stage / "lock").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        stage.rmdir()
