"""One process for each run folder: of several that start together one runs, and a kill frees the folder at once."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import nn

import opu
from opu.distillation.locking import LOCK, alone_in
from opu.locks import NoLocks

COMMON = """
import os, sys, time
from pathlib import Path
import torch, opu
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

def distilled(out, teacher=None, inputs=None, resume=True):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    dropout = opu.teachers.MCDropout(net)
    student = opu.students.mlp(4, 3, (8,))
    recipe = opu.Recipe(steps=4, batch_size=16, num_particles=5, augment=None)
    opu.distill((teacher or (lambda dropout: dropout))(dropout), student, torch.randn(60, 4) if inputs is None else inputs,
                recipe=recipe, out=out, resume=resume, progress=False)
"""

# Three processes per round; the one that is in waits for the others to be turned away before it takes a step.
TOGETHER = (
    COMMON
    + """
def one(out, number, resume):
    def waiting(dropout):
        def teacher(x, num_particles):
            # Four particles are drawn before the folder is opened, by those that are turned away as well.
            if num_particles == 5 and (out / "checkpoint").is_dir():
                while len(list(out.parent.glob(f"{out.name}-done-*"))) < 2:
                    time.sleep(0.001)
            return dropout(x, num_particles)
        return teacher
    try:
        distilled(out, waiting, resume=resume)
        said = "ran"
    except ValueError as error:
        said = str(error)
    (out.parent / f"{out.name}-done-{number}").write_text(said)

base = Path(sys.argv[1])
for turn in range(4):
    children = []
    for number in range(3):
        if not (child := os.fork()):
            one(base / f"run{turn}", number, resume=turn < 3)
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
"""
)


@pytest.mark.slow
def test_of_processes_that_start_together_exactly_one_runs(tmp_path):
    done = subprocess.run([sys.executable, "-c", TOGETHER, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for turn in range(4):
        said = [(tmp_path / f"run{turn}-done-{number}").read_text() for number in range(3)]
        assert said.count("ran") == 1
        for words in (each for each in said if each != "ran"):
            # "another process" is one that holds the lock and has not yet written its number into it.
            busy = rf"the run folder {tmp_path / f'run{turn}'} is in use by (process \d+ on|another process)"
            assert re.match(busy, words) or (turn == 3 and "exists and is not empty" in words)
            assert "\n" not in words
        names = sorted(path.name for path in (tmp_path / f"run{turn}").iterdir())
        assert names == ["checkpoint", "config.json", "evaluation.safetensors", "log.jsonl", "student"]


# A run whose loader has two workers, which stay in the middle of an item when their parent is killed.
WITH_WORKERS = (
    COMMON
    + """
out = Path(sys.argv[1])

class Rows(Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, index):
        if (out / "checkpoint").is_dir():
            (out.parent / f"worker-{os.getpid()}").touch()
            while not (out.parent / "end").exists():
                time.sleep(0.001)
            os._exit(0)
        return torch.randn(4)

distilled(out, inputs=DataLoader(Rows(), 16, num_workers=2))
"""
)


def test_a_killed_run_frees_its_folder_though_its_workers_live_on(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", WITH_WORKERS, str(tmp_path / "run")])
    while len(workers := list(tmp_path.glob("worker-*"))) < 2:
        assert process.poll() is None
        time.sleep(0.002)
    with pytest.raises(ValueError, match=f"in use by process {process.pid} on"), alone_in(tmp_path / "run"):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    try:
        for worker in workers:
            os.kill(int(worker.name.removeprefix("worker-")), 0)  # raises if it is gone
        assert (tmp_path / "run" / LOCK).exists()
        with alone_in(tmp_path / "run"):
            pass
    finally:
        (tmp_path / "end").touch()
    assert not (tmp_path / "run" / LOCK).exists()


def teacher_and_student():
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    return opu.teachers.MCDropout(net), opu.students.mlp(4, 3, (8,))


def distilled(out, on_epoch=None):
    teacher, student = teacher_and_student()
    recipe = opu.Recipe(steps=4, batch_size=16, num_particles=4)
    opu.distill(
        teacher, student, torch.randn(60, 4), recipe=recipe, out=out, resume=True, progress=False, on_epoch=on_epoch
    )


def test_two_threads_of_one_process_do_not_run_in_one_folder(tmp_path):
    said = []

    def other(_epoch):
        def attempt():
            try:
                distilled(tmp_path / "run")
            except ValueError as error:
                said.append(str(error))

        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()

    distilled(tmp_path / "run", other)
    assert said
    assert all("is in use by another run of this process; nothing in it was changed" in each for each in said)


def test_a_run_inside_a_run_is_refused(tmp_path):
    def nested(_epoch):
        distilled(tmp_path / "run")

    with pytest.raises(ValueError, match="is in use by another run of this process"):
        distilled(tmp_path / "run", nested)


def test_a_forked_child_neither_holds_nor_frees_the_lock(tmp_path):
    code = COMMON + (
        "from opu.distillation.locking import alone_in\n"
        "folder = Path(sys.argv[1])\n"
        "with alone_in(folder):\n"
        "    child = os.fork()\n"
        "    if child:\n"
        "        os.waitpid(child, 0)\n"
        "        assert (folder / '.lock').exists()\n"
        "        try:\n"
        "            with alone_in(folder):\n"
        "                print('free')\n"
        "        except ValueError:\n"
        "            print('held')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "held\n"), done.stderr


def test_where_files_cannot_be_locked_a_warning_says_so(tmp_path, monkeypatch):
    def none(_descriptor):
        raise NoLocks(37, "files cannot be locked here (No locks available)")

    monkeypatch.setattr("opu.distillation.locking.lock", none)
    words = "files cannot be locked here .*, so nothing keeps a second run out of"
    with pytest.warns(UserWarning, match=words), alone_in(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / LOCK).mkdir()  # stands in for missing rights, which the superuser does not lack
    with pytest.raises(ValueError, match=r"the run folder .* cannot be written to: .* Choose another folder"):
        distilled(tmp_path)
