"""The comparison on a small problem whose particles are known: its shape, and every number made again from its scores."""

import json
import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor

from opu import measures, students
from opu.distillation import calibrate
from opu.evaluation import assess, compare
from opu.evaluation.metrics import aurc, brier_score, calibration_error
from opu.evaluation.trivial import trivial_scores
from opu.prediction import Prediction, predict_student, predict_teacher

NUM_FEATURES, NUM_CLASSES = 4, 3
WEIGHTS = torch.tensor([[2.0, 0.0, -1.0], [-1.0, 2.0, 0.0], [0.0, -1.0, 2.0], [0.5, 0.5, -1.0]])
OFFSETS = torch.linspace(-2, 2, 40).unsqueeze(-1) * torch.tensor([1.0, -0.5, 0.3])

TRIVIAL = {"mean_intensity", "norm", "negative_part"}
DETECTION = {"auroc", "aupr", "fpr95"}


def teacher(x: Tensor, num_particles: int) -> Tensor:
    """A teacher without chance: particle s has its own offset of the logits."""
    return (x.flatten(1) @ WEIGHTS + OFFSETS[:num_particles].unsqueeze(1)).log_softmax(-1)


def small_student(calibrated: bool = True) -> students.Student:
    student = students.mlp(NUM_FEATURES, NUM_CLASSES, hidden=(8,))
    if calibrated:
        calibrate(student, torch.randn(50, NUM_FEATURES))
    return student


@pytest.fixture(scope="module")
def problem():
    """Arguments for ``compare``: labels that both models get right and wrong, and two ood sets."""
    torch.manual_seed(0)
    x = torch.randn(90, NUM_FEATURES)
    labels = teacher(x, 40).mean(0).argmax(-1)
    labels[::6] = (labels[::6] + 1) % NUM_CLASSES
    ood = {"far": 5 * torch.randn(30, NUM_FEATURES), "shifted": torch.randn(45, NUM_FEATURES) + 2}
    return {
        "student": small_student(),
        "teacher": teacher,
        "x": x,
        "labels": labels,
        "ood": ood,
        "calibration": torch.randn(51, NUM_FEATURES),
        "num_particles": 40,
    }


@pytest.fixture(scope="module")
def compared(problem):
    return compare(**problem)


def errors_of(problem) -> dict[str, np.ndarray]:
    by_teacher = teacher(problem["x"], 40).exp().mean(0).argmax(-1)
    with torch.no_grad():
        by_student = problem["student"](problem["x"]).mean.argmax(-1)
    student = (by_student != problem["labels"]).numpy()
    return {"teacher": (by_teacher != problem["labels"]).numpy(), "student": student, "trivial": student}


def detection(scores: np.ndarray, positive: np.ndarray) -> dict[str, float]:
    false, true, _ = sk.roc_curve(positive, scores, drop_intermediate=False)
    return {
        "auroc": 100 * sk.roc_auc_score(positive, scores),
        "aupr": 100 * sk.average_precision_score(positive, scores),
        "fpr95": 100 * false[np.flatnonzero(true >= 0.95)[0]],
    }


def names(calibrated: bool = True) -> dict[str, set[str]]:
    ours = set(measures.MEASURES) - {"novelty"}
    return {"teacher": ours, "student": ours | ({"novelty"} if calibrated else set()), "trivial": TRIVIAL}


# Structure


def test_metrics_have_the_shape_that_a_run_folder_promises(compared):
    result, scores = compared
    assert result.keys() == {"accuracy", "calibration", "misclassification", "ood"}
    assert result["accuracy"].keys() == {"teacher", "student"}
    assert result["calibration"].keys() == {"teacher", "student"}
    assert all(part.keys() == {"nll", "brier", "ece"} for part in result["calibration"].values())

    table = result["misclassification"]
    assert table.keys() == {"teacher", "student", "trivial", "base_rate"}
    for model, expected in names().items():
        assert table[model].keys() == expected
        assert all(entry.keys() == DETECTION | {"aurc"} for entry in table[model].values())

    assert result["ood"].keys() == {"far", "shifted"}
    for table in result["ood"].values():
        assert table.keys() == {"teacher", "student", "trivial", "base_rate", "count"}
        for model, expected in names().items():
            assert table[model].keys() == expected
            for measure, entry in table[model].items():
                extra = {"auroc_interval"} if measure == "novelty" else set()
                assert entry.keys() == DETECTION | extra

    assert scores.keys() == {"test", "far", "shifted"}
    for of_set in scores.values():
        assert {model: set(part) for model, part in of_set.items()} == names()


def test_metrics_are_plain_json(compared):
    result, _ = compared
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_a_student_without_calibration_has_no_novelty(problem):
    result, scores = compare(**(problem | {"student": small_student(calibrated=False)}))
    assert result["misclassification"]["student"].keys() == names(calibrated=False)["student"]
    assert "novelty" not in scores["far"]["student"]


