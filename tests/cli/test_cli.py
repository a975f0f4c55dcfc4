"""The command line as a user meets it: real processes, exit codes, one line for a mistake."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from opu import __version__
from opu.cli import entry, main

OPU = Path(sys.executable).with_name("opu")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}


def opu(*words, **options):
    return subprocess.run([OPU, *map(str, words)], capture_output=True, text=True, env=ENVIRONMENT, **options)


@pytest.fixture
def call(monkeypatch, capsys):
    """The command line within this process: exit code, and what it printed."""

    def call(*words):
        monkeypatch.setattr("sys.argv", ["opu", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code, capsys.readouterr()

    return call


def test_a_real_process_says_its_version_and_refuses_a_wrong_command():
    assert opu("--version").stdout.strip() == __version__
    done = opu("dmeo")
    assert done.returncode == 2
    assert "dmeo" in done.stderr
    assert done.stderr.strip().endswith("See opu --help.")
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_module_is_the_command():
    def module(*words):
        command = [sys.executable, "-m", "opu", *words]
        return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)

    assert module("--version").stdout.strip() == __version__
    assert "Usage: python -m opu demo" in module("demo", "--help").stdout
    done = module("demo", "--seed", "x")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.strip().endswith("See python -m opu --help.")


def test_version_as_a_command_still_works_and_is_not_shown(call):
    assert call("version") == call("--version")
    assert call("version")[1].out.strip() == __version__
    assert "│ version " not in call("--help")[1].out


def test_help_imports_no_torch():
    code = (
        "import sys; from opu.cli import app; app(['--help'], standalone_mode=False); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr


def test_help_names_every_command(call):
    commands = ("demo", "fit", "predict", "fidelity", "export", "data", "reproduce", "compare", "tables", "bench")
    for words in (("--help",), ()):
        _, said = call(*words)
        assert all(command in said.out for command in commands)
        assert not said.err


def test_help_tells_users_from_maintainers(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, said = call("--help")
    users, maintainers = said.out.split("For maintainers")
    assert "need a source checkout" in maintainers
    for command in ("demo", "fit", "predict", "fidelity", "export"):
        assert f"│ {command} " in users
    for command in ("reproduce", "compare", "tables", "data", "bench"):
        assert f"│ {command} " in maintainers


MAINTAINERS = (
    "reproduce",
    "compare",
    "tables",
    "data list",
    "data fetch",
    "data verify",
    "bench predict",
    "bench distill",
)


@pytest.mark.parametrize("command", ["demo", "fit", "predict", "fidelity", "export", *MAINTAINERS])
def test_help_of_a_command_has_an_example_and_fits(call, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, said = call(*command.split(), "--help")
    assert code == 0
    assert f"Usage: opu {command}" in said.out
    assert f"Example: opu {command}" in said.out
    about = said.out[: said.out.index("Example:")].splitlines()
    assert all(len(line) <= 80 for line in about)
    # A line that was broken in the source and again by the terminal leaves one or two words on their own.
    assert not [line for line in about if 0 < len(line.split()) <= 2 and not line.rstrip().endswith((".", "change."))]


@pytest.mark.parametrize("command", ["demo", "fidelity"])
def test_help_names_what_is_written(call, command):
    written = {"demo": ("metrics.json", "student/", "simplex.png", "runs/demo"), "fidelity": ("fidelity.json",)}
    _, said = call(command, "--help")
    assert all(name in said.out for name in written[command])


def test_mistakes_cost_one_line(call, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    table = ("reproduce", "figure", "--quick", "--out", tmp_path / "figure")
    for words, part in (
        (("demo", "--out", tmp_path), "exists and is not empty; nothing in it was changed"),
        (("demo", "--out", tmp_path, "--overwrite"), "is not a run of `opu demo`"),
        (("demo", "--out", tmp_path / "precious.txt" / "run"), "cannot be made"),
        (("demo", "--seed", "minus one"), "--seed"),
        (("dmeo",), "dmeo"),
        (("fit", "x.csv", "--out", "r"), "--target"),
        (("demo", "--nope"), "--nope"),
        (("bench", "predict", "--batch", "1 2"), "--batch takes whole numbers of at least 1"),
        (("compare", "--seeds", "a"), "--seeds takes whole numbers"),
        (table, "--rows and --quick do not go with it"),
    ):
        code, said = call(*words)
        assert code == 2, words
        assert part in said.err
        assert len(said.err.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_without_a_checkout_its_commands_say_where_they_work(call, monkeypatch, tmp_path):
    import opu as library

    monkeypatch.setattr(library, "__file__", str(tmp_path / "site-packages" / "opu" / "__init__.py"))
    for words in (("reproduce", "mnist"), ("compare",), ("tables", "README.md"), ("bench", "predict")):
        code, said = call(*words)
        assert code == 2
        assert "needs a source checkout" in said.err


def test_full_memory_is_one_line_and_a_fault_of_ours_is_not(call, monkeypatch):
    def failing(text, kind=RuntimeError):
        def fail(**_):
            raise kind(text)

        return fail

    def too_large(**_):
        torch.empty(2**62, dtype=torch.uint8)

    for full in (too_large, failing("Unable to allocate 8 EiB", MemoryError)):
        monkeypatch.setattr(entry, "app", full)
        code, said = call("demo")
        assert code == 2
        assert said.err == "opu: the memory of this machine is full; free some of it, or give fewer rows at once.\n"
    monkeypatch.setattr(entry, "app", failing("CUDA out of memory. Tried to allocate 20.00 GiB."))
    code, said = call("demo")
    assert code == 2
    assert said.err.startswith("opu: the GPU's memory is full; free some of it")
    monkeypatch.setattr(entry, "app", failing("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"):
        main()


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo itself, run once."""
    out = tmp_path_factory.mktemp("demo") / "run"
    done = opu("demo", "--out", out)
    assert done.returncode == 0, done.stderr
    return out, done


@pytest.mark.long
def test_the_demo_keeps_its_promises(demo):
    out, _ = demo
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["accuracy"]["student"] >= metrics["accuracy"]["teacher"] - 1
    assert set(metrics["ood"]) == {"held_out_class", "inverted", "photographs", "noise"}
    for name, row in metrics["ood"].items():
        best = max(row["teacher"][m]["auroc"] for m in ("predictive_entropy", "least_confidence", "mutual_information"))
        assert row["student"]["novelty"]["auroc"] >= best - 1, name
        low, high = row["student"]["novelty"]["auroc_interval"]
        assert low <= row["student"]["novelty"]["auroc"] <= high
    # Speed is not asserted, only that the ratios are those of the seconds beside them.
    seconds = metrics["speedup"]["seconds"]
    for name in ("naive_loop", "vectorised"):
        assert metrics["speedup"][name] == pytest.approx(seconds[name] / seconds["student"])
    assert {"commit", "cpu", "versions"} <= set(metrics["environment"])


@pytest.mark.long
def test_the_demo_leaves_a_whole_run_folder(demo):
    import opu as library

    out, done = demo
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "metrics.json", "log.jsonl", "student", "checkpoint"} <= names
    for picture in ("simplex.png", "scores.png", "roc.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
        assert (out / picture).stat().st_size > 20_000
    student = library.load(out / "student")
    assert student.novelty is not None
    for name in ("held out class", "inverted", "photographs", "noise", "errors", "times as fast"):
        assert name in done.stdout.replace("\n", " ")
