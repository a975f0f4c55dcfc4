"""Benchmarks: all implementations of a teacher draw from one posterior, and commands write where they say."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from benchmarks import bfloat16, clock, distill, families, objectives, options, passes, predict, show
from opu.cli import app
from opu.teachers import MCDropout
from reproduction.paper.domains import Domain
from reproduction.paper.models import Scale


def test_all_implementations_of_the_teacher_draw_from_one_posterior():
    net = passes.dropout_mlp(6, (16, 12), 3)
    x, count = torch.randn(4, 6), 20_000
    calls = {
        "loop": lambda: passes.loop(net, x, count // 4),
        "vectorised": lambda: passes.vectorised(MCDropout(net), x, count, 3),
        "one mask": lambda: passes.vectorised(MCDropout(net, consistent=True), x, count, 3),
        "folded": lambda: passes.Folded(net, torch.float32, 64)(x, count),
        "kept": lambda: passes.KeptUnits(net, torch.float32, 64)(x, count // 4),
    }
    with torch.no_grad():
        found = {name: call() for name, call in calls.items()}
    # A particle's probability has a standard deviation below one half.
    most = 5 * 0.5 / (count // 4) ** 0.5 * 2**0.5
    for mean, entropy in found.values():
        torch.testing.assert_close(mean.sum(-1), torch.ones(4))
        assert (mean - found["loop"][0]).abs().max() < most
        assert (entropy - found["loop"][1]).abs().max() < most
    assert not net.training


def test_a_row_that_does_not_compile_leaves_a_note():
    setup = predict.Setup("cpu", 3, True)

    def broken(x: Any) -> None:
        raise RuntimeError

    assert predict._if_it_compiles(setup, lambda: broken)(3) is None
    assert setup.notes == {"torch.compile": "RuntimeError: RuntimeError"}  # an error without a message
    assert predict._if_it_compiles(setup, lambda: len)(3) is len


def test_a_teacher_is_compared_in_its_own_precision():
    rows = {"teacher, a": {"seconds": 3.0}, "teacher, b": {"seconds": 2.0}, "teacher, c, bfloat16": {"seconds": 1.0}}
    assert show.fastest_teacher(rows) == "teacher, b"
    assert show.fastest_teacher(rows, beside="student, bfloat16") == "teacher, c, bfloat16"


def test_a_slow_call_is_timed_once_and_a_part_is_scaled(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(clock, "now", lambda: now[0])
    called = {"slow": 0, "fast": 0, "part": 0}

    def call(name: str, seconds: float) -> None:
        called[name] += 1
        now[0] += seconds

    calls = {name: lambda n=name, s=s: call(n, s) for name, s in {"slow": 10.0, "fast": 0.01, "part": 1.0}.items()}
    found = {name: each.summary() for name, each in clock.take_turns(calls, 3, parts={"part": 0.04}).items()}
    assert called["slow"] == found["slow"]["times"] == 1
    assert {name: each["seconds"] for name, each in found.items()} == pytest.approx(
        {"slow": 10.0, "fast": 0.01, "part": 25.0}
    )
    assert found["part"]["part"] == 0.04
    assert "part" not in found["fast"]


def test_the_precision_of_products_is_put_back():
    before = torch.get_float32_matmul_precision()
    with clock.matmul_precision("high"):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


def test_results_change_only_if_asked_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(clock, "SHORTEST", 0.0)
    small = ["--inputs", "3", "--particles", "4", "--classes", "3", "--rounds", "1"]
    objectives.main(small)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")] == ["runs/bench-objectives.json"]
    objectives.main([*small, "--record"])
    found = json.loads((tmp_path / "results" / "bench-objectives.json").read_text())
    assert found["settings"] == {"inputs": 3, "particles": 4, "classes": 3, "rounds": 1, "seed": 0}
    assert found["kernels"].keys() == objectives.KERNELS.keys()
    with pytest.raises(ValueError, match="--out or --record, not both"):
        objectives.main([*small, "--record", "--out", "x.json"])


def test_predict_times_teachers_students_and_exports(tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "HIDDEN", (16, 16))
    monkeypatch.setattr(predict, "STUDENTS", {"student": False})
    monkeypatch.setattr(predict, "EXPORTS", {"ONNX": False})
    monkeypatch.setattr(predict, "CALIBRATION", 100)
    monkeypatch.setattr(clock, "SHORTEST", 0.0)
    monkeypatch.setattr(clock, "peak_memory", lambda call: float(call() is None))  # a measurement takes a while
    monkeypatch.chdir(tmp_path)
    command = ["bench", "predict", "--particles", "4", "--batch", "1,30", "--rounds", "1", "--no-compiled"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    found = json.loads((tmp_path / "runs" / "bench-predict-cpu.json").read_text())
    assert list(found["batches"]) == ["1", "30"]
    for rows in found["batches"].values():
        assert {"teacher, loop", "one network", "student", "student, ONNX, all measures"} <= rows.keys()
        assert all(0 < row["least"] <= row["seconds"] <= row["most"] for row in rows.values())
    assert found["environment"]["versions"]["torch"]
    assert "fastest teacher / this" in result.stdout


def test_families_are_timed_in_turns_on_every_runtime(tmp_path, monkeypatch):
    monkeypatch.setattr(families, "CLASSES", (3,))
    monkeypatch.setattr(families, "HIDDEN", (8,))
    families.main(["--rounds", "1", "--largest", "20", "--out", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())["seconds"]
    assert list(found) == ["3 classes, batch of 1", "3 classes, batch of 20"]
    expected = {f"{family}, {runtime}" for family in families.FAMILIES for runtime in ("PyTorch", "ONNX Runtime")}
    assert all(set(each) == expected and min(row["least"] for row in each.values()) > 0 for each in found.values())


def test_distill_times_steps_by_objective_and_size(tmp_path, monkeypatch):
    tiny = distill.Size(2, 3, 8)
    monkeypatch.setattr(distill, "OBJECTIVES", ("kl",))
    monkeypatch.setattr(distill, "GROWN", ("kl",))
    monkeypatch.setattr(distill, "Size", lambda particles: tiny)
    monkeypatch.setattr(distill, "sizes_around", lambda usual: {"classes": [usual, replace(usual, classes=5)]})
    monkeypatch.setattr(distill, "distill_mnist", lambda *_: {"seconds": 9.0, "accuracy": 98.0, "teacher_accuracy": 99})
    monkeypatch.setattr(distill, "mnist", lambda: None)
    out = tmp_path / "bench.json"
    command = ["bench", "distill", "--rounds", "1", "--particles", "2", "--full", "--out", str(out)]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    found = json.loads(out.read_text())
    assert found["objectives"].keys() == {"kl", "default"}
    assert [row["size"]["classes"] for row in found["growth"]["classes"]] == [3, 5]
    assert found["full"]["seconds"] == 9.0
    assert "this / KL" in result.stdout


def test_quality_is_measured_beside_speed():
    x, labels = torch.rand(80, 28, 28), torch.arange(80) % 10
    domain = Domain("noise", 10, x, labels, x, labels, x, labels, {"brighter": 3 * x})
    scale = Scale(teacher_epochs=1, epochs=1, step_particles=2, hidden=(8, 8))
    found = bfloat16.compare(domain, scale, torch.device("cpu"), "float32")
    assert found["backend"] in ("plain", "stacked")
    assert {"predictive_entropy/brighter", "novelty/brighter"} <= found["auroc"].keys()
    assert found["worst"] < 1  # the same precision, so rounding alone
    full = distill.distill_mnist(domain, scale, torch.device("cpu"))
    assert full["particles"] == 2
    assert 0 <= full["total_variation"] <= 1
    assert full["ood_by_novelty"]["brighter"] == pytest.approx(found["auroc"]["novelty/brighter"][0])


@pytest.mark.parametrize("sizes", ["0", "1,x", "", "1,-3"])
def test_a_batch_size_that_is_none_is_refused(sizes):
    with pytest.raises(ValueError, match="--batch takes whole numbers of at least 1"):
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
    step = {"seconds": 0.002, "least": 0.001, "most": 0.003}
    found = {
        "device": "cuda",
        "usual": {"batch": 256, "particles": 64, "classes": 10},
        "inputs_per_epoch": 60_000,
        "objectives": {"kl": step},
        "banked": {"kl": step},
        "growth": {},
        "alone": {"kl": 0.1, "mmd": 0.2},
        "alone_captured": {"kl": 0.01, "mmd": 0.025},
        "full": {"seconds": 29.3, "accuracy": 98.25, "teacher_accuracy": 98.26},
    }
    show.show_distill(found, Console(width=120))
    shown = capsys.readouterr().out
    assert "2 ms (1 ms to 3 ms)" in shown
    assert "29.3 s; accuracy 98.25 % (teacher 98.26 %)" in shown
    assert "MMD costs 2x of KL" in shown
    assert "as CUDA graphs: MMD costs 2.5x of KL" in shown
