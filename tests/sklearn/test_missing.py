"""Missing values in the classifier: fitted, predicted, saved, exported; and rows that are novel because of them."""

import json

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from rich.console import Console
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from opu.export.run import export_run
from opu.sklearn import OnePassClassifier
from opu.sklearn.encoding import Encoding
from opu.sklearn.frames import read_frame
from opu.sklearn.run import predict_table
from tests.student_files import as_before

FAST = {"epochs": 30, "num_particles": 8, "hidden": (32,), "random_state": 0}


@pytest.fixture(scope="module")
def gaps():
    """The class shows only in whether the second column is missing, and a little in the first."""
    random = np.random.default_rng(0)
    X = random.normal(size=(400, 3))
    y = (random.random(400) < 0.4).astype(int)
    X[(y == 1) & (random.random(400) < 0.9), 1] = np.nan
    return X, y


@pytest.fixture(scope="module")
def fitted(gaps):
    torch.manual_seed(0)
    return OnePassClassifier("ensemble", **FAST).fit(*gaps)


def test_that_a_value_is_missing_is_information(fitted, gaps):
    assert fitted.score(*gaps) > 0.9
    count = int(np.isnan(gaps[0][:, 1]).sum())
    assert fitted.missing_.startswith(f"values are missing in column 2 ({count}) of 400 rows; numbers were imputed")
    named = OnePassClassifier("ensemble", **FAST).fit(pd.DataFrame(gaps[0], columns=["a", "b", "c"]), gaps[1])
    assert f"column b ({count}) of 400 rows" in named.missing_
    assert OnePassClassifier("ensemble", **FAST).fit(np.nan_to_num(gaps[0]), gaps[1]).missing_ == ""


def test_a_row_with_a_gap_that_training_never_had_is_novel_and_predicted(fitted, gaps):
    new = gaps[0][:3].copy()
    new[0, 0], new[1, 1] = np.nan, np.nan
    measured = fitted.uncertainty(new)
    novelty = fitted.student_.novelty
    assert measured["novelty"][0] > float(novelty.scores.max())
    assert measured["novelty_p_value"][0] == pytest.approx(1 / (len(novelty.scores) + 1))
    imputed = new.copy()
    imputed[0, 0] = np.median(gaps[0][:, 0])
    np.testing.assert_allclose(fitted.predict_proba(new), fitted.predict_proba(imputed), rtol=1e-12)
    np.testing.assert_allclose(measured[1:], fitted.uncertainty(imputed)[1:], rtol=1e-12)
    assert fitted.uncertainty(imputed)["novelty_p_value"][0] > measured["novelty_p_value"][0]


def test_it_is_saved_and_exported_with_its_imputation(fitted, gaps, tmp_path):
    fitted.save(tmp_path)
    again = OnePassClassifier.load(tmp_path)
    new = gaps[0][:50].copy()
    new[0, 0] = np.nan
    np.testing.assert_allclose(again.uncertainty(new), fitted.uncertainty(new), rtol=1e-12)
    assert again.missing_ == fitted.missing_
    export_run(tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "student.onnx")
    names = [each.name for each in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"inputs": new}), strict=True))
    measured = again.uncertainty(new)
    np.testing.assert_allclose(found["probabilities"], again.predict_proba(new), atol=1e-4)
    np.testing.assert_allclose(found["mutual_information"], measured["mutual_information"], atol=1e-4)
    np.testing.assert_allclose(found["novelty"], measured["novelty"], atol=0.01)
    np.testing.assert_allclose(found["novelty_p_value"], measured["novelty_p_value"], atol=0.01)
    assert found["novelty_p_value"][0] == pytest.approx(again.student_.novelty.least_p_value)


def test_a_classifier_of_the_first_format_still_loads(fitted, gaps, tmp_path):
    X = np.nan_to_num(gaps[0])
    model = OnePassClassifier("ensemble", **FAST).fit(X, gaps[1])
    model.save(tmp_path)
    path = tmp_path / "classifier.json"
    old = json.loads(path.read_text())
    for later in ("fill", "indicated", "missing"):
        del old[later]
    as_before(tmp_path / "student")
    path.write_text(json.dumps(old | {"format": 1}))
    again = OnePassClassifier.load(tmp_path)
    np.testing.assert_allclose(again.uncertainty(X), model.uncertainty(X), rtol=1e-12)
    assert again.missing_ == ""


