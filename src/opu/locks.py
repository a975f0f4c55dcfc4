"""Locks that the operating system keeps on open files: they end with the process that holds them, however it ends."""

import errno
import os
import sys

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_FAR = 2**30  # where Windows locks a byte, so that the text in front of it can be read
_OPEN: set[int] = set()


class NoLocks(OSError):
    """Files cannot be locked here, as on some network file systems."""


def open_file(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file to lock it.

    It belongs to this process alone. A child that is forked later closes it, since it may live on, as workers of a loader do
    for some seconds, when this process is killed.
    """
    descriptor = os.open(path, flags, 0o666)
    _OPEN.add(descriptor)
    return descriptor


def close_file(descriptor: int) -> None:
    """Close a file, and with it its lock; nothing happens the second time, or in a forked child."""
    if descriptor in _OPEN:
        _OPEN.discard(descriptor)
        os.close(descriptor)


def is_ours(descriptor: int) -> bool:
    """Whether this process has opened the file; a forked child has not."""
    return descriptor in _OPEN


def lock(descriptor: int) -> bool:
    """Lock a file, without waiting; False if another process, or another opening of the file, holds it."""
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, _FAR, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK):
            return False
        raise NoLocks(error.errno, f"files cannot be locked here ({error.strerror})") from error
    return True


def is_at(descriptor: int, path: str | os.PathLike[str]) -> bool:
    """Whether the open file is still the one at the path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _close_all() -> None:
    for descriptor in _OPEN:
        os.close(descriptor)
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)
