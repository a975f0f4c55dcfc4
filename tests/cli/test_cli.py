"""The command line as a user meets it: real processes, exit codes, one line for a mistake."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

OPU = Path(sys.executable).with_name("opu")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}


def opu(*words, **options):
    return subprocess.run([OPU, *map(str, words)], capture_output=True, text=True, env=ENVIRONMENT, **options)


def assert_one_line_and_exit_2(done, *parts):
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr


def test_version_and_help():
    from opu import __version__

    assert opu("version").stdout.strip() == __version__
    assert "demo" in opu("--help").stdout
    assert "demo" in opu().stdout


def test_mistakes_cost_one_line(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    done = opu("demo", "--out", tmp_path)
    assert_one_line_and_exit_2(done, "exists and is not empty", "nothing in it was changed")
    assert len(done.stderr.strip().splitlines()) == 1
    done = opu("demo", "--out", tmp_path, "--overwrite")
    assert_one_line_and_exit_2(done, "does not look like a run of ours")
    assert (tmp_path / "precious.txt").read_text() == "mine"
    done = opu("demo", "--out", tmp_path / "precious.txt" / "run")
    assert_one_line_and_exit_2(done, "cannot be made")
    assert_one_line_and_exit_2(opu("demo", "--seed", "minus one"), "--seed")
    for words, part in (
        (("dmeo",), "dmeo"),
        (("fit", "x.csv", "--out", "r"), "--target"),
        (("demo", "--nope"), "--nope"),
    ):
        done = opu(*words)
        assert_one_line_and_exit_2(done, part, "See opu --help")
        assert len(done.stderr.strip().splitlines()) == 1
    done = opu("reproduce", "figure", "--quick", "--out", tmp_path / "figure")
    assert_one_line_and_exit_2(done, "--rows and --quick do not go with it")


def test_a_full_gpu_is_one_line_and_a_fault_of_ours_is_not(monkeypatch, capsys):
    from opu import cli

    def failing(text):
        def fail(**_):
            raise RuntimeError(text)

        return fail

    monkeypatch.setattr(cli, "app", failing("CUDA out of memory. Tried to allocate 20.00 GiB."))
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert capsys.readouterr().err.startswith("opu: the GPU's memory is full; free some of it")
    monkeypatch.setattr(cli, "app", failing("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"):
        cli.main()


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo itself, run once."""
    out = tmp_path_factory.mktemp("demo") / "run"
    done = opu("demo", "--out", out)
    assert done.returncode == 0, done.stderr
    return out, done


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_a_missing_extra_is_named(tmp_path):
    """As on a machine without the drawing packages."""
    code = (
        f"import sys; sys.modules['mpltern'] = None; sys.argv = ['opu', 'demo', '--out', {str(tmp_path / 'run')!r}]\n"
    )
    code += "from opu.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    assert_one_line_and_exit_2(done, 'pip install "opu[plot]"')
    assert not (tmp_path / "run").exists()