@pytest.mark.parametrize(
    "teacher", [RandomForestClassifier(30, min_samples_leaf=5), BaggingClassifier(LogisticRegression(), 20)], ids=str
)
def test_ensembles_take_gaps_as_they_are_or_imputed(teacher, gaps):
    X, y = gaps
    model = OnePassClassifier(teacher, **FAST).fit(X, y)
    takes = isinstance(teacher, RandomForestClassifier)
    assert model.teacher_.takes_missing is takes
    assert model.score(X, y) > (0.9 if takes else 0.5)


def test_a_fitted_forest_sees_the_gaps_that_it_was_fitted_to(gaps):
    X, y = gaps
    forest = RandomForestClassifier(30, min_samples_leaf=5, random_state=0).fit(X, y)
    model = OnePassClassifier(forest, **FAST).fit(X, y)
    assert np.mean(model.predict(X) == forest.predict(X)) > 0.95


def test_a_column_of_texts_in_a_frame_is_named():
    frame = pd.DataFrame({"age": range(20), "colour": ["red", "blue"] * 10})
    y = [0, 1] * 10
    with pytest.raises(ValueError, match=r"column colour holds 'red', and every column must hold numbers; encode it"):
        OnePassClassifier("ensemble", **FAST).fit(frame, y)
    with pytest.raises(ValueError, match="column colour holds 'red', and every"):
        OnePassClassifier("ensemble", **FAST).fit(frame.astype({"colour": "category"}), y)
    numbers = OnePassClassifier("ensemble", **FAST).fit(frame[["age"]].assign(colour=0.0), y)
    with pytest.raises(ValueError, match="column colour holds 'red', and every"):
        numbers.predict(frame)


def test_behind_a_pipeline_the_last_step_gives_intervals_and_measures_and_is_saved(gaps, tmp_path):
    X, y = gaps
    pipe = make_pipeline(StandardScaler(), OnePassClassifier("ensemble", **FAST)).fit(X, y)
    rows = pipe[:-1].transform(X)
    low, high = pipe[-1].predict_interval(rows)
    inside = pipe.predict_proba(X)
    assert np.mean((low <= inside) & (inside <= high)) > 0.9
    assert len(pipe[-1].uncertainty(rows)) == 400
    pipe[-1].save(tmp_path)
    np.testing.assert_allclose(OnePassClassifier.load(tmp_path).predict_proba(rows), inside, rtol=1e-12)
    weighted = make_pipeline(StandardScaler(), OnePassClassifier("ensemble", **FAST))
    weighted.fit(X, y, onepassclassifier__sample_weight=np.where(y == 1, 9.0, 1.0))
    assert weighted.predict_proba(X)[:, 1].mean() > inside[:, 1].mean()


@pytest.mark.parametrize("keep", ["age", "city"])
def test_passing_a_feature_through_changes_no_prediction(keep, tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"age": rng.integers(20, 80, 200).astype(object), "city": rng.choice(["Ulm", "Bonn", ""], 200)}
    )
    table.loc[rng.random(200) < 0.2, "age"] = ""
    table["ill"] = np.where(rng.random(200) < 0.5, "no", "yes")
    table.to_csv(tmp_path / "table.csv", index=False)
    frame = read_frame(tmp_path / "table.csv")
    encoding, _ = Encoding.of(frame, "ill")
    model = OnePassClassifier("forest", epochs=2, hidden=(8,), random_state=0).fit(encoding.matrix(frame), frame["ill"])
    model.save(tmp_path / "run")
    (tmp_path / "run" / "encoding.json").write_text(json.dumps(encoding.as_dict()))
    for out, passed in (("plain.csv", []), ("kept.csv", [keep])):
        predict_table(
            tmp_path / "run", tmp_path / "table.csv", tmp_path / out, keep=passed, console=Console(quiet=True)
        )
    plain, kept = (pd.read_csv(tmp_path / name, keep_default_na=False) for name in ("plain.csv", "kept.csv"))
    assert kept.pop(keep).astype(str).tolist() == table[keep].astype(str).tolist()  # as it stands in the file
    pd.testing.assert_frame_equal(kept, plain)
