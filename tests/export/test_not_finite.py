"""Inputs that are NaN or infinite are novel everywhere, and int8 knows where its range ends."""

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import opu
from opu.export import onnx_file, write
from opu.students.impute import Prepare

BAD = [torch.nan, torch.inf, -torch.inf]


def pooled():
    """Pooling hides NaN, as some runtimes compute it, and ReLU may too."""
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return opu.students.from_backbone(nn.Sequential(*layers), 4 * 7 * 7, 4)


STUDENTS = {
    "mlp": (lambda: opu.students.mlp(12, 3, (16, 16)), (12,)),
    "one trunk": (lambda: opu.students.mlp(12, 3, (16,), shared_trunk=True), (12,)),
    "lenet": (lambda: opu.students.lenet(3, (1, 16, 16), (4, 6), 20), (1, 16, 16)),
    "pooled": (pooled, (1, 16, 16)),
}


def calibrated(name):
    build, shape = STUDENTS[name]
    student = build().eval()
    x = torch.rand(300, *shape)
    opu.calibrate(student, x)
    return student, x


def spoilt(x):
    """Six inputs, of which numbers 1, 3 and 4 hold one bad value each, anywhere."""
    rows = x[:6].clone()
    for row, value in zip((1, 3, 4), BAD, strict=True):
        rows[row].view(-1)[int(torch.randint(rows[row].numel(), ()))] = value
    return rows, np.array([False, True, False, True, True, False])


def check(outputs, bad, least, alone=None):
    assert (outputs["finite"] == ~bad).all()
    np.testing.assert_allclose(outputs["novelty_p_value"][bad], least, rtol=1e-6)
    assert np.isnan(outputs["probabilities"][bad]).all()
    assert np.isnan(outputs["mutual_information"][bad]).all()
    assert np.isfinite(outputs["novelty"]).all()
    assert np.isfinite(outputs["probabilities"][~bad]).all()
    for name, values in (alone or {}).items():
        np.testing.assert_allclose(outputs[name][~bad], values[~bad], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", STUDENTS)
def test_in_pytorch(name):
    student, x = calibrated(name)
    rows, bad = spoilt(x)
    for inputs in (rows, rows.numpy(), list(rows.split(2)), torch.utils.data.DataLoader(rows, 2), iter(rows.split(3))):
        p = student.predict(inputs)
        check({**p.columns(), "probabilities": p.probabilities}, bad, student.novelty.least_p_value)
        assert (p.predicted[bad] == -1).all()
        assert (p.flagged(0.01)[bad]).all()
    assert [each is None for each in p.columns()["prediction"].tolist()] == bad.tolist()
    assert (
        p.to_frame(["cat", "dog", "owl", "ant"][: p.probabilities.shape[1]])["prediction"].isna().tolist()
        == bad.tolist()
    )
    assert "3 without one, since they are not finite" in repr(p)
    assert np.isnan(p.interval()[0][bad]).all()


def test_values_too_large_for_the_students_numbers_are_not_finite():
    student, x = calibrated("mlp")
    rows = x[:3].double()
    rows[1, 2] = 1e300
    assert student.predict(rows).finite.tolist() == [True, False, True]
    with torch.no_grad():
        student.mean_net[1].weight.mul_(1e3)
    large = x[:3].clone()
    large[2] = 3e38 * (-1.0) ** torch.arange(12)  # finite, but not after the first layer
    p = student.predict(large)
    assert p.finite.tolist() == [True, True, False]
    assert p.novelty_p_value[2] == pytest.approx(student.novelty.least_p_value)


@pytest.mark.parametrize("name", STUDENTS)
@pytest.mark.parametrize("kind", ["float32", "int8", "pt2"])
def test_in_files(name, kind, tmp_path):
    student, x = calibrated(name)
    rows, bad = spoilt(x)
    options = {"int8": True, "calibration": x} if kind == "int8" else {}
    found = write(student, tmp_path / f"s.{'pt2' if kind == 'pt2' else 'onnx'}", x[:8], **options)
    if kind == "pt2":
        module = torch.export.load(found.path).module()

        def predict(inputs):
            return {n: v.detach().numpy() for n, v in zip(found.outputs, module(torch.tensor(inputs)), strict=True)}
    else:
        predict = onnx_file.runner(onnx.load(found.path))
    outputs = predict(rows.numpy())
    check(outputs, bad, student.novelty.least_p_value, alone=predict(x[:6].numpy()))


@pytest.mark.parametrize("prepare", [torch.tanh, torch.relu, lambda t: t.clamp(0, 1), lambda t: (t > 0.5).float()])
@pytest.mark.parametrize("kind", ["float32", "int8", "pt2"])
def test_a_preparation_hides_nothing(prepare, kind, tmp_path):
    torch.manual_seed(0)
    x = torch.rand(300, 12)
    student = opu.students.mlp(12, 3, (16, 16)).eval()
    opu.calibrate(student, prepare(x))
    rows, bad = spoilt(x)
    options = {"int8": True, "calibration": x} if kind == "int8" else {}
    file = tmp_path / f"s.{'pt2' if kind == 'pt2' else 'onnx'}"
    found = write(student, file, x[:8], prepare=prepare, **options)
    if kind == "pt2":
        outputs = torch.export.load(found.path).module()(rows)
        outputs = {name: v.detach().numpy() for name, v in zip(found.outputs, outputs, strict=True)}
    else:
        outputs = onnx_file.runner(onnx.load(found.path))(rows.numpy())
    check(outputs, bad, student.novelty.least_p_value)


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_int8_flags_inputs_outside_its_range_and_no_others(name, tmp_path):
    student, x = calibrated(name)
    path = write(student, tmp_path / "s.onnx", x[:8], int8=True, calibration=x).path
    predict = onnx_file.runner(onnx.load(path))
    for far in (100 * x[:50], x[:50] - 30):
        assert (predict(far.numpy())["novelty_p_value"] < 0.01).all()
    fresh = torch.rand(600, *x.shape[1:])
    assert (
        np.mean(predict(fresh.numpy())["novelty_p_value"] <= 0.05)
        < 0.05 + 4 * (0.05 * 0.95 * (1 / 300 + 1 / 600)) ** 0.5
    )


def test_int8_with_long_tails_keeps_its_rate(tmp_path):
    """The range is that of calibration inputs, so one in some hundred fresh ones lies outside it: no cause for alarm."""
    rates = []
    for seed in range(6):
        torch.manual_seed(seed)
        student = opu.students.mlp(5, 3, (8,)).eval()
        x, fresh = (torch.distributions.StudentT(2.0).sample((n, 5)) for n in (120, 1000))
        opu.calibrate(student, x)
        path = write(student, tmp_path / f"{seed}.onnx", x[:8], int8=True, calibration=x).path
        rates.append(np.mean(onnx_file.runner(onnx.load(path))(fresh.numpy())["novelty_p_value"] <= 3 / 121 * 1.000001))
    assert np.mean(rates) < 3 / 121 + 4 * (0.025 / 120 / 6) ** 0.5


def test_a_table_with_gaps_is_finite_and_one_with_infinity_is_not(tmp_path):
    raw = np.random.default_rng(0).normal(size=(300, 4))
    raw[::5, 1] = np.nan
    prepare = Prepare.fit(raw)
    student = opu.students.mlp(5, 3, (16,)).eval()
    opu.calibrate(student, prepare(torch.tensor(raw)).float())
    path = write(student, tmp_path / "s.onnx", torch.tensor(raw[:8]), prepare=prepare).path
    asked = raw[:4].copy()
    asked[0, 1], asked[1, 0], asked[2, 2] = np.nan, np.inf, 1e300
    outputs = onnx_file.runner(onnx.load(path))(asked)
    assert outputs["finite"].tolist() == [True, False, False, True]
    np.testing.assert_allclose(outputs["novelty_p_value"][1:3], student.novelty.least_p_value, rtol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1.7e9, -4e12])
