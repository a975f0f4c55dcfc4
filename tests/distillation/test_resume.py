"""Real processes, really killed: a run that goes on ends with the same bits as one that was left alone."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import opu
from opu.files import read_state, write_state

# A teacher that draws from torch and from numpy, a learned critic beside an exact distance, two optimisers.
SCRIPT = """
import sys, numpy as np, torch, opu
from torch import nn
from opu.objectives import CriticEMD, ExactMMD

torch.set_num_threads(1)
torch.manual_seed(0)
np.random.seed(0)
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
dropout = opu.teachers.MCDropout(net)
def teacher(x, num_particles):
    shift = torch.from_numpy(np.random.randn(num_particles, 1, 3)).float()
    return (dropout(x, num_particles) + 0.1 * shift).log_softmax(-1)
student = opu.students.mlp(4, 3, (16,))
opu.distill(
    teacher, student, torch.randn(120, 4), out=sys.argv[1], resume=True, progress=False,
    recipe=opu.Recipe(
        objective=ExactMMD() + 0.1 * CriticEMD(critic_steps=1, hidden=8), updates="alternating", epochs=12,
        batch_size=16, num_particles=8, checkpoint_every=5,
    ),
)
student.save(sys.argv[1] + "/student")
"""


def start(out: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(out)], env=environment, stderr=subprocess.PIPE)


def finish(out: Path) -> None:
    process = start(out)
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()


def lines_of(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def kill_after(out: Path, lines: int, pause: float) -> int:
    """Kill a run once its log has so many lines, and a little later; return the lines it reached."""
    process = start(out)
    log = out / "log.jsonl"
    while lines_of(log) < lines and process.poll() is None:
        time.sleep(0.002)
    time.sleep(pause)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    return lines_of(log)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that was left alone."""
    out = tmp_path_factory.mktemp("whole") / "run"
    finish(out)
    return out


def assert_same_bits(whole: Path, other: Path) -> None:
    expected, found = (opu.load(run / "student").state_dict() for run in (whole, other))
    for name, w in expected.items():
        assert torch.equal(w, found[name]), name
    assert (whole / "log.jsonl").read_text() == (other / "log.jsonl").read_text()


@pytest.mark.slow
def test_killed_runs_end_with_the_same_bits(whole, tmp_path):
    out, source, reached = tmp_path / "killed", random.Random(0), []
    for lines in (1, 13, 47):
        reached.append(kill_after(out, lines, source.uniform(0, 0.05)))
        checkpoint = out / "checkpoint" / "latest.safetensors"
        assert not checkpoint.exists() or read_state(checkpoint)["step"] % 5 == 0
        assert json.loads((out / "config.json").read_text())["distill"]["epochs"] == 12
    assert reached[0] < reached[-1], "the kills should have hit different moments of the run"
    finish(out)
    assert_same_bits(whole, out)


