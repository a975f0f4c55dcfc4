"""The run folder of a fitted table: written beside its place, and put there whole."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opu.distillation.run_folder import make_folder

MARKS = ("classifier.json", "encoding.json")  # a folder with these is a run of `opu fit`
# What `opu fit`, `opu fidelity` and `opu export` leave there, and what is in the student's own folder.
OURS = frozenset(
    {
        *MARKS,
        "config.json",
        "metrics.json",
        "calibration.png",
        "evaluation.safetensors",
        "fidelity.json",
        "fidelity.png",
    }
    | {"student", "student.onnx", "student-int8.onnx", "student.pt2", "model.safetensors"}
)


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
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        if made and out.is_dir():
            with contextlib.suppress(OSError):  # unless something was put there
                out.rmdir()
        raise
    _put(work, out, replaced=replaced)


def _put(work: Path, out: Path, *, replaced: bool) -> None:
    """Put a finished run into its place, if that is still as it was; otherwise nothing is lost."""
    old = out.with_name(f".{out.name}.{os.getpid()}.old")
    try:
        if replaced:
            _check_run(out)
            out.rename(old)
        else:
            out.rmdir()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"something was put into {out} while the fit ran, so it was left alone; the new run is in {work}. Move it to "
            "where you want it."
        ) from error
    work.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def _check_run(out: Path) -> None:
    if not all((out / mark).exists() for mark in MARKS):
        raise ValueError(f"{out} is not a run of `opu fit`, so it is not overwritten; choose another folder.")
    inside = [*out.iterdir(), *(out / "student").glob("*")]
    others = sorted(str(path.relative_to(out)) for path in inside if path.name not in OURS)
    if others:
        raise ValueError(
            f"{out} also holds {others[0]}, which `opu fit` did not write; move it elsewhere, or choose another folder."
        )
