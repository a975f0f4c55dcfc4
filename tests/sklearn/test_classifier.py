"""The classifier for tables: what scikit-learn demands of it, and what only it can do."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import special
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import make_blobs, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks

from opu.sklearn import OnePassClassifier

FAST = {"epochs": 30, "num_particles": 8, "hidden": (32,), "random_state": 0}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [OnePassClassifier("ensemble", **FAST | {"epochs": 10})],
    # Repeated rows have the same law as weighted ones, but other random numbers: see test_class_weights.py.
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": "the small networks draw their rows at random"
    },
)
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(400, centers=[[-2.0, 0.0], [2.0, 0.0], [0.0, 3.0]], random_state=1)


@pytest.fixture(scope="module")
def fitted(blobs):
    torch.manual_seed(0)
    X, y = blobs
    return OnePassClassifier("ensemble", random_state=0).fit(X[:300], np.array(["ash", "elm", "oak"])[y[:300]])


def test_it_learns_names_of_classes(fitted, blobs):
    X, y = blobs
    assert fitted.score(X[300:], np.array(["ash", "elm", "oak"])[y[300:]]) > 0.85  # the best possible is about 0.93
    assert list(fitted.classes_) == ["ash", "elm", "oak"]
    np.testing.assert_allclose(fitted.predict_proba(X).sum(-1), 1)


def test_intervals_hold_the_probabilities_and_widen_with_the_level(fitted, blobs):
    X, _ = blobs
    probabilities = fitted.predict_proba(X)
    low, high = fitted.predict_interval(X, 0.5)
    lower, higher = fitted.predict_interval(X, 0.95)
    assert low.shape == probabilities.shape
    assert np.all((lower <= low) & (low <= high) & (high <= higher))
    # A mean may lie outside where the marginal is very skew, but not in most cells.
    assert np.mean((lower <= probabilities) & (probabilities <= higher)) > 0.9
    # The ends are quantiles of the Beta marginals.
    marginals = fitted.predict_dirichlet(X).marginals()
    a, b = marginals.a.numpy(), marginals.b.numpy()
    plain = (a > 0.1) & (b > 0.1) & (higher < 1 - 1e-6)  # beyond that a quantile may round to 1
    assert plain.any()
    np.testing.assert_allclose(special.betainc(a, b, higher)[plain], 0.975, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the chain has mixed poorly")  # well enough for this
def test_with_a_gaussian_process_a_row_far_from_all_is_novel_and_one_like_them_is_not(blobs):
    X, y = blobs
    model = OnePassClassifier("gp", random_state=0, epochs=60).fit(X[:120], y[:120] > 0)
    far = model.uncertainty(np.array([[12.0, -9.0], [-14.0, 10.0], [0.0, -15.0]]))
    inside = model.uncertainty(X[300:])
    assert model.score(X[300:], y[300:] > 0) > 0.85
    assert far["novelty_p_value"].max() < 0.1  # of 20 withheld rows, 1 in 21 is the least
    assert inside["novelty_p_value"].median() > 0.2


def test_the_frame_has_every_measure_and_the_index_of_its_rows(fitted, blobs):
    frame = fitted.uncertainty(blobs[0][:3])
    assert list(frame.columns) == [
        "predictive_entropy", "least_confidence", "negative_log_precision", "differential_entropy",
        "mutual_information", "expected_entropy", "novelty", "novelty_p_value",
    ]  # fmt: skip
    assert fitted.uncertainty(blobs[0][:3].tolist()).equals(frame)
    X = pd.DataFrame(blobs[0][:50], columns=["width", "height"], index=range(100, 150))
    named = OnePassClassifier("ensemble", **FAST).fit(X, blobs[1][:50])
    assert list(named.uncertainty(X).index) == list(range(100, 150))
    with pytest.raises(ValueError, match="feature names"):
        named.predict(X.rename(columns={"width": "length"}))


def test_the_same_seed_gives_the_same_predictions_and_leaves_the_global_state_alone(blobs):
    X, y = blobs
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = OnePassClassifier("ensemble", **FAST).fit(X, y).predict_proba(X)
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(OnePassClassifier("ensemble", **FAST).fit(X, y).predict_proba(X), first)


def test_units_do_not_matter(blobs):
    X, y = blobs
    plain = OnePassClassifier("ensemble", **FAST).fit(X, y).predict_proba(X)
    scaled = OnePassClassifier("ensemble", **FAST).fit(1e4 * X + 7, y).predict_proba(1e4 * X + 7)
    np.testing.assert_allclose(scaled, plain, atol=1e-3)


@pytest.mark.parametrize("kind", [str, bool])
def test_it_is_saved_without_pickle_and_read_back(kind, tmp_path, blobs):
    X, y = blobs
    labels = (y > 0).astype(kind)
    model = OnePassClassifier("ensemble", **FAST).fit(X, labels)
    model.save(tmp_path / "model")
    again = OnePassClassifier.load(tmp_path / "model")
    np.testing.assert_allclose(again.predict_proba(X), model.predict_proba(X), rtol=1e-12)
    assert np.array_equal(again.predict(X), model.predict(X))
    assert again.predict(X)[0] in set(labels)
    np.testing.assert_allclose(again.uncertainty(X), model.uncertainty(X), rtol=1e-9)
    files = sorted(path.relative_to(tmp_path / "model").as_posix() for path in (tmp_path / "model").rglob("*.*"))
    assert files == ["classifier.json", "student/model.safetensors"]


def test_a_damaged_folder_is_refused(tmp_path, fitted):
    with pytest.raises(ValueError, match=r"no saved classifier in .*: classifier\.json is missing"):
        OnePassClassifier.load(tmp_path)
    fitted.save(tmp_path)
    text = (tmp_path / "classifier.json").read_text()
    (tmp_path / "classifier.json").write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match="is not the description of a classifier"):
        OnePassClassifier.load(tmp_path)
    (tmp_path / "classifier.json").write_text(json.dumps(json.loads(text) | {"format": 99}))
    with pytest.raises(ValueError, match="it was edited"):
        OnePassClassifier.load(tmp_path)


def test_it_can_be_cloned_searched_and_piped(blobs):
    X, y = blobs
    assert clone(OnePassClassifier("ensemble", hidden=(7,))).hidden == (7,)
    search = GridSearchCV(OnePassClassifier("ensemble", **FAST), {"hidden": [(4,), (32,)]}, cv=2)
    assert search.fit(X[:120], y[:120]).best_params_["hidden"] in [(4,), (32,)]
    frame = pd.DataFrame({"a": X[:, 0], "colour": np.where(y == 0, "red", "blue")})
    encode = ColumnTransformer([("colour", OneHotEncoder(sparse_output=False), ["colour"])], remainder="passthrough")
    piped = make_pipeline(encode, OnePassClassifier("ensemble", **FAST)).fit(frame, y == 0)
    assert piped.score(frame, y == 0) == 1


def test_pickle_works_though_save_is_better(fitted, blobs):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(blobs[0]), fitted.predict_proba(blobs[0]))


def test_an_ensemble_that_is_not_fitted_is_fitted_and_a_fitted_one_is_taken_as_it_is(blobs):
    X, y = blobs
    forest = RandomForestClassifier(30, min_samples_leaf=5, random_state=0)
    fresh = OnePassClassifier(forest, **FAST).fit(X, y)
    assert not hasattr(forest, "estimators_")
    taken = OnePassClassifier(forest.fit(X[:, :], y), **FAST).fit(X, y)
    for model in (fresh, taken):
        assert np.mean(model.predict(X) == forest.predict(X)) > 0.95


def test_any_teacher_of_raw_rows_will_do(blobs):
    X, y = blobs
    weights = torch.randn(40, 2, 3)
    asked = []

    def teacher(x, num_particles):
        asked.append(x)
        return torch.einsum("bf,sfk->sbk", x, weights[:num_particles].to(x)).log_softmax(-1)

    OnePassClassifier(teacher, **FAST).fit(100 * X, y)
    assert max(float(x.abs().max()) for x in asked) > 300  # raw, not standardised


@pytest.mark.slow
def test_intervals_cover_the_particles_of_a_posterior():
    X, y = make_classification(900, 6, n_informative=4, flip_y=0.2, random_state=3)
    model = OnePassClassifier("polya-gamma", random_state=0).fit(X[:700], y[:700])
    low, high = model.predict_interval(X[700:], 0.9)
    x = model.standardise_(torch.from_numpy(X[700:])).float()
    particles = model.teacher_(x, 500).exp().numpy()
    inside = np.mean((low <= particles) & (particles <= high))
    assert 0.87 <= inside <= 0.93
    assert model.score(X[700:], y[700:]) > 0.75


def test_mistakes_are_named(blobs):
    X, y = blobs
    with pytest.raises(ValueError, match="at least two classes; got one class"):
        OnePassClassifier("ensemble").fit(X, np.zeros(len(X)))
    with pytest.raises(ValueError, match="teacher must be polya-gamma, gp, forest or ensemble"):
        OnePassClassifier("tree").fit(X, y)
    with pytest.raises(ValueError, match="int cannot be called"):
        OnePassClassifier(7).fit(X, y)
    with pytest.raises(ValueError, match="infinity"):
        OnePassClassifier("ensemble").fit(np.where(X > 3, np.inf, X), y)
    with pytest.raises(ValueError, match="could not convert string to float"):
        OnePassClassifier("ensemble").fit(np.array([["a", "b"], ["c", "d"]]), [0, 1])


def test_a_class_with_one_row_is_kept_by_the_teacher():
    X = np.random.default_rng(0).normal(size=(200, 3))
    y = np.array([0] * 150 + [1] * 49 + [2])
    model = OnePassClassifier("ensemble", **FAST).fit(X, y)
    assert model.predict_proba(X).shape == (200, 3)