def test_images_have_one_more_trivial_detector(problem):
    images = {
        "student": small_student(calibrated=False),
        "x": problem["x"].view(-1, 2, 2),
        "calibration": problem["calibration"].view(-1, 2, 2),
        "ood": {name: x.view(-1, 2, 2) for name, x in problem["ood"].items()},
    }
    result, _ = compare(**(problem | images))
    assert result["ood"]["far"]["trivial"].keys() == TRIVIAL | {"border_ink"}


# Numbers


def test_numbers_are_those_of_the_scores(problem, compared):
    result, scores = compared
    errors = errors_of(problem)
    for model in ("teacher", "student"):
        assert 5 < result["accuracy"][model] < 95
        assert result["accuracy"][model] == pytest.approx(100 * (1 - errors[model].mean()))
        assert result["misclassification"]["base_rate"][model] == pytest.approx(100 * errors[model].mean())
    for model, of_model in scores["test"].items():
        for measure, values in of_model.items():
            want = detection(values, errors[model]) | {"aurc": aurc(values, errors[model])}
            assert result["misclassification"][model][measure] == pytest.approx(want), (model, measure)
    for name, x in problem["ood"].items():
        table = result["ood"][name]
        assert table["count"] == len(x)
        assert table["base_rate"] == pytest.approx(100 * len(x) / (len(x) + 90))
        positive = np.repeat([False, True], [90, len(x)])
        for model, of_model in scores[name].items():
            for measure, values in of_model.items():
                both = np.concatenate([scores["test"][model][measure], values])
                got = {key: table[model][measure][key] for key in DETECTION}
                assert got == pytest.approx(detection(both, positive)), (name, model, measure)


def test_every_rate_is_a_percentage(compared):
    result, _ = compared
    tables = [result["misclassification"], *result["ood"].values()]
    rates = [entry for table in tables for model in names() for entry in table[model].values()]
    numbers = [value for entry in rates for key, value in entry.items() if key != "auroc_interval"]
    assert all(0 <= value <= 100 for value in numbers)
    assert max(numbers) > 1
    for table in result["ood"].values():
        novelty = table["student"]["novelty"]
        low, high = novelty["auroc_interval"]
        assert 0 <= low <= novelty["auroc"] <= high <= 100
        assert high - low < 30


def test_scores_are_the_models_own_measures(problem, compared):
    _, scores = compared
    x, student = problem["x"], problem["student"]
    of_teacher = measures.all_measures(teacher(x, 40))
    with torch.no_grad():
        q = student(x)
        of_student = measures.all_measures(q) | {"novelty": student.novelty(q)}
    of_trivial = trivial_scores(x, problem["calibration"])
    for model, want in [("teacher", of_teacher), ("student", of_student), ("trivial", of_trivial)]:
        for measure, values in want.items():
            np.testing.assert_allclose(scores["test"][model][measure], values.double(), rtol=1e-5, atol=1e-5)


def test_calibration_is_that_of_the_probabilities(problem, compared):
    result, _ = compared
    probabilities = teacher(problem["x"], 40).double().exp().mean(0)
    labels = problem["labels"]
    right = probabilities[range(90), labels]
    got = result["calibration"]["teacher"]
    assert got["nll"] == pytest.approx(-right.log().mean().item(), rel=1e-5)
    assert got["brier"] == pytest.approx((probabilities.square().sum(-1) - 2 * right + 1).mean().item(), rel=1e-5)
    assert got["ece"] == pytest.approx(calibration_error(probabilities, labels), rel=1e-4)


def test_the_teacher_is_asked_for_as_many_particles_as_was_said(problem):
    asked = []

    def counting(x: Tensor, num_particles: int) -> Tensor:
        asked.append(num_particles)
        return teacher(x, num_particles)

    compare(**(problem | {"student": small_student(calibrated=False), "teacher": counting, "num_particles": 7}))
    assert asked == [7, 7, 7]  # the test set and two ood ones


@pytest.mark.parametrize("batch_size", [7, 64])
def test_predictions_do_not_depend_on_the_batch_size(problem, batch_size):
    x, student = problem["x"], problem["student"]
    pairs = [
        (predict_student(student, x), predict_student(student, x, batch_size)),
        (predict_teacher(teacher, x, 40), predict_teacher(teacher, x, 40, batch_size)),
    ]
    for whole, parts in pairs:
        np.testing.assert_allclose(parts.probabilities, whole.probabilities, rtol=1e-5, atol=1e-6)
        assert parts.scores.keys() == whole.scores.keys()
        for measure in whole.scores:
            np.testing.assert_allclose(parts.scores[measure], whole.scores[measure], rtol=1e-4, atol=1e-4)


