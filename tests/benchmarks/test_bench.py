"""Benches: all ways to ask a teacher draw from one posterior, and the commands write what they say."""

import json
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from benchmarks import clock, distill, passes, predict, show
from opu.cli import app
from opu.teachers import MCDropout


def test_every_way_to_ask_the_teacher_gives_the_same_law():
    torch.manual_seed(0)
    net = passes.dropout_mlp(6, (16, 12), 3)
    x, count = torch.randn(4, 6), 20_000
    ways = {
        "loop": lambda: passes.loop(net, x, count // 4),
        "vectorised": lambda: passes.vectorised(MCDropout(net), x, count, 3),
        "one mask": lambda: passes.vectorised(MCDropout(net, consistent=True), x, count, 3),
        "folded": lambda: passes.Folded(net, torch.float32, 64)(x, count),
        "kept": lambda: passes.KeptUnits(net, torch.float32, 64)(x, count // 4),
    }
    with torch.no_grad():
        found = {name: way() for name, way in ways.items()}
    for mean, entropy in found.values():
        torch.testing.assert_close(mean.sum(-1), torch.ones(4))
        # A particle's probability has a standard deviation below one half.
        assert (mean - found["loop"][0]).abs().max() < 5 * 0.5 / (count // 4) ** 0.5 * 2**0.5
        assert (entropy - found["loop"][1]).abs().max() < 5 * 0.5 / (count // 4) ** 0.5 * 2**0.5
    assert not net.training


def test_what_does_not_compile_is_left_out_with_its_reason():
    notes: dict[str, str] = {}

    def broken(x: Any) -> None:
        raise RuntimeError

    assert predict._where_it_compiles(lambda: broken, "cpu", notes)(3) is None
    assert notes == {"torch.compile": "RuntimeError: RuntimeError"}  # an error that says nothing
    assert predict._where_it_compiles(lambda: len, "cpu", notes)(3) is len


def test_a_teacher_is_compared_in_its_own_precision():
    ways = {"teacher, a": {"seconds": 3.0}, "teacher, b": {"seconds": 2.0}, "teacher, c, bfloat16": {"seconds": 1.0}}
    assert show.fastest_teacher(ways) == "teacher, b"
    assert show.fastest_teacher(ways, beside="student, bfloat16") == "teacher, c, bfloat16"


def test_a_slow_way_is_called_once_and_a_part_is_scaled(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(clock, "_now", lambda: now[0])
    called = {"slow": 0, "fast": 0, "part": 0}

    def way(name: str, seconds: float) -> Any:
        def call() -> None:
            called[name] += 1
            now[0] += seconds

        return call

    ways = {"slow": way("slow", 10.0), "fast": way("fast", 0.01), "part": way("part", 1.0)}
    found = clock.take_turns(ways, 3, heavy={"part": 25.0})
    assert called["slow"] == 1
    assert found["slow"]["seconds"] == pytest.approx(10.0)
    assert found["fast"]["seconds"] == pytest.approx(0.01)
    assert found["part"]["seconds"] == pytest.approx(25.0)
    assert found["part"]["part"] == pytest.approx(0.04)


def test_predict_times_teachers_students_and_exports(tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "HIDDEN", (16, 16))
    monkeypatch.setattr(clock, "SHORTEST", 0.0)
    out = tmp_path / "bench.json"
    command = [
        "bench",
        "predict",
        "--particles",
        "4",
        "--batch",
        "1,30",
        "--rounds",
        "1",
        "--no-compiled",
        "--out",
        str(out),
    ]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    found = json.loads(out.read_text())
    assert list(found["batches"]) == ["1", "30"]
    for ways in found["batches"].values():
        assert {"teacher, loop", "one network", "student", "student, ONNX int8, all measures"} <= ways.keys()
        assert all(0 < way["least"] <= way["seconds"] <= way["most"] for way in ways.values())
    assert found["environment"]["versions"]["torch"]
    assert show.fastest_teacher(found["batches"]["30"]).startswith("teacher, ")


def test_distill_times_steps_by_objective_and_size(tmp_path, monkeypatch):
    monkeypatch.setattr(distill, "OBJECTIVES", ("kl", "mmd"))
    monkeypatch.setattr(distill, "Size", lambda particles: TINY(particles))
    monkeypatch.setattr(distill, "sizes_around", lambda usual: {"classes": [usual, distill.replace(usual, classes=5)]})
    out = tmp_path / "bench.json"
    command = ["bench", "distill", "--rounds", "1", "--particles", "2", "--out", str(out)]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    found = json.loads(out.read_text())
    assert found["objectives"].keys() == {"kl", "mmd", "default"}
    assert [row["size"]["classes"] for row in found["growth"]["classes"]] == [3, 5]
    assert "this / KL" in result.stdout


def TINY(particles: int) -> Any:
    return Size(particles, 3, 8)


Size = distill.Size


@pytest.mark.parametrize("sizes", ["0", "1,x", "", "1,-3"])
def test_sizes_that_are_none_are_refused(sizes):
    with pytest.raises(ValueError, match="such as 1,10000"):
        CliRunner().invoke(app, ["bench", "predict", "--batch", sizes], catch_exceptions=False)


@pytest.mark.parametrize("which", ["predict", "distill"])
def test_a_gpu_that_is_not_there_is_refused(which, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"cuda|GPU"):
        CliRunner().invoke(app, ["bench", which, "--device", "cuda"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("seconds", "words"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (45e-6, "45 us"), (3e-9, "3 ns"), (125.0, "125 s")]
)
def test_times_in_words(seconds, words):
    assert show.in_words(seconds) == words


def test_a_file_with_everything_is_shown(capsys):
    whole = {"seconds": 29.3, "accuracy": 98.25, "teacher_accuracy": 98.26}
    step = {"seconds": 0.002, "least": 0.001, "most": 0.003}
    found = {
        "device": "cuda",
        "usual": {"batch": 256, "particles": 64, "classes": 10},
        "inputs_per_epoch": 60_000,
        "objectives": {"kl": step},
        "banked": {"kl": step},
        "growth": {},
        "alone": {"kl": 0.1, "mmd": 0.2},
        "alone_recorded": {"kl": 0.01, "mmd": 0.025},
        "full": whole,
    }
    show.show_distill(found, Console(width=120))
    said = capsys.readouterr().out
    assert "29.3 s; accuracy 98.25 % (teacher 98.26 %)" in said
    assert "MMD costs 2x of KL" in said
    assert "recorded: MMD costs 2.5x of KL" in said
