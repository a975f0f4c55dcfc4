"""Weights of rows and classes: none, ones, zeros, and what they do to each teacher."""

import numpy as np
import pytest
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from opu.sklearn import OnePassClassifier
from opu.sklearn.weights import check_sample_weight, row_weights

FAST = {"epochs": 20, "num_particles": 8, "hidden": (32,), "random_state": 0}


@pytest.fixture(scope="module")
def rare():
    random = np.random.default_rng(0)
    X = random.normal(size=(600, 3))
    return X, (X[:, 0] + 0.7 * random.normal(size=600) > 1.9).astype(int)


def test_weights_of_one_are_no_weights_and_rows_of_weight_zero_are_no_rows(rare):
    X, y = rare[0][:150], rare[1][:150]
    plain = OnePassClassifier("ensemble", **FAST).fit(X, y)
    ones = OnePassClassifier("ensemble", **FAST).fit(X, y, sample_weight=np.ones(150))
    np.testing.assert_array_equal(ones.predict_proba(X), plain.predict_proba(X))
    X2, y2 = np.concatenate([[[9.0, 9.0, 9.0]] * 30, X]), np.concatenate([[2] * 30, y])
    zeros = OnePassClassifier("ensemble", **FAST).fit(X2, y2, sample_weight=[0.0] * 30 + [1.0] * 150)
    assert list(zeros.classes_) == [0, 1]
    np.testing.assert_array_equal(zeros.predict_proba(X), plain.predict_proba(X))
    np.testing.assert_array_equal(zeros.withheld_rows_, plain.withheld_rows_ + 30)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the chain")
@pytest.mark.parametrize(
    "teacher",
    [
        "polya-gamma",
        "forest",
        "ensemble",
        BaggingClassifier(LogisticRegression(), 20),
        RandomForestClassifier(30, min_samples_leaf=5),
    ],
    ids=str,
)
def test_balanced_classes_find_the_rare_one_with_every_teacher(teacher, rare):
    X, y = rare
    assert 0.04 < y.mean() < 0.1
    found = {}
    for weight in (None, "balanced", {0: 1.0, 1: 30.0}):
        model = OnePassClassifier(teacher, class_weight=weight, **FAST).fit(X, y)
        found[str(weight)] = model.predict_proba(X)[:, 1].mean(), np.mean(model.predict(X)[y == 1] == 1)
    (plain, hit), (balanced, more), (heavy, most) = found.values()
    assert plain < balanced < heavy
    assert more > hit
    assert most >= more


@pytest.mark.slow
def test_repeated_rows_have_the_law_of_weighted_ones(rare):
    X, y = rare
    weighted = OnePassClassifier("forest", **FAST).fit(X, y, sample_weight=np.where(y == 1, 5.0, 1.0))
    again = np.repeat(np.arange(600), np.where(y == 1, 5, 1))
    repeated = OnePassClassifier("forest", **FAST).fit(X[again], y[again])
    plain = OnePassClassifier("forest", **FAST).fit(X, y)
    one, other, none = (model.predict_proba(X)[:, 1].mean() for model in (weighted, repeated, plain))
    assert abs(one - other) < 0.5 * (other - none)  # leaves of five rows are not quite the same


def test_weights_of_rows_and_classes_multiply():
    labels, classes = np.array([0, 0, 0, 1]), np.array(["a", "b"])
    assert row_weights(None, None, labels, classes) is None
    np.testing.assert_allclose(row_weights(None, "balanced", labels, classes), [2 / 3, 2 / 3, 2 / 3, 2])
    rows = np.array([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(row_weights(rows, {"b": 5.0}, labels, classes), [1, 2, 3, 20])
    np.testing.assert_array_equal(check_sample_weight(3, 2), [3.0, 3.0])


def test_weights_that_cannot_be_are_refused(rare):
    X, y = rare[0][:50], rare[1][:50]
    fit = OnePassClassifier("ensemble", **FAST).fit
    with pytest.raises(ValueError, match=r"one weight for each of the 50 rows; got shape \(3,\)"):
        fit(X, y, sample_weight=[1, 2, 3])
    with pytest.raises(ValueError, match="finite and at least 0; got negative"):
        fit(X, y, sample_weight=[-1.0] + [1.0] * 49)
    with pytest.raises(ValueError, match="at least one non-zero number; got zeros only"):
        fit(X, y, sample_weight=np.zeros(50))
    with pytest.raises(ValueError, match="must be None, 'balanced', or a dict from classes to weights; got 'even'"):
        OnePassClassifier("ensemble", class_weight="even", **FAST).fit(X, y)
    with pytest.raises(ValueError, match="names the class 7, which has no rows; the classes are 0, 1"):
        OnePassClassifier("ensemble", class_weight={7: 2.0}, **FAST).fit(X, y)
    with pytest.raises(ValueError, match="class_weight must be positive and finite"):
        OnePassClassifier("ensemble", class_weight={1: 0.0}, **FAST).fit(X, y)
    fitted = RandomForestClassifier(5).fit(X, y)
    with pytest.raises(
        ValueError, match="this one is fitted already; give class_weight and sample_weight to its own fit"
    ):
        OnePassClassifier(fitted, class_weight="balanced", **FAST).fit(X, y)
    with pytest.raises(ValueError, match="KNeighborsClassifier cannot weigh rows: its fit takes no sample_weight"):
        OnePassClassifier(KNeighborsClassifier(), class_weight="balanced", **FAST).fit(X, y)