def test_a_table_keeps_columns_with_a_large_offset(offset, tmp_path):
    """A time in seconds: float32 would round 1.7e9 +- 100 to steps of 128."""
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(400, 3)) * 100 + offset
    prepare = Prepare.fit(raw)
    student = opu.students.mlp(3, 3, (32,)).double().eval()
    opu.calibrate(student, prepare(torch.tensor(raw)))
    found = write(student, tmp_path / "s.onnx", torch.tensor(raw[:64]), prepare=prepare)
    assert onnx.load(found.path).graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    fresh = rng.normal(size=(400, 3)) * 100 + offset
    outputs = onnx_file.runner(onnx.load(found.path))(fresh)
    expected = student.predict(prepare(torch.tensor(fresh)))
    np.testing.assert_allclose(outputs["probabilities"], expected.probabilities, atol=1e-5)
    np.testing.assert_allclose(outputs["novelty_p_value"], expected.novelty_p_value, atol=0.02)


def test_a_file_that_rounds_its_inputs_does_not_pass_the_check(tmp_path):
    """The check compares with the library on inputs as they come, so that a file which loses digits is not written."""

    class Rounding(Prepare):
        def forward(self, x):
            return super().forward(x.float().double())

    raw = np.random.default_rng(0).normal(size=(300, 3)) * 100 + 1.7e9
    exact = Prepare.fit(raw)
    student = opu.students.mlp(3, 3, (32,)).eval()
    with pytest.raises(RuntimeError, match="differs from PyTorch's"):
        onnx_file.differences(
            lambda x: {
                "probabilities": student(Rounding(exact.impute, exact.standardise)(x).float()).mean.detach().numpy()
            },
            torch.tensor(raw[:64]),
            {"probabilities": student(exact(torch.tensor(raw[:64])).float()).mean.detach()},
        )


def test_calibration_refuses_rows_that_are_not_finite():
    student, x = calibrated("mlp")
    x[7, 2] = torch.nan
    for inputs in (x, x.numpy(), torch.utils.data.DataLoader(x, 100), list(x.split(100))):
        with pytest.raises(ValueError, match="must be finite; got NaN or infinite features in 1 of"):
            opu.calibrate(student, inputs)
    with pytest.raises(ValueError, match="must be finite"):
        opu.Cascade(student, lambda x, s: None).calibrate(x)


def test_a_cascade_does_not_ask_its_teacher_about_what_is_not_finite():
    student, x = calibrated("mlp")
    asked = []

    def teacher(rows, num_particles):
        asked.append(rows)
        assert rows.isfinite().all()
        return torch.randn(num_particles, len(rows), 3).log_softmax(-1)

    cascade = opu.Cascade(student, teacher, budget=0.5, num_particles=10).calibrate(x)
    rows, bad = spoilt(x)
    p = cascade(rows)
    assert not p.by_teacher[bad].any()
    np.testing.assert_allclose(p.novelty_p_value[bad], student.novelty.least_p_value, rtol=1e-6)
    assert (p.finite == ~bad).all()