def test_dropout_is_off_while_a_student_predicts():
    trunk = torch.nn.Sequential(torch.nn.Linear(NUM_FEATURES, 16), torch.nn.Dropout(0.9))
    student = students.from_backbone(trunk, 16, NUM_CLASSES).train()
    x = torch.randn(20, NUM_FEATURES)
    one, two = predict_student(student, x), predict_student(student, x)
    assert np.array_equal(one.probabilities, two.probabilities)


# Corner cases


def test_a_model_without_errors_has_none_to_detect(problem):
    with torch.no_grad():
        labels = problem["student"](problem["x"]).mean.argmax(-1)
    result, _ = compare(**(problem | {"labels": labels, "ood": {}}))
    table = result["misclassification"]
    assert table["student"] == dict.fromkeys(names()["student"])
    assert table["trivial"] == dict.fromkeys(TRIVIAL)  # it looks for the student's errors
    assert table["base_rate"]["student"] == 0.0
    assert all(entry is not None for entry in table["teacher"].values())
    assert result["accuracy"]["student"] == 100.0


def test_a_model_that_is_always_wrong_has_nothing_to_tell_apart(problem):
    with torch.no_grad():
        labels = (problem["student"](problem["x"]).mean.argmax(-1) + 1) % NUM_CLASSES
    result, _ = compare(**(problem | {"labels": labels, "ood": {}}))
    assert result["misclassification"]["student"] == dict.fromkeys(names()["student"])
    assert result["misclassification"]["base_rate"]["student"] == 100.0
    assert result["accuracy"]["student"] == 0.0


def test_no_ood_set_leaves_an_empty_table(problem):
    result, scores = compare(**(problem | {"ood": {}}))
    assert result["ood"] == {}
    assert scores.keys() == {"test"}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_inputs_that_are_not_finite_are_refused(problem, bad):
    spoilt = problem["x"].clone()
    spoilt[3, 1] = bad
    message = "must be finite; got NaN or infinite features in 1 of 90 rows, the first at row 3"
    with pytest.raises(ValueError, match=message):
        compare(**(problem | {"x": spoilt}))
    with pytest.raises(ValueError, match=message):
        compare(**(problem | {"ood": {"spoilt": spoilt}}))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_calibration_inputs_that_are_not_finite_are_refused(problem, bad):
    spoilt = problem["calibration"].clone()
    spoilt[3, 1] = bad
    with pytest.raises(ValueError, match="must be finite; got NaN or infinite features in 1 of 51 rows"):
        compare(**(problem | {"calibration": spoilt, "ood": {}}))


@pytest.mark.parametrize("name", ["x", "ood", "calibration"])
def test_empty_inputs_are_refused(problem, name):
    empty = torch.zeros(0, NUM_FEATURES)
    with pytest.raises(ValueError, match="must have at least one row; got none"):
        compare(**(problem | {name: {"nothing": empty} if name == "ood" else empty}))


@pytest.mark.parametrize("predict", [predict_student, predict_teacher])
def test_predictions_check_their_inputs(predict):
    model = small_student() if predict is predict_student else teacher
    with pytest.raises(ValueError, match="must be finite"):
        predict(model, torch.full((2, NUM_FEATURES), math.nan))
    with pytest.raises(ValueError, match=r"A single example needs a leading axis"):
        predict(model, torch.zeros(NUM_FEATURES))


def test_one_model_is_assessed_by_every_metric_and_a_score_may_be_short():
    probabilities = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    labels = torch.tensor([0, 1, 1, 1])  # the third is an error
    score, broken = np.array([0.1, 0.2, 0.4, 0.3]), np.array([0.1, np.nan, 0.2, 0.3])
    inside = Prediction(probabilities.numpy(), {"score": score, "short": score, "broken": broken})
    outside = Prediction(
        probabilities[:3].numpy(), {"score": np.array([0.5, 0.6, 0.0]), "short": np.array([0.5]), "broken": broken[:3]}
    )
    found = assess(inside, labels, {"ood": outside})
    assert found["accuracy"] == 75
    assert found["brier"] == pytest.approx(brier_score(probabilities, labels))
    errors, ood = found["misclassification"], found["ood"]["ood"]
    assert errors["base_rate"] == 25
    assert errors["score"]["auroc"] == 100
    assert errors["score"]["aurc"] == pytest.approx(25 / 4)  # no error until all are accepted
    assert errors["broken"] is None
    assert ood["base_rate"] == pytest.approx(300 / 7)
    assert ood["count"] == 3
    assert ood["score"]["auroc"] == pytest.approx(100 * 8 / 12)  # two ood above all four, one below
    assert ood["short"]["auroc"] == 100  # its one input
    assert ood["broken"] is None
