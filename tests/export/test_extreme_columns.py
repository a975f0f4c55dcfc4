"""A file of a table takes float64: columns that float32 cannot hold are exported with their variation."""

import numpy as np
import pandas as pd
import pytest

from opu.export.run import export_run
from opu.sklearn import OnePassClassifier


def saved(folder, factor):
    x = np.random.default_rng(0).normal(size=(60, 2))
    frame = pd.DataFrame({"height": x[:, 0], "weight": x[:, 1] * factor})
    OnePassClassifier("ensemble", hidden=(8,), epochs=2, random_state=0).fit(frame, x[:, 0] > 0).save(folder)
    return folder


@pytest.mark.parametrize("factor", [1e-200, 1e-45, 1e-25, 1e25, 1e45])
def test_columns_are_exported_with_their_variation(factor, tmp_path):
    import onnxruntime

    exported = export_run(saved(tmp_path, factor))
    session = onnxruntime.InferenceSession(exported.path)
    x = np.random.default_rng(1).normal(size=(9, 2)) * [1, factor]
    (found,) = session.run(["probabilities"], {session.get_inputs()[0].name: x})
    model = OnePassClassifier.load(tmp_path)
    expected = model.predict_proba(pd.DataFrame(x, columns=["height", "weight"]))
    np.testing.assert_allclose(found, expected, atol=1e-5)
