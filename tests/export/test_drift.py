"""The drift report: nothing where nothing changed, and the truth where something did."""

import numpy as np
import pytest

from opu.export.drift import drift


def says(shift):
    """Probabilities of class 1 from the first column, a precision from the second; the shift moves both."""

    def said(x):
        p = 1 / (1 + np.exp(-x[:, 0] - shift))
        entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p))
        return {
            "probabilities": np.stack([1 - p, p], -1),
            "log_precision": x[:, 1] * (1 if shift < 5 else -1),
            "predictive_entropy": entropy,
            "novelty_p_value": p,
        }

    return said


@pytest.fixture
def inputs():
    return np.random.default_rng(0).normal(size=(400, 2)).astype(np.float32)


def test_a_student_beside_itself_has_not_moved(inputs):
    labels = (inputs[:, 0] + 0.5 * inputs[:, 1] > 0).astype(np.int64)
    found = drift(says(0.0), says(0.0), inputs, labels, {"far": inputs - np.array([0, 9], dtype=np.float32)})
    assert found["same_class"] == 100
    assert found["accuracy"][0] == found["accuracy"][1] > 80
    assert set(found["measures"]) == {"log_precision", "predictive_entropy"}
    for entry in found["measures"].values():
        assert entry.pop("spearman") == pytest.approx(1)
        assert all(before == after for before, after in entry.values())
    assert found["measures"]["log_precision"]["far"] == pytest.approx([100.0, 100.0])


def test_a_precision_turned_upside_down_shows(inputs):
    found = drift(says(0.0), says(5.0), inputs, ood={"far": inputs - np.array([0, 9], dtype=np.float32)})
    assert "accuracy" not in found
    assert found["same_class"] < 60
    assert found["measures"]["log_precision"]["spearman"] == pytest.approx(-1)
    assert found["measures"]["log_precision"]["far"] == [100.0, 0.0]
    assert found["measures"]["predictive_entropy"]["spearman"] < 0.9
