"""``opu fidelity``: on a run folder, on a student with arrays in files, and on mistakes."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch

import opu
from opu.cli import main
from opu.distillation.outcome import EVALUATION, keep_evaluation
from opu.distillation.run_folder import class_names
from opu.files import read_state, write_state


def run(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["opu", "fidelity", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.fixture
def teacher():
    weights = torch.randn(40, 4, 3)
    return lambda x, num_particles: (x @ weights[:num_particles]).log_softmax(-1)


@pytest.fixture
def folder(tmp_path, teacher):
    x = torch.randn(60, 4)
    student = opu.students.mlp(4, 3, (16,))
    opu.distill(teacher, student, x, recipe=opu.Recipe(epochs=3), progress=False)
    student.save(tmp_path / "run" / "student")
    keep_evaluation(tmp_path / "run", teacher, x[:20], torch.randint(3, (20,)), x, num_particles=40)
    return tmp_path / "run"


def test_a_run_is_reported_on(folder, monkeypatch, capsys):
    assert run(monkeypatch, folder) == 0
    said = " ".join(capsys.readouterr().out.split())
    found = json.loads((folder / "fidelity.json").read_text())
    assert found["sentence"] in said
    assert "20 inputs, 40 particles each" in said
    assert set(found["mmd"]) == {"total", "noise", "family", "amortisation", "bound"}
    assert found["mmd"]["amortisation"] <= found["mmd"]["bound"] + 1e-6
    assert "amortisation_on_seen_inputs" in found
    assert "nearest Dirichlet to that distribution (family gap)" in said
    assert found["families"]["sentence"] in said
    assert "particles within 90 % intervals of the predicted class" in said
    deciles = found["coverage"]["by_decile"]
    assert deciles["num_inputs"] == [2] * 10
    cells = " ".join(f"{share:.0f}" for share in deciles["predicted"])
    assert f"student {cells} " in said
    for name in ("Dirichlet, most likely", "logistic-normal, rank 1", "particles themselves"):
        assert said.count(name) == 2  # coverage by decile, and all else
    assert [each["amortisation"] for each in found["worst"]] == sorted(
        (each["amortisation"] for each in found["worst"]), reverse=True
    )
    assert (folder / "fidelity.png").stat().st_size > 10_000


def test_names_of_folders_and_classes_are_never_markup(folder, tmp_path, monkeypatch, capsys):
    odd = folder.rename(tmp_path / "[bold]run")
    assert run(monkeypatch, odd, "--classes", "[red],[/b],c") == 0
    assert "[bold]run" in "".join(capsys.readouterr().out.split())
    assert run(monkeypatch, odd, "--classes", "[red],[/b]") == 2
    assert "--classes must name all 3 classes; got 2: [red], [/b]." in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("content", "given", "expected"),
    [
        ({"classes": ["no", "yes"]}, [], ["no", "yes"]),
        ({"classes": [0, 1]}, None, ["0", "1"]),
        ({"classes": ["no", "yes"]}, ["a", "b"], ["a", "b"]),
        ({"classes": ["no", "yes", "perhaps"]}, [], None),
        ({}, [], None),
        (None, [], None),
    ],
)
def test_names_of_classes_come_from_the_user_or_the_run(tmp_path, content, given, expected):
    if content is not None:
        (tmp_path / "metrics.json").write_text(json.dumps(content))
    assert class_names(tmp_path, given, 2) == expected


def test_a_student_of_ones_own_needs_inputs_and_particles(folder, teacher, tmp_path, monkeypatch, capsys):
    x = torch.randn(12, 4)
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "p.npy", teacher(x, 40).exp().numpy())
    np.save(tmp_path / "y.npy", np.arange(12) % 3)
    words = ("--inputs", tmp_path / "x.npy", "--particles", tmp_path / "p.npy", "--labels", tmp_path / "y.npy")
    assert run(monkeypatch, folder / "student", *words) == 0
    found = json.loads((folder / "student" / "fidelity.json").read_text())
    assert found["num_inputs"] == 12
    assert found["calibration"]["student"]["accuracy"] >= 0

    capsys.readouterr()
    assert run(monkeypatch, folder / "student") == 0  # which finds the particles of the run around it
    alone = shutil.copytree(folder / "student", tmp_path / "alone")
    capsys.readouterr()
    assert run(monkeypatch, alone) == 2
    assert "holds no evaluation.safetensors" in " ".join(capsys.readouterr().err.split())
    assert run(monkeypatch, folder, "--labels", tmp_path / "y.npy") == 2
    assert "go with --inputs and --particles" in " ".join(capsys.readouterr().err.split())
    assert run(monkeypatch, folder, "--inputs", tmp_path / "x.npy") == 2
    assert "--inputs and --particles belong together" in " ".join(capsys.readouterr().err.split())
    assert run(monkeypatch, tmp_path, *words) == 2
    assert "there is no saved student" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "x.txt").write_text("1")
    assert run(monkeypatch, folder, "--inputs", tmp_path / "x.txt", "--particles", tmp_path / "p.npy") == 2
    assert "read from .npy files; got 'x.txt'" in " ".join(capsys.readouterr().err.split())
    np.save(tmp_path / "x.npy", x[:5].numpy())
    assert run(monkeypatch, folder, *words[:4]) == 2
    assert "got 5 inputs for particles of shape" in " ".join(capsys.readouterr().err.split())


def test_a_logistic_normal_student_is_reported_on(tmp_path, teacher, monkeypatch, capsys):
    x = torch.randn(30, 4)
    opu.students.mlp(4, 3, (8,), family="logistic_normal").save(tmp_path / "student")
    keep_evaluation(tmp_path, teacher, x, None, x, num_particles=40)
    assert run(monkeypatch, tmp_path) == 0
    assert "nearest logistic-normal to that distribution (family gap)" in " ".join(capsys.readouterr().out.split())
    assert json.loads((tmp_path / "fidelity.json").read_text())["family"] == "logistic_normal"
    assert (tmp_path / "fidelity.png").stat().st_size > 10_000


def test_an_ensemble_is_told_from_samples(tmp_path, teacher, monkeypatch, capsys):
    x = torch.randn(25, 4)
    opu.students.mlp(4, 3, (8,)).save(tmp_path / "student")
    keep_evaluation(tmp_path, lambda x, s: teacher(x, 5)[torch.arange(s) % 5], x, None, x, num_particles=40)
    assert run(monkeypatch, tmp_path) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "25 inputs, 40 particles each, 5 of them different" in said
    assert "fitted with one of the 5 different particles left out in turn" in said
    assert "particles themselves" not in said


def test_two_classes_are_drawn_too(tmp_path, monkeypatch):
    weights = torch.randn(30, 2, 2)
    x = torch.randn(25, 2)
    opu.students.mlp(2, 2, (8,)).save(tmp_path / "student")
    keep_evaluation(tmp_path, lambda x, s: (x @ weights[:s]).log_softmax(-1), x, None, x, num_particles=30)
    assert run(monkeypatch, tmp_path) == 0
    assert (tmp_path / "fidelity.png").is_file()
    assert "calibration" not in json.loads((tmp_path / "fidelity.json").read_text())


def test_without_matplotlib_the_table_comes_with_advice(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(monkeypatch, folder) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert 'Pictures need matplotlib; install it with: pip install "one-pass-uncertainty[plot]".' in said
    assert "20 inputs, 40 particles each" in said
    assert (folder / "fidelity.json").is_file()
    assert not (folder / "fidelity.png").exists()


def test_inputs_of_two_lengths_are_not_compared(folder, monkeypatch, capsys):
    state = read_state(folder / EVALUATION)
    write_state(folder / EVALUATION, state | {"seen": torch.cat([state["seen"], state["seen"]], 1)})
    assert run(monkeypatch, folder) == 0
    assert "have another shape than the others, so they are left out here" in " ".join(capsys.readouterr().out.split())
    assert json.loads((folder / "fidelity.json").read_text())["num_inputs"] == 20
