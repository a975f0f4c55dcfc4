"""One fit for each place; what killed fits leave beside it goes with the next one."""

import os
import subprocess
import sys
import time

import pytest

from opu.distillation.kinds import FIT, MARKS
from opu.distillation.replacing import fresh_folder

WRITING = """
if True:
    import pathlib, sys, time
    from opu.distillation.kinds import FIT
    from opu.distillation.replacing import fresh_folder
    out = pathlib.Path(sys.argv[1])
    with fresh_folder(out, FIT, overwrite=False) as folder:
        (folder / "half").touch()
        (out.parent / "ready").touch()
        time.sleep(1000)
"""

TOGETHER = """
import os, pathlib, sys, opu.distillation.replacing
folder = pathlib.Path(sys.argv[1]).parent
(folder / f"up-{os.getpid()}").touch()
while not (folder / "go").exists():
    pass
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def fit(out, overwrite=False):
    with fresh_folder(out, FIT, overwrite=overwrite) as folder:
        for mark in MARKS:
            (folder / mark).touch()


def test_a_second_fit_into_one_place_is_refused_at_its_start_and_a_killed_one_leaves_nothing(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", WRITING, tmp_path / "run"])
    while not (tmp_path / "ready").exists():
        assert process.poll() is None
        time.sleep(0.002)
    before = names(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=rf"in use by process {process.pid} on .*; nothing in it was changed"):
            fit(tmp_path / "run", overwrite=overwrite)
    fit(tmp_path / "beside")  # another place is free
    assert names(tmp_path) == sorted([*before, "beside"])
    process.kill()
    process.wait()
    fit(tmp_path / "run", overwrite=True)
    assert names(tmp_path) == ["beside", "ready", "run"]


def test_of_fits_that_start_together_one_runs(tmp_path):
    fits = [subprocess.Popen([sys.executable, "-c", TOGETHER + WRITING, tmp_path / "run"]) for _ in range(3)]
    while len(list(tmp_path.glob("up-*"))) < 3:
        assert all(each.poll() is None for each in fits)
        time.sleep(0.002)
    (tmp_path / "go").touch()
    while sum(each.poll() is None for each in fits) > 1:
        time.sleep(0.002)
    (running,) = [each for each in fits if each.poll() is None]
    while not (tmp_path / "ready").exists():
        assert running.poll() is None
        time.sleep(0.002)
    assert len([name for name in names(tmp_path) if name.endswith(".part")]) == 1
    running.kill()
    running.wait()


def test_leftovers_of_old_versions_go_if_their_process_is_gone(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    fit(tmp_path / "run")
    stale = [f".run.{ended.pid}.part", f".run.{ended.pid}.old", ".run.1-0123abcd.old"]
    stale += [f".run.{os.getpid()}.part"]  # this process is of no old version
    others = [f".other.{ended.pid}.part", ".run.kept", ".run.x.part"]
    for name in stale + others:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    fit(tmp_path / "run", overwrite=True)
    assert names(tmp_path) == sorted([*others, "run"])


def test_an_old_run_that_may_be_the_only_copy_stays(tmp_path):
    for name in (".run.1-0123abcd.old", ".run.1-0123abcd.part"):
        (tmp_path / name).mkdir()
    fit(tmp_path / "run")
    assert names(tmp_path) == [".run.1-0123abcd.old", ".run.1-0123abcd.part", "run"]


def test_a_run_whose_place_was_taken_is_not_removed_by_the_next(tmp_path):
    place = fresh_folder(tmp_path / "run", FIT, overwrite=False)
    (place.__enter__() / MARKS[0]).write_text("new")
    (tmp_path / "run" / "notes").write_text("mine")
    with pytest.raises(ValueError, match=r"the new run is in .*\.kept") as refusal:
        place.__exit__(None, None, None)
    kept = str(refusal.value).split("the new run is in ")[1].split(". Move")[0]
    fit(tmp_path / "another")
    (tmp_path / "run" / "notes").unlink()
    fit(tmp_path / "run")
    assert (tmp_path / kept / MARKS[0]).read_text() == "new"
