"""Files of logistic-normal students: the outputs of files of Dirichlets, with the library's numbers."""

import json

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import opu
from opu.cli import main
from opu.distributions import LogisticNormal
from opu.export import onnx_file, write
from opu.export.outputs import output_names
from opu.novelty import FOR_TABLES, Novelty
from opu.students import from_teacher, lenet, mlp
from opu.students.impute import Prepare
from opu.teachers import MCDropout
from tests.export.test_named_inputs import CASES as NAMED
from tests.export.test_named_inputs import agrees as agrees_by_name
from tests.export.test_not_finite import check, spoilt
from tests.export.test_ties import binary_rows
from tests.export.test_ties import check as check_ties


class Own(nn.Module):
    """A network of a user's own class."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 12), nn.Dropout(0.4), nn.Linear(12, 5)

    def forward(self, x):
        return self.last(self.drop(torch.tanh(self.first(x))))


STUDENTS = {
    "2 classes": (lambda: mlp(6, 2, (16,), family="logistic_normal(3)"), (6,)),
    "2 classes, no factor": (lambda: mlp(6, 2, (16,), family="logistic_normal"), (6,)),
    "3 classes": (lambda: mlp(6, 3, (16, 8), family="logistic_normal"), (6,)),
    "10 classes": (lambda: mlp(6, 10, (16, 8), family="logistic_normal"), (6,)),
    "47 classes": (lambda: mlp(6, 47, (16,), family="logistic_normal(2)"), (6,)),
    "no factor": (lambda: mlp(6, 10, (16,), family="logistic_normal(0)"), (6,)),
    "64 factors": (lambda: mlp(6, 4, (16,), family="logistic_normal(64)"), (6,)),
    "one trunk": (lambda: mlp(6, 4, (16, 8), shared_trunk=True, family="logistic_normal"), (6,)),
    "own class": (lambda: from_teacher(MCDropout(Own()), family="logistic_normal"), (6,)),
    "lenet": (lambda: lenet(4, (1, 16, 16), (4, 6), 20, family="logistic_normal"), (1, 16, 16)),
}


def slow_but(*names):
    return [pytest.param(name, marks=() if name in names else pytest.mark.slow) for name in STUDENTS]


def made(name):
    build, shape = STUDENTS[name]
    student = build().eval()
    with torch.no_grad():
        student.novelty = Novelty.fit(student(torch.randn(300, *shape)))
    return student, torch.randn(300, *shape)


def reader(found):
    """Arrays to outputs by name, in the runtime of the file."""
    if found.path.suffix == ".onnx":
        return onnx_file.runner(onnx.load(found.path))
    module = torch.export.load(found.path).module()
    return lambda x: {n: v.detach().numpy() for n, v in zip(found.outputs, module(torch.tensor(x)), strict=True)}


def agrees(student, said, x):
    p = student.predict(x)
    assert isinstance(p.distribution, LogisticNormal)
    assert said["finite"].all()
    np.testing.assert_allclose(said["probabilities"], p.probabilities, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(said["log_precision"], p.distribution.log_precision.numpy(), rtol=1e-4, atol=1e-5)
    for name in ("predictive_entropy", "expected_entropy", "mutual_information", "differential_entropy"):
        np.testing.assert_allclose(said[name], p.scores[name], rtol=1e-4, atol=1e-5, err_msg=name)
    for name, values in (("novelty", p.novelty), ("novelty_p_value", p.novelty_p_value)):
        assert np.mean(np.abs(said[name] - values) > 1e-3) <= 0.1, name  # where inputs nearly tie, rounding decides


@pytest.mark.parametrize("name", slow_but("2 classes", "10 classes", "own class"))
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_every_student_predicts_as_in_pytorch_for_any_number_of_inputs(name, suffix, tmp_path):
    student, x = made(name)
    found = write(student, tmp_path / f"student.{suffix}", x[:8])
    assert found.outputs == output_names(calibrated=True)
    assert max(found.differences.values()) < 1e-5
    predict = reader(found)
    for rows in (x[:1], x[:2], x[:7], x, 100 * x[:20]):
        agrees(student, predict(rows.numpy()), rows)
    none = predict(x[:0].numpy())
    assert {name: len(values) for name, values in none.items()} == dict.fromkeys(found.outputs, 0)
    rows, bad = spoilt(x)
    check(predict(rows.numpy()), bad, student.novelty.least_p_value, alone=predict(x[:6].numpy()))


def test_a_file_knows_its_family(tmp_path):
    student, x = made("3 classes")
    path = write(student, tmp_path / "s.onnx", x[:8]).path
    held = {each.key: each.value for each in onnx.load(path).metadata_props}
    assert json.loads(held["student"])["family"] == "logistic_normal(1)"


@pytest.mark.parametrize("name", slow_but("10 classes"))
def test_int8_is_near_and_calibrated_anew(name, tmp_path):
    student, x = made(name)
    others = torch.randn_like(x)
    exact = reader(write(student, tmp_path / "s.onnx", x[:8]))(others.numpy())
    found = write(student, tmp_path / "int8.onnx", x[:8], int8=True, calibration=x, test=(others, None))
    assert found.drift["same_class"] > 80
    assert found.drift["measures"]["mutual_information"]["spearman"] > 0.7
    predict = reader(found)
    said = predict(others.numpy())
    assert np.abs(said["probabilities"] - exact["probabilities"]).max() < 0.05
    # As often as it should, up to what 300 inputs and as many calibration inputs can tell.
    assert abs(np.mean(said["novelty_p_value"] <= 0.1) - 0.1) < 4 * (0.09 / 150) ** 0.5
    assert (predict((100 * x[:50]).numpy())["novelty_p_value"] < 0.01).all()
    assert {len(values) for values in predict(x[:0].numpy()).values()} == {0}
    rows, bad = spoilt(x)
    check(predict(rows.numpy()), bad, student.novelty.least_p_value, alone=predict(x[:6].numpy()))
    # The layers of the network have eight bits, and nothing behind them.
    held = [each.name for each in onnx.load(found.path).graph.initializer if each.data_type == onnx.TensorProto.INT8]
    layers = [layer for layer in student.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    # Both networks start as copies of the teacher's, and a file holds equal weights once.
    weights = {layer.weight.detach().numpy().tobytes() for layer in layers}
    assert len([weight for weight in held if weight.endswith("_quantized")]) == len(weights)


@pytest.mark.parametrize("int8", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("num_classes", [2, 4])
def test_ties_hold_in_files(int8, num_classes, tmp_path):
    student = mlp(3, num_classes, (32, 32), family="logistic_normal").eval()
    with torch.no_grad():
        for weight in student.parameters():
            weight.mul_(2)
    rows, asked = binary_rows(400), binary_rows(100)
    opu.calibrate(student, rows)
    predict = reader(write(student, tmp_path / "s.onnx", rows[:8], int8=int8, calibration=rows if int8 else None))
    for batch_size in (1, 7, 100):
        parts = [predict(part.numpy())["novelty_p_value"] for part in asked.split(batch_size)]
        check_ties(np.concatenate(parts), asked, rows)


@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_a_table_keeps_columns_with_a_large_offset(suffix, tmp_path):
    rng = np.random.default_rng(0)
    raw, fresh = (rng.normal(size=(300, 4)) * 100 + 1.7e9 for _ in range(2))
    raw[::5, 1] = np.nan
    prepare = Prepare.fit(raw)
    student = mlp(5, 3, (16,), family="logistic_normal").double().eval()
    with torch.no_grad():
        student.novelty = Novelty.fit(student(prepare(torch.tensor(raw))), FOR_TABLES)
    found = write(student, tmp_path / f"s.{suffix}", torch.tensor(raw[:64]), prepare=prepare)
    fresh[0, 1], fresh[1, 0], fresh[2, 2] = np.nan, np.inf, 1e300
    said = reader(found)(fresh)
    assert said["finite"].tolist() == [True, False, False] + [True] * 297
    np.testing.assert_allclose(said["novelty_p_value"][1:3], student.novelty.least_p_value, rtol=1e-6)
    good = np.delete(np.arange(300), [1, 2])
    expected = student.predict(prepare(torch.tensor(fresh[good])))
    np.testing.assert_allclose(said["probabilities"][good], expected.probabilities, atol=1e-5)
    np.testing.assert_allclose(said["novelty_p_value"][good], expected.novelty_p_value, atol=0.02)


@pytest.mark.parametrize("name", ["dict", "words"])
def test_inputs_of_several_parts_keep_their_names(name, tmp_path):
    make, inputs, names = NAMED[name]
    net, x = make().eval(), inputs(60)
    student = from_teacher(net, example=x, family="logistic_normal").eval()
    opu.calibrate(student, x)
    path = write(student, tmp_path / "s.onnx", x).path
    assert [each.name for each in onnx.load(path).graph.input] == names
    for rows in (1, 9):
        agrees_by_name(student, path, inputs(rows))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_a_thousand_classes(suffix, tmp_path):
    student, x = mlp(6, 1000, (16,), family="logistic_normal").eval(), torch.randn(20, 6)
    opu.calibrate(student, x)
    agrees(student, reader(write(student, tmp_path / f"s.{suffix}", x[:4]))(x.numpy()), x)


def call(arguments, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["opu", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr()
    assert stopped.value.code == 0, said.err
    return said.out


def test_a_run_is_exported_and_predicts_files(tmp_path, monkeypatch, capsys):
    x = torch.randn(500, 6)
    teacher, run = MCDropout(Own().eval()), tmp_path / "run"
    student = mlp(6, 5, (16,), family="logistic_normal")
    recipe = opu.Recipe(steps=6, batch_size=16, num_particles=4)
    opu.distill(teacher, student, x, recipe=recipe, held_out=0.5, out=run, progress=False)
    np.save(tmp_path / "x.npy", x.numpy())
    assert "agrees with PyTorch" in call(["export", run], monkeypatch, capsys)
    agrees(student, onnx_file.runner(onnx.load(run / "student.onnx"))(x.numpy()), x)
    call(["export", run, "--int8"], monkeypatch, capsys)
    call(["export", run, "--format", "pt2"], monkeypatch, capsys)
    call(["predict", run, tmp_path / "x.npy", "--out", tmp_path / "p.csv"], monkeypatch, capsys)
    table = np.genfromtxt(tmp_path / "p.csv", delimiter=",", names=True, dtype=None, encoding=None)
    np.testing.assert_allclose(table["mutual_information"], student.predict(x).mutual_information, rtol=1e-4, atol=1e-6)
    low, high = student.predict(x).interval()
    np.testing.assert_allclose(table["low_0"], low[:, 0], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(table["high_0"], high[:, 0], rtol=1e-3, atol=1e-5)
