"""One process for each run folder: a second one is told who is there, and changes nothing."""

import contextlib
import os
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path

from opu.locks import NoLocks, close_file, is_at, is_ours, lock, open_file

LOCK = ".lock"
_SELF = "process {} on {}"


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder that exists; it is free again when the block, or the process, ends in any way.

    Where files cannot be locked, as on some network file systems, there is a warning and no lock.

    Args:
        folder: The run folder.
    """
    with alone_at(folder / LOCK, folder):
        yield


@contextlib.contextmanager
def alone_at(path: Path, folder: Path) -> Iterator[bool]:
    """Hold a lock file, which is gone when the block ends, and free when the process does; False where nothing is locked.

    Args:
        path: The lock file.
        folder: What it keeps others out of, for messages.
    """
    descriptor = _acquire(path, folder)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None and is_ours(descriptor):  # it is not in a forked child
            if os.name == "nt":
                close_file(descriptor)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            close_file(descriptor)


def _acquire(path: Path, folder: Path) -> int | None:
    while True:
        try:
            descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise ValueError(
                f"the run folder {folder} cannot be written to: {error.strerror}. Choose another folder."
            ) from error
        try:
            free = lock(descriptor)
        except NoLocks as error:
            close_file(descriptor)
            path.unlink(missing_ok=True)
            warnings.warn(f"{error.strerror}, so nothing keeps a second run out of {folder}.", stacklevel=5)
            return None
        if not free:
            close_file(descriptor)
            raise ValueError(
                f"the run folder {folder} is in use by {_holder(path)}; nothing in it was changed. Wait for that run or end "
                "it, or choose another folder."
            )
        if is_at(descriptor, path):
            with contextlib.suppress(OSError):  # the text is for people; a full disk must not stop a run here
                os.ftruncate(descriptor, 0)
                os.lseek(descriptor, 0, os.SEEK_SET)
                os.write(descriptor, _SELF.format(os.getpid(), platform.node()).encode())
            return descriptor
        close_file(descriptor)  # the run before this one has just ended and removed it


def _holder(path: Path) -> str:
    try:
        found = path.read_text().strip() or "another process"
    except OSError:
        found = "another process"
    return "another run of this process" if found == _SELF.format(os.getpid(), platform.node()) else found
