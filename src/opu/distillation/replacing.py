"""The run folder of a command, `opu fit` or `opu demo`: written beside its place, and put there whole."""

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from opu.distillation.kinds import Kind, kind_of
from opu.distillation.locking import LOCK, alone_at, alone_in
from opu.distillation.run_folder import make_folder
from opu.files import is_alive


@contextmanager
def fresh_folder(out: Path, kind: Kind, *, overwrite: bool) -> Iterator[Path]:
    """An empty folder to write a run into, which is at ``out`` when the block ends well, and gone if it does not.

    It is for one process: a second run into the same place is refused before it begins.

    Args:
        out: Where the run should be. A folder that holds something is refused, unless it may be overwritten.
        kind: Which command runs.
        overwrite: Whether an earlier run of that command is replaced; it stays as it is until the block has ended well.
    """
    out = out.resolve()
    with _alone_beside(out) as locked:
        _put_back(out)
        made = not out.exists()
        if out.is_dir() and [path.name for path in out.iterdir()] == [LOCK]:
            _refuse_if_in_use(out)
        replaced = overwrite and out.is_dir() and any(out.iterdir())
        if replaced:
            _check_run(out, kind)
        elif out.is_dir() and kind.is_run(out):
            raise ValueError(
                f"the output folder {out} holds a run; choose another folder, or replace it with --overwrite."
            )
        else:
            make_folder(out)
        if locked:
            _remove_parts(out)
        work = out.with_name(f".{out.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
        make_folder(work)
        try:
            yield work
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            if made and out.is_dir():
                with contextlib.suppress(OSError):  # unless something was put there
                    out.rmdir()
            raise
        _put(work, out, kind, replaced=replaced)


def _alone_beside(out: Path) -> AbstractContextManager[bool]:
    """The lock of a place for a run: beside it, since the run itself is moved there; whether there is one."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the output folder {out} cannot be made: {error.strerror}. Choose another path.") from error
    return alone_at(out.with_name(f".{out.name}.lock"), out)


def _put(work: Path, out: Path, kind: Kind, *, replaced: bool) -> None:
    """Put a finished run into its place, if that is still as it was; otherwise nothing is lost."""
    old = work.with_suffix(".old")
    try:
        if replaced:
            _check_run(out, kind)
            out.rename(old)
        elif os.name == "nt":  # elsewhere an empty folder is replaced in one step
            out.rmdir()
        work.rename(out)
    except (OSError, ValueError) as error:
        # Names that no later run removes.
        kept = work.rename(work.with_suffix(".kept"))
        before = f", and the old one in {old.rename(f'{old}.kept')}" if old.exists() else ""
        raise ValueError(
            f"something was put into {out} while the {kind.name} ran, so it was left alone; the new run is in {kept}{before}"
            ". Move it to where you want it."
        ) from error
    shutil.rmtree(old, ignore_errors=True)


def put_back(out: Path) -> str | None:
    """Put a run into its place where a command was killed while it replaced another; what was done, in one sentence.

    The new run is whole at that moment, so it is the one. Where the command was killed just after that, the run before is
    removed. While a command holds the place nothing is done, and it is an error if the place is empty.

    Args:
        out: Where the run should be.
    """
    out = out.resolve()
    if not _beside(out, "old"):
        return None
    try:
        with _alone_beside(out):
            return _put_back(out)
    except ValueError:
        if kind_of(out) is not None:
            return None
        raise


def _put_back(out: Path) -> str | None:
    for old, process in _beside(out, "old"):
        if _runs(process):
            raise ValueError(
                f"{out} is being replaced by a fit (process {process}); try again when it has ended. If that is no fit, move "
                f"{old} to where you want it: it is the run before."
            )
        if kind_of(out) is not None:
            shutil.rmtree(old, ignore_errors=True)
            continue
        new = old.with_suffix(".part")
        kept = old if kind_of(new) is None else new
        kind = kind_of(kept)
        if kind is None or out.is_file() or (out.is_dir() and any(out.iterdir())):
            continue
        with contextlib.suppress(OSError):
            out.rmdir()
        kept.rename(out)
        shutil.rmtree(old, ignore_errors=True)
        which = "the run before is back" if kept is old else "the new run was whole, and is there now"
        return f"A {kind.name} was interrupted while it replaced {out}; {which}."
    return None


def _remove_parts(out: Path) -> None:
    """Remove what killed runs left beside ``out``; while an old run stands there, a part may be the only whole copy."""
    if not _beside(out, "old"):
        for part, process in _beside(out, "part"):
            if not _runs(process):
                shutil.rmtree(part, ignore_errors=True)


def _beside(out: Path, kind: str) -> list[tuple[Path, int | None]]:
    """Folders that runs left beside ``out``, and the process of those that have no token: version 0.2 locked nothing."""
    name = re.compile(rf"\.{re.escape(out.name)}\.(?:[0-9]+-[0-9a-f]{{8}}|([0-9]+))\.{kind}")
    found = sorted(out.parent.iterdir()) if out.parent.is_dir() else []
    matches = [(path, name.fullmatch(path.name)) for path in found]
    return [(path, int(match[1]) if match[1] else None) for path, match in matches if match is not None]


def _runs(process: int | None) -> bool:
    """Whether a process of version 0.2 may still write here; this one is not of that version, nor are those that lock."""
    return process is not None and os.name != "nt" and process != os.getpid() and is_alive(process)


def _check_run(out: Path, kind: Kind) -> None:
    """Refuse to replace what is no run of the command, is in use, or holds a user's own files."""
    if not kind.is_run(out):
        raise ValueError(f"{out} is not a run of `opu {kind.name}`, so it is not overwritten; choose another folder.")
    _refuse_if_in_use(out)
    if others := kind.others(out):
        raise ValueError(
            f"{out} also holds {others[0]}, which `opu {kind.name}` did not write; move it elsewhere, or choose another "
            "folder."
        )


def _refuse_if_in_use(out: Path) -> None:
    """Refuse a folder in which a distillation goes on; the lock that a killed one left there is removed."""
    if (out / LOCK).exists():
        with alone_in(out):
            pass
