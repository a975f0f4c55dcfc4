"""The run folder of a fitted table: written beside its place, and put there whole."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from opu.distillation.run_folder import make_folder

MARKS = ("classifier.json", "encoding.json")  # a folder with these is a run of `opu fit`
# What `opu fit`, `opu fidelity` and `opu export` leave there.
OURS = (*MARKS, "config.json", "metrics.json", "calibration.png", "evaluation.safetensors", "fidelity.*", "student*")


@contextmanager
def fresh_folder(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """An empty folder to write a run into, which is at ``out`` when the block ends well, and gone if it does not.

    Args:
        out: Where the run should be. A folder that holds something is refused, unless it may be overwritten.
        overwrite: Whether a run of `opu fit` is replaced; it stays as it is until the block has ended well.
    """
    out = out.resolve()
    made = not out.exists()
    replaced = overwrite and out.is_dir() and any(out.iterdir())
    if replaced:
        _check_run(out)
    elif out.is_dir() and all((out / mark).exists() for mark in MARKS):
        raise ValueError(f"the output folder {out} holds a run; choose another folder, or replace it with --overwrite.")
    else:
        make_folder(out)
    work = out.with_name(f".{out.name}.{os.getpid()}.part")
    make_folder(work)
    try:
        yield work
        old = out.with_name(f".{out.name}.{os.getpid()}.old")
        out.rename(old)
        work.rename(out)
        shutil.rmtree(old)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        if made and out.is_dir():
            out.rmdir()  # still empty
        raise


def _check_run(out: Path) -> None:
    if not all((out / mark).exists() for mark in MARKS):
        raise ValueError(f"{out} is not a run of `opu fit`, so it is not overwritten; choose another folder.")
    others = [path.name for path in sorted(out.iterdir()) if not any(fnmatch(path.name, each) for each in OURS)]
    if others:
        raise ValueError(
            f"{out} also holds {others[0]}, which `opu fit` did not write; move it elsewhere, or choose another folder."
        )
