"""`opu demo --overwrite` replaces an earlier demo and nothing else, and an old run stays until the new one is whole."""

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict

import pytest

import opu
from opu.cli import main
from opu.demo.run import Settings
from opu.distillation.kinds import DEMO, FIT, kind_of
from opu.distillation.locking import LOCK, alone_in
from opu.distillation.replacing import put_back

# A demo of seconds, in a process of its own; the words behind the path are its seed and the phase in which it waits.
SMALL = """if True:
    import functools, pathlib, sys, time
    from opu.demo import run
    sizes = {"hidden": 8, "teacher_epochs": 1, "epochs": 2, "num_particles": 4, "evaluation_particles": 10}
    run.Settings = functools.partial(run.Settings, **sizes)
    out, seed, phase = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    run.plotting.missing = lambda: "no pictures"

    def waiting(*_):
        (out.parent / "ready").touch()
        time.sleep(1000)

    if phase == "evaluation":
        run.compare = waiting
    elif phase == "swap":  # the old run is aside, and the new one not yet in its place
        rename = pathlib.Path.rename
        pathlib.Path.rename = lambda self, to: waiting(self) if self.suffix == ".part" else rename(self, to)
    run.run_demo(out, seed=seed, overwrite=True)
"""


def small_demo(out, seed, phase="none"):
    return subprocess.Popen([sys.executable, "-c", SMALL, out, str(seed), phase], stdout=subprocess.DEVNULL)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def a_demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "run"
    assert small_demo(out, 0).wait() == 0
    return out


@pytest.fixture
def run(a_demo, tmp_path):
    return shutil.copytree(a_demo, tmp_path / "run")


def refused(monkeypatch, capsys, out):
    monkeypatch.setattr("sys.argv", ["opu", "demo", "--out", str(out), "--overwrite"])
    before = contents(out)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert contents(out) == before
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": {"architectures": ["BertModel"]}},
        {"config.json": {"distill": {}}, "metrics.json": {"accuracy": 1.0, "settings": {"hidden": 3}}},
        {"config.json": [], "metrics.json": {"settings": asdict(Settings())}},
    ],
    ids=["model of others", "run of distill", "no object"],
)
def test_a_folder_that_no_demo_wrote_is_refused_and_untouched(files, tmp_path, monkeypatch, capsys):
    out = tmp_path / "mine"
    (out / "data").mkdir(parents=True)
    (out / "data" / "weights.bin").write_text("precious")
    for name, value in files.items():
        (out / name).write_text(json.dumps(value))
    assert "is not a run of `opu demo`, so it is not overwritten" in refused(monkeypatch, capsys, out)


OF_A_USER = ["notes.md", "mine/a.txt", "student/data.csv", "checkpoint/old/a", "roc.png/a"]
OF_A_USER += ["student/simplex.png", "checkpoint/config.json", "model.safetensors"]  # our names, elsewhere


@pytest.mark.parametrize("name", OF_A_USER)
def test_files_of_a_user_are_kept(name, run, monkeypatch, capsys):
    (run / name).parent.mkdir(exist_ok=True, parents=True)
    (run / name).write_text("mine")
    assert "which `opu demo` did not write; move it elsewhere" in refused(monkeypatch, capsys, run)


def test_a_run_goes_on_undisturbed_and_the_lock_of_a_killed_one_does_not_matter(run, monkeypatch, capsys):
    with alone_in(run):
        monkeypatch.setattr("sys.argv", ["opu", "demo", "--out", str(run), "--overwrite"])
        with pytest.raises(SystemExit):
            main()
        assert "is in use by another run of this process" in capsys.readouterr().err
    assert (run / "student").is_dir()
    (run / LOCK).touch()
    process = small_demo(run, 1)
    assert process.wait() == 0
    assert json.loads((run / "metrics.json").read_text())["seed"] == 1


def test_a_demo_is_known_by_what_it_wrote(run):
    assert kind_of(run) is DEMO
    assert DEMO.others(run) == []
    assert FIT.others(run)


@pytest.mark.parametrize(("phase", "seed"), [("evaluation", 0), ("swap", 1)])
def test_a_killed_demo_leaves_the_old_run_or_the_new_one(phase, seed, run):
    process = small_demo(run, 1, phase)
    while not (run.parent / "ready").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    note = put_back(run)
    assert (note is not None) == (phase == "swap"), note
    assert json.loads((run / "metrics.json").read_text())["seed"] == seed
    assert opu.load(run).novelty is not None
    assert small_demo(run, 2).wait() == 0  # which removes what the killed one left
    assert json.loads((run / "metrics.json").read_text())["seed"] == 2
    assert [path.name for path in run.parent.iterdir() if path.name not in ("run", "ready")] == []
