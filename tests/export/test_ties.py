"""Rows of a few binary columns tie, and stay tied in every type of numbers, for every batch size and in every file."""

import copy
import json

import numpy as np
import onnx
import pytest
import torch

import opu
from opu.export import onnx_file, write

SEEDS = range(4)


def binary_rows(count):
    return torch.randint(2, (count, 3)).float()


def calibrated(seed, hidden=(32, 32)):
    """A student of three binary columns with sharp and with doubtful predictions, and the rows that calibrated it."""
    torch.manual_seed(seed)
    student = opu.students.mlp(3, 2, hidden).eval()
    with torch.no_grad():
        for weight in student.parameters():
            weight.mul_(3)
    rows = binary_rows(400)
    opu.calibrate(student, rows)
    return student, rows


def check(p_values, asked, rows):
    """At least all calibration rows that are alike count as at least as novel, and equal rows have equal p-values."""
    for kind in asked.unique(dim=0):
        alike = int((rows == kind).all(1).sum())
        found = np.asarray(p_values)[(asked == kind).all(1).numpy()]
        assert found.min() >= (alike + 1) / (len(rows) + 1) * (1 - 1e-6)
        assert np.ptp(found) < 1e-6


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_ties_hold_in_every_type_and_for_every_batch_size(seed, dtype):
    student, rows = calibrated(seed)
    asked = binary_rows(100)
    student.to(dtype)
    for batch_size in (1, 7, 100):
        p = student.predict(asked, batch_size=batch_size).novelty_p_value
        # In half precision, rows that differ a little may tie with one another, which makes their p-values larger only.
        if dtype in (torch.float32, torch.float64):
            check(p, asked, rows)
        assert np.mean(p < 0.01) == 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("int8", [False, True])
def test_ties_hold_in_files(seed, int8, tmp_path):
    student, rows = calibrated(seed)
    path = write(student, tmp_path / "s.onnx", rows[:8], int8=int8, calibration=rows if int8 else None).path
    predict, asked = onnx_file.runner(onnx.load(path)), binary_rows(100)
    for batch_size in (1, 7, 100):
        outputs = [predict(part.numpy()) for part in asked.split(batch_size)]
        found = {name: np.concatenate([each[name] for each in outputs]) for name in outputs[0]}
        check(found["novelty_p_value"], asked, rows)
    held = {each.key: each.value for each in onnx.load(path).metadata_props}
    for rate, limit in json.loads(held["novelty_thresholds"]).items():
        assert ((found["novelty"] > limit) == (found["novelty_p_value"] <= float(rate) * (1 + 1e-6))).all()


def test_a_classifier_of_binary_columns_does_not_flag_its_own_rows():
    torch.manual_seed(0)
    x = binary_rows(300).double().numpy()
    y = (x.sum(1) + np.random.default_rng(0).normal(size=300) > 1.5).astype(int)
    model = opu.sklearn.OnePassClassifier("ensemble", hidden=(16,), epochs=3, random_state=0).fit(x, y)
    p = model.uncertainty(x)["novelty_p_value"]
    assert (p < 0.01).mean() == 0
    assert all(np.ptp(p[(x == kind).all(1)]) < 1e-9 for kind in np.unique(x, axis=0))


@pytest.mark.parametrize(("count", "rates"), [(15, []), (60, ["0.05"]), (99, ["0.01", "0.05"])])
def test_a_file_holds_the_thresholds_that_its_calibration_inputs_allow(count, rates, tmp_path):
    student = opu.students.mlp(6, 3, (8,)).eval()
    novelty = opu.calibrate(student, torch.randn(count, 6))
    path = write(student, tmp_path / "s.onnx", torch.randn(8, 6)).path
    held = {each.key: each.value for each in onnx.load(path).metadata_props}
    assert list(json.loads(held["novelty_thresholds"])) == rates
    assert json.loads(held["novelty_calibration"]) == {"num_inputs": count, "least_p_value": novelty.least_p_value}


def test_autocast_counts_as_coarse_arithmetic():
    student, _ = calibrated(0)
    asked = binary_rows(64)
    plain = student.predict(asked).novelty_p_value
    with torch.autocast("cpu", dtype=torch.bfloat16):
        coarse = copy.deepcopy(student).predict(asked).novelty_p_value
    assert np.mean(coarse < 0.01) == 0
    assert (coarse >= plain - 0.35).all()
