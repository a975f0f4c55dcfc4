"""Files that leave Python: parity for every architecture, what they hold, and refusals that lose nothing."""

import gzip
import json

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import opu
from opu.cli import main
from opu.export import onnx_file, write
from opu.novelty import Novelty


def backbone():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


# Every architecture with one of the links, so that each link is exported too.
ARCHITECTURES = {
    "mlp": (lambda: opu.students.mlp(6, 4, (16, 8)), (6,)),
    "mlp of images": (lambda: opu.students.mlp(64, 4, (16,), link="softsign(-3, 9)"), (1, 8, 8)),
    "one trunk": (lambda: opu.students.mlp(6, 4, (16, 8), shared_trunk=True, link="exp"), (6,)),
    "lenet": (lambda: opu.students.lenet(3, (1, 16, 16), (4, 6), 20, link="softplus"), (1, 16, 16)),
    "backbone": (lambda: opu.students.from_backbone(backbone(), 12, 5, link="sigmoid(-3, 9)"), (1, 8, 8)),
    "from a teacher": (lambda: opu.students.from_teacher(classifier()), (1, 8, 8)),
    "binary": (lambda: opu.students.binary_mlp(6, 4, (16, 8)), (6,)),
    "pruned": (lambda: opu.students.prune(opu.students.mlp(6, 4, (64, 64)), 0.9), (6,)),
}


def classifier():
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.GELU(), nn.Dropout(), nn.Flatten(), nn.Linear(108, 4)]
    return nn.Sequential(*layers)


def made(name, calibrated=True):
    build, shape = ARCHITECTURES[name]
    student = build().eval()
    if calibrated:
        with torch.no_grad():
            student.novelty = Novelty.fit(student(torch.randn(300, *shape)))
    return student, torch.randn(300, *shape)


