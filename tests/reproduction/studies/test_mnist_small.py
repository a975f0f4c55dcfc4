"""The default recipe on real digits, small enough for every test run."""

import pytest

from opu.evaluation.compare import TEACHER_MEASURES
from reproduction.studies.mnist_small import run


@pytest.mark.slow
def test_a_student_of_mnist_keeps_up_with_its_teacher(data_folder):
    if not (data_folder / "mnist" / "train-images-idx3-ubyte.gz").is_file():
        pytest.skip(f"no MNIST in {data_folder}")
    result = run(data_folder, seed=0)
    assert result["accuracy"]["student"] >= result["accuracy"]["teacher"] - 1
    # Not on inverted digits: so thin a student extrapolates its precision there, as docs/log.md shows with numbers.
    for name in ("shifted", "noise"):
        row = result["ood"][name]
        best = max(row["teacher"][m]["auroc"] for m in TEACHER_MEASURES)
        assert row["student"]["novelty"]["auroc"] >= best - 1, name
    errors = result["misclassification"]
    assert errors["student"]["novelty"]["auroc"] >= errors["teacher"]["predictive_entropy"]["auroc"] - 3
    # 1,000 inputs to calibrate on, 2,000 fresh ones: 5 % within about four standard errors of both.
    assert 2 < result["flagged_at_5_percent"] < 8.5
