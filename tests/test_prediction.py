"""Predictions: one answer for every kind of inputs, arrays out, and tables to look at."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import opu
from opu import measures
from opu.prediction import Prediction, predict_student, predict_teacher

torch.manual_seed(0)
X = torch.randn(50, 4)


class Rows(IterableDataset):
    def __iter__(self):
        return iter(X)


@pytest.fixture(scope="module")
def student():
    torch.manual_seed(0)
    made = opu.students.mlp(4, 3, (8,))
    opu.calibrate(made, torch.randn(200, 4))
    return made


@pytest.fixture
def prediction(student):
    return student.predict(X)


INPUTS = {
    "array": lambda: X.numpy(),
    "float64": lambda: X.numpy().astype(np.float64),
    "lists": lambda: X.double().tolist(),
    "list of arrays": lambda: [row.numpy() for row in X],
    "list of batches": lambda: list(X.split(7)),
    "dataset": lambda: TensorDataset(X, torch.zeros(50)),
    "loader": lambda: DataLoader(TensorDataset(X, torch.zeros(50)), 7),
    "stream": Rows,
    "generator": lambda: iter(X.split(7)),
    "features and labels": lambda: (X, torch.zeros(50)),
}


@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("batch_size", [1, 7, 1024])
def test_inputs_of_every_kind_have_the_same_predictions(student, prediction, make, batch_size):
    found = student.predict(make(), batch_size=batch_size)
    np.testing.assert_allclose(found.probabilities, prediction.probabilities, atol=1e-6)
    np.testing.assert_allclose(found.novelty_p_value, prediction.novelty_p_value, atol=0.011)
    assert list(found.scores) == list(prediction.scores)


def test_a_data_frame_is_predicted(student, prediction):
    found = student.predict(pd.DataFrame(X.numpy(), columns=list("abcd")))
    np.testing.assert_allclose(found.probabilities, prediction.probabilities, atol=1e-6)


def test_predictions_leave_no_trace(student):
    student.train()
    state = torch.get_rng_state()
    prediction = student.predict(X, batch_size=8)
    assert torch.equal(state, torch.get_rng_state())
    assert student.training
    assert all(w.grad is None for w in student.parameters())
    student.eval()
    for values in (prediction.probabilities, prediction.novelty_p_value, *prediction.scores.values()):
        assert isinstance(values, np.ndarray)
    with torch.no_grad():
        np.testing.assert_allclose(prediction.probabilities, student(X).mean.numpy(), atol=1e-6)


def test_batches_are_no_larger_than_asked_for(student):
    sizes = []
    handle = student.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    student.predict(X, batch_size=16)
    handle.remove()
    assert sizes[-4:] == [16, 16, 16, 2]
    with pytest.raises(ValueError, match="batch_size must be at least 1; got 0"):
        student.predict(X, batch_size=0)


def test_no_inputs_are_refused(student):
    with pytest.raises(ValueError, match="inputs must have at least one row"):
        student.predict(X[:0])
    with pytest.raises(ValueError, match="there are no inputs to predict"):
        student.predict(iter(()))


def test_measures_are_attributes(student, prediction):
    with torch.no_grad():
        scores = measures.all_measures(student(X), student.novelty)
    for name, values in scores.items():
        np.testing.assert_allclose(getattr(prediction, name), values, rtol=1e-5, atol=1e-6)
    assert prediction.predicted.tolist() == prediction.probabilities.argmax(1).tolist()
    with pytest.raises(AttributeError, match="a prediction has no 'colour'; its measures are predictive_entropy"):
        prediction.colour  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no novelty: the model was not calibrated, see opu\.calibrate"):
        opu.students.mlp(4, 3, (8,)).predict(X).novelty  # noqa: B018


def test_intervals_are_those_of_the_beta_marginals(prediction):
    low, high = prediction.interval(0.8)
    q = prediction.distribution
    alpha = q.concentration.double().numpy()
    rest = alpha.sum(1, keepdims=True) - alpha
    np.testing.assert_allclose(low, stats.beta.ppf(0.1, alpha, rest), atol=1e-4)
    np.testing.assert_allclose(high, stats.beta.ppf(0.9, alpha, rest), atol=1e-4)


ROWS = {
    "slice": slice(3, 9),
    "backwards": slice(None, None, -1),
    "numbers": np.array([4, 4, 0]),
    "list": [1, 2],
    "mask": np.arange(50) % 2 == 0,
    "one": 7,
    "last": -1,
    "none": slice(0, 0),
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_some_rows_are_a_prediction_of_these_inputs(prediction, rows):
    some, numbers = prediction[rows], np.atleast_1d(np.arange(50)[rows]).copy()
    assert len(some) == len(numbers)
    assert np.array_equal(some.probabilities, prediction.probabilities[numbers])
    assert np.array_equal(some.novelty, prediction.novelty[numbers])
    assert np.array_equal(some.novelty_p_value, prediction.novelty_p_value[numbers])
    assert np.array_equal(some.distribution.mean, prediction.distribution.mean[numbers])
    assert f"{len(numbers)} predictions over 3 classes" in repr(some)


def test_rows_that_do_not_exist_are_refused_and_iteration_ends(prediction):
    with pytest.raises(IndexError):
        prediction[50]
    assert [len(each) for each in prediction[:3]] == [1, 1, 1]


def test_only_some_scores_are_kept(prediction):
    assert list(prediction.only(("novelty",)).scores) == ["novelty"]


def test_columns_and_frames_name_everything(prediction):
    found = prediction.columns(["cat", "dog", "owl"], level=0.5)
    expected = [f"{what}_{name}" for name in ("cat", "dog", "owl") for what in ("probability", "low", "high")]
    assert list(found) == ["prediction", *expected, *prediction.scores, "novelty_p_value", "finite"]
    assert found["prediction"].tolist() == [["cat", "dog", "owl"][k] for k in prediction.predicted]
    assert (found["low_dog"] <= found["high_dog"]).all()
    assert "low_0" not in prediction.columns(level=None)
    with pytest.raises(ValueError, match="there are 3 classes; got 2 names"):
        prediction.columns(["cat", "dog"])
    frame = prediction.to_frame(["cat", "dog", "owl"], level=0.5)
    pd.testing.assert_frame_equal(frame, pd.DataFrame(found))


def test_a_prediction_is_shown_as_a_table(prediction):
    lines = repr(prediction).splitlines()
    assert len(lines) == 12
    assert lines[-1] == "50 predictions over 3 classes; 40 more"
    for word in (
        "class",
        "probability",
        "90% interval",
        "predictive entropy",
        "mutual information",
        "novelty",
        "p-value",
    ):
        assert word in lines[0]
    assert f"{prediction.probabilities.max(1)[0]:.3f}" in lines[1]
    shown = prediction._repr_html_()
    assert shown.count("<tr>") == 11
    assert "90% interval" in shown


def test_a_prediction_can_be_copied_and_kept(prediction):
    for again in (copy.deepcopy(prediction), pickle.loads(pickle.dumps(prediction))):
        assert np.array_equal(again.novelty, prediction.novelty)


def test_a_teachers_prediction_has_no_distribution():
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    prediction = predict_teacher(opu.teachers.MCDropout(net), X, 20, batch_size=16)
    assert prediction.probabilities.shape == (50, 3)
    assert "interval" not in repr(prediction)
    assert "low_0" not in prediction.columns()
    with pytest.raises(ValueError, match="these predictions hold no distribution"):
        prediction.interval()


def test_a_cascades_prediction_says_who_was_asked():
    q = Prediction(np.full((2, 2), 0.5), {"novelty": np.zeros(2)}, by_teacher=np.array([True, False]))
    assert q.fraction == 0.5
    assert q.columns()["by_teacher"].tolist() == [True, False]
    assert "teacher" in repr(q[:1])
    assert "student" in repr(q[1])


def test_inputs_are_checked(student):
    with pytest.raises(ValueError, match="NaN or infinite"):
        predict_student(student, X / 0)