@torch.no_grad()
def agrees(student, path, x):
    """The file's outputs beside the library's own measures."""
    said = onnx_file.runner(onnx.load(path))(x.numpy())
    q = student(x)
    expected = {"probabilities": q.mean, "log_precision": q.log_precision}
    expected |= {name: value for name, value in opu.measures.all_measures(q).items() if name in said}
    ranked = {}
    if student.novelty is not None:
        ranked = {"novelty": student.novelty(q), "novelty_p_value": student.novelty.p_value(q)}
    assert said.keys() == expected.keys() | ranked.keys() | {"finite"}
    assert said["finite"].all()
    for name, value in expected.items():
        np.testing.assert_allclose(said[name], value.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
    for name, value in ranked.items():  # where calibration inputs nearly tie, rounding decides between two ranks
        off = np.abs(said[name] - value.numpy())
        assert np.mean(off > 1e-3) <= 0.1, name


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_predicts_as_in_pytorch_for_any_number_of_inputs(name, tmp_path):
    student, x = made(name)
    found = write(student, tmp_path / "student.onnx", x[:8])
    assert max(found.differences.values()) < 1e-4
    for count in (1, 2, 7, 300):
        agrees(student, found.path, x[:count])
    agrees(student, found.path, 100 * x[:20])
    none = onnx_file.runner(onnx.load(found.path))(x[:0].numpy())
    assert {name: len(values) for name, values in none.items()} == dict.fromkeys(found.outputs, 0)


def test_the_latest_opset_that_is_offered_runs(tmp_path):
    student, x = made("mlp")
    path = write(student, tmp_path / "student.onnx", x[:8], opset=onnx_file.OPSETS[-1]).path
    assert {each.domain: each.version for each in onnx.load(path).opset_import}[""] == onnx_file.OPSETS[-1]
    agrees(student, path, x)


def test_the_file_of_a_binary_student_holds_signs(tmp_path):
    students = {"real": opu.students.mlp(64, 4, (128, 128)), "binary": opu.students.binary_mlp(64, 4, (128, 128))}
    sizes = {}
    for name, student in students.items():
        path = write(student, tmp_path / f"{name}.onnx", torch.randn(8, 64)).path
        sizes[name] = len(gzip.compress(path.read_bytes()))
    assert sizes["binary"] < sizes["real"] / 4


@pytest.mark.parametrize("calibrated", [True, False])
def test_a_row_that_is_no_number_spoils_no_other(calibrated, tmp_path):
    student, x = made("mlp", calibrated=calibrated)
    path = write(student, tmp_path / "student.onnx", x[:8]).path
    x = x[:5].clone()
    x[1, 0], x[3, 2] = torch.nan, torch.inf
    good = [0, 2, 4]
    alone, said = (onnx_file.runner(onnx.load(path))(each.numpy()) for each in (x[good], x))
    for name, values in said.items():
        np.testing.assert_allclose(values[good], alone[name], rtol=1e-5, atol=1e-6)
        assert np.isnan(values[[1, 3]]).all() or name.startswith("novelty") or name == "finite"


def test_a_student_without_novelty_says_nothing_of_it(tmp_path):
    student, x = made("mlp", calibrated=False)
    found = write(student, tmp_path / "student.onnx", x[:8])
    assert not any("novelty" in name for name in found.outputs)
    agrees(student, found.path, x)


def test_preparation_becomes_part_of_the_file(tmp_path):
    student, x = made("mlp")
    found = write(student, tmp_path / "student.onnx", x[:8] / 5 - 3, prepare=lambda raw: 5 * (raw + 3))
    said = onnx_file.runner(onnx.load(found.path))((x / 5 - 3).numpy())
    np.testing.assert_allclose(said["probabilities"], student(x).mean.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_the_file_says_what_it_is_and_nothing_of_the_machine(tmp_path):
    student, x = made("mlp")
    found = write(student, tmp_path / "student.onnx", x[:8], classes=["a", "b", "c", "d"])
    held = {each.key: each.value for each in onnx.load(found.path).metadata_props}
    assert json.loads(held["classes"]) == ["a", "b", "c", "d"]
    assert json.loads(held["novelty_thresholds"])["0.01"] == pytest.approx(student.novelty.threshold(0.01))
    assert json.loads(held["student"])["architecture"] == "mlp"
    text = found.path.read_bytes()
    for word in (b"/home", b"/root", b"site-packages", b".py", str(tmp_path).encode()):
        assert word not in text, word


def test_a_pt2_file_predicts_the_same(tmp_path):
    student, x = made("mlp")
    found = write(student, tmp_path / "student.pt2", x[:8])
    extra = {"opu.json": ""}
    program = torch.export.load(found.path, extra_files=extra)
    assert json.loads(extra["opu.json"])["kind"] == "opu student"
    said = dict(zip(found.outputs, program.module()(x[:5]), strict=True))
    q = student(x[:5])
    torch.testing.assert_close(said["mutual_information"], q.mutual_information().detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(said["novelty"], student.novelty(q).detach(), rtol=1e-4, atol=1e-5)
    assert [len(values) for values in program.module()(x[:0])] == [0] * len(found.outputs)


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_int8_is_smaller_near_and_calibrated_anew(name, tmp_path):
    student, x = made(name)
    before = {n: w.clone() for n, w in student.state_dict().items()}
    whole = write(student, tmp_path / "student.onnx", x[:8])
    others = torch.randn_like(x)
    with torch.no_grad():
        labels = student(others).mean.argmax(-1)
    small = write(student, tmp_path / "int8.onnx", x[:8], int8=True, calibration=x, test=(others, labels))
    assert small.drift["accuracy"][0] == pytest.approx(100)
    assert small.drift["accuracy"][1] == pytest.approx(small.drift["same_class"])
    assert (
        0.7 < small.drift["measures"]["predictive_entropy"]["spearman"] < 1
    )  # its layers are random, and predict alike
    assert all(torch.equal(w, before[n]) for n, w in student.state_dict().items())
    said, exact = (onnx_file.runner(onnx.load(f.path))(x.numpy()) for f in (small, whole))
    assert np.abs(said["probabilities"] - exact["probabilities"]).max() < 0.05
    # Of fresh inputs at most one in ten is below a tenth, whatever rounding has done to the scores.
    fresh = onnx_file.runner(onnx.load(small.path))(others.numpy())["novelty_p_value"]
    assert 0.03 < np.mean(fresh <= 0.1) < 0.1 + 3 * (0.09 / 150) ** 0.5
    assert {len(values) for values in onnx_file.runner(onnx.load(small.path))(x[:0].numpy()).values()} == {0}
    layers = {node.op_type for node in onnx.load(small.path).graph.node}
    assert "QuantizeLinear" in layers or "QGemm" in layers


class Fixed(nn.Module):
    def forward(self, x):
        return x.reshape(len(x), -1)


def test_a_network_that_fixes_the_number_of_inputs_is_refused(tmp_path):
    student = opu.students.from_backbone(Fixed(), 6, 3).eval()
    refuse(
        r"would take 8 at a time only; where it says len\(x\), write x.shape\[0\]",
        student,
        tmp_path / "a.onnx",
        torch.randn(8, 2, 3),
    )
    assert not list(tmp_path.iterdir())


def refuse(match, student, path, x, **options):
    with pytest.raises(ValueError, match=match):
        write(student, path, x[:8], **options)


def test_mistakes_are_refused_and_nothing_is_lost(tmp_path):
    student, x = made("mlp")
    taken = tmp_path / "student.onnx"
    taken.write_text("precious")
    refuse("exists and was not changed", student, taken, x)
    assert taken.read_text() == "precious"
    refuse("ends in .onnx or .pt2", student, tmp_path / "student.bin", x)
    refuse("opset 18 to 23 of ONNX; got 7", student, tmp_path / "a.onnx", x, opset=7)
    refuse("int8 is for ONNX", student, tmp_path / "student.pt2", x, int8=True, calibration=x)
    refuse("at least 100 in-distribution inputs to calibrate on; got none", student, tmp_path / "a.onnx", x, int8=True)
    refuse(
        r"of shape \(6,\) each, as the student's; got \(7,\)",
        student,
        tmp_path / "a.onnx",
        x,
        int8=True,
        calibration=torch.randn(200, 7),
    )
    assert [path.name for path in tmp_path.iterdir()] == ["student.onnx"]
    assert write(student, taken, x[:8], overwrite=True).size > 1000


class Unknown(nn.Module):
    def forward(self, x):
        return torch.special.zeta(x.abs() + 2, torch.tensor(1.0)).flatten(1)


@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_a_network_that_cannot_leave_python_costs_one_line(suffix, tmp_path):
    class Branching(nn.Module):
        def forward(self, x):
            return x if float(x.sum()) > 0 else -x

    student = opu.students.from_backbone(Branching() if suffix == "pt2" else Unknown(), 6, 3).eval()
    with pytest.raises(ValueError, match="the student's network cannot be exported") as refused:
        write(student, tmp_path / f"a.{suffix}", torch.randn(8, 6))
    assert len(str(refused.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_file_that_differs_from_pytorch_is_not_written(tmp_path, monkeypatch):
    student, x = made("mlp")
    monkeypatch.setattr(onnx_file, "TOLERANCE", 1e-30)
    with pytest.raises(RuntimeError, match=r"differs from PyTorch's by .*; nothing was written"):
        write(student, tmp_path / "student.onnx", x[:8])
    assert not list(tmp_path.iterdir())


def call(arguments, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["opu", "export", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code, capsys.readouterr()


def test_the_command_exports_a_saved_student(tmp_path, monkeypatch, capsys):
    student, x = made("mlp")
    student.save(tmp_path / "run" / "student")
    code, said = call([tmp_path / "run", "--classes", "cat,dog,owl,bee"], monkeypatch, capsys)
    assert code == 0, said.err
    kept = onnx.load(tmp_path / "run" / "student.onnx").metadata_props
    assert json.loads(next(each.value for each in kept if each.key == "classes")) == ["cat", "dog", "owl", "bee"]
    assert "agrees with PyTorch" in said.out
    agrees(student, tmp_path / "run" / "student.onnx", x)
    np.save(tmp_path / "x.npy", x.numpy())
    code, said = call([tmp_path / "run", "--int8", "--calibration", tmp_path / "x.npy"], monkeypatch, capsys)
    assert code == 0, said.err
    assert (tmp_path / "run" / "student-int8.onnx").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "tflite"], "--format must be onnx or pt2; got 'tflite'"),
        (["--int8"], "int8 needs at least 100 in-distribution inputs"),
        (["--out", "student.txt"], "ends in .onnx or .pt2"),
        (["--classes", "cat,dog"], "the student has 4 classes; got 2 names"),
        (["--opset", "99"], "opset 18 to 23 of ONNX; got 99"),
    ],
)
def test_mistakes_on_the_command_line_cost_one_line(options, message, tmp_path, monkeypatch, capsys):
    made("mlp")[0].save(tmp_path / "student")
    monkeypatch.chdir(tmp_path)
    code, said = call([tmp_path, *options], monkeypatch, capsys)
    assert code == 2
    assert message in said.err
    assert len(said.err.strip().splitlines()) == 1


def test_a_folder_without_a_student_is_refused(tmp_path, monkeypatch, capsys):
    code, said = call([tmp_path], monkeypatch, capsys)
    assert code == 2
    assert "there is no saved student" in said.err


class Clamped(nn.Module):
    """Begins with an operator that the exporter's optimiser loses where two networks share it."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 16), nn.Dropout(0.3), nn.Linear(16, 3)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.first(torch.clamp(x, -2, 2)))))


@pytest.mark.parametrize("shared_trunk", [True, False])
def test_networks_that_clamp_their_inputs_are_exported(shared_trunk, tmp_path):
    x = torch.randn(64, 4)
    student = opu.students.from_teacher(opu.teachers.MCDropout(Clamped()), example=x, shared_trunk=shared_trunk)
    exported = write(student, tmp_path / "s.onnx", x)
    assert max(exported.differences.values()) < 1e-5


def test_a_model_that_no_runtime_opens_is_refused_in_a_sentence():
    import onnx

    broken = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["missing"], ["y"])], "g", [], [])
    with pytest.raises(ValueError, match="the student's network cannot be exported"):
        onnx_file.runner(onnx.helper.make_model(broken))