# Forks a run that kills itself before its n-th look at, or change of, a file in its folder; then the next, until the last.
AT_EVERY_FILE = """
import os, random, signal, sys, traceback
from pathlib import Path
import numpy as np, torch, opu
from torch import nn
torch.set_num_threads(1)

def distilled(out):
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    student, x = opu.students.mlp(4, 3, (8,)), torch.randn(60, 4)
    recipe = opu.Recipe(epochs=3, batch_size=16, num_particles=4, checkpoint_every=2)
    opu.distill(opu.teachers.MCDropout(net), student, x, recipe=recipe, out=out, resume=True, progress=False)

def forked(out, last=None):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    seen = []
    def look(event, values):
        if event == "fcntl.flock" or any(str(value).startswith(out) for value in values[:2]):
            seen.append(event)
            if len(seen) == last:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(look)
    try:
        distilled(out)
        if last is None:
            Path(out + "-events").write_text(str(len(seen)))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)

base, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
assert forked(base + "/whole") == 0
events = int(Path(base + "/whole-events").read_text())
for seed in range(first, first + count):
    source, kills = random.Random(seed), 0
    while kills < 5:
        status = forked(f"{base}/killed{seed}", source.randint(1, events // 2))
        assert status in (0, signal.SIGKILL), status
        kills += status == signal.SIGKILL
        if status == 0:  # it was over; the next begins anew
            os.rename(f"{base}/killed{seed}", f"{base}/killed{seed}-{kills}")
    assert forked(f"{base}/killed{seed}") == 0
print(events)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "count"), [(0, 1), pytest.param(1, 16, marks=pytest.mark.long)], ids=["five kills", "eighty kills"]
)
def test_a_kill_between_any_two_files_changes_nothing(tmp_path, first, count):
    words = [sys.executable, "-c", AT_EVERY_FILE, str(tmp_path), str(first), str(count)]
    done = subprocess.run(words, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 60
    runs = list(tmp_path.glob("killed*"))
    runs = [run for run in runs if run.is_dir()]
    assert len(runs) >= count
    for run in runs:
        assert_same_bits(tmp_path / "whole", run)
        assert list(run.rglob(".*")) == []
        for name in ("config.json", "checkpoint/latest.safetensors", "evaluation.safetensors"):
            assert (run / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


LIMITED = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("room", [-1000, 300], ids=["at the first checkpoint", "at a later one"])
def test_a_run_that_met_a_full_disk_goes_on_as_if_nothing_had_been(whole, tmp_path, room):
    """The operating system itself refuses to let files grow (a file-size limit stands in for a full disk)."""
    kill_after(tmp_path / "probe", 1, 0)
    limit = (tmp_path / "probe" / "checkpoint" / "latest.safetensors").stat().st_size + room
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def run(code, out):
        words = [sys.executable, "-c", code, str(tmp_path / out)]
        return subprocess.run(words, env=environment, capture_output=True, text=True)

    met = run(LIMITED.format(limit=limit) + SCRIPT, "full")
    assert met.returncode != 0
    assert "OSError" in met.stderr.splitlines()[-1]
    assert "could not write" in met.stderr.splitlines()[-1]
    assert lines_of(tmp_path / "full" / "log.jsonl") == (0 if room < 0 else 5)
    assert run(SCRIPT, "full").returncode == 0
    assert_same_bits(whole, tmp_path / "full")


def test_a_full_disk_costs_one_sentence_and_no_checkpoint(whole, tmp_path):
    """The old file stays, to the byte, and no part of the new one is left."""
    shutil.copytree(whole, tmp_path / "run")
    before = (tmp_path / "run" / "checkpoint" / "latest.safetensors").read_bytes()
    limited = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
        "from pathlib import Path\n"
        "from opu.files import write_state\n"
        "import torch\n"
        f"write_state(Path({str(tmp_path / 'run' / 'checkpoint' / 'latest.safetensors')!r}), {{'w': torch.zeros(10000)}})\n"
    )
    done = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True)
    assert done.returncode != 0
    assert "could not write" in done.stderr
    assert "What was there before is untouched" in done.stderr
    assert (tmp_path / "run" / "checkpoint" / "latest.safetensors").read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir()) == ["latest.safetensors"]


# Which epoch is kept: a run whose last epochs are ruined


class Ruin(torch.optim.Adam):
    """Gradient steps, and nonsense once the learning rate has fallen to a third: that depends on the step alone."""

    def step(self, closure=None):
        if self.param_groups[0]["lr"] > 0.0033:
            return super().step(closure)
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.add_(0.1)


class Killed(BaseException):
    """Stands in for a kill."""


def ruined(out, *, resume=False, killed_at=None, checkpoint_every=5):
    """A student and the result of a run that gets worse at the end, or that is killed before a step."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    dropout, calls = opu.teachers.MCDropout(net), 0

    def teacher(x, num_particles):
        nonlocal calls
        calls += 1
        if calls == killed_at:
            raise Killed
        return dropout(x, num_particles)

    student, x = opu.students.mlp(4, 3, (16,)), torch.randn(120, 4)
    if resume:
        torch.manual_seed(1)  # everything must come from the checkpoint
    recipe = opu.Recipe(epochs=8, batch_size=16, num_particles=8, checkpoint_every=checkpoint_every,
                        learning_rate=1e-2, optimizer=Ruin)  # fmt: skip
    return student, opu.distill(teacher, student, x, recipe=recipe, out=out, resume=resume, progress=False)


@pytest.mark.filterwarnings("ignore:epoch . of 8 was kept", "ignore:the log-precision of")
@pytest.mark.parametrize("killed_at", [8, 31, 45, 55, None], ids=lambda step: f"before call {step}")
def test_the_same_epoch_is_kept_after_a_kill(tmp_path, killed_at):
    expected, whole = ruined(tmp_path / "whole")
    assert 1 < whole.best_epoch < 7
    try:
        ruined(tmp_path / "killed", killed_at=killed_at)
    except Killed:
        assert killed_at is not None
    found, resumed = ruined(tmp_path / "killed", resume=True)
    assert resumed == whole
    for name, w in expected.state_dict().items():
        assert torch.equal(w, found.state_dict()[name]), name


def as_of_old(checkpoint: Path) -> dict:
    """Rewrite a checkpoint as version 0.1 wrote it: the lowest mean and its weights, and no losses per input."""
    state = read_state(checkpoint)
    selection = state.pop("selection")
    state |= {"best_value": -1.0, "best_weights": selection["best_weights"], "best_epoch": selection["best_epoch"]}
    write_state(checkpoint, state)
    return state


@pytest.mark.filterwarnings("ignore:epoch . of 8 was kept", "ignore:the log-precision of")
def test_an_old_checkpoint_is_read_and_goes_on(tmp_path):
    with pytest.raises(Killed):
        ruined(tmp_path / "run", killed_at=45)
    as_of_old(tmp_path / "run" / "checkpoint" / "latest.safetensors")
    _, done = ruined(tmp_path / "run", resume=True)
    assert len(done.held_out) == 8
    assert 1 <= done.best_epoch <= 8


@pytest.mark.filterwarnings("ignore:epoch . of 8 was kept", "ignore:the log-precision of")
def test_an_old_run_that_was_over_keeps_the_epoch_it_kept(tmp_path):
    ruined(tmp_path / "run", checkpoint_every=6)
    state = as_of_old(tmp_path / "run" / "checkpoint" / "latest.safetensors")
    student, done = ruined(tmp_path / "run", resume=True, checkpoint_every=6)
    assert done.best_epoch == state["best_epoch"] < 8
    for name, w in state["best_weights"].items():
        assert torch.equal(w, student.state_dict()[name]), name
