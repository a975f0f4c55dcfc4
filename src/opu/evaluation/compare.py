"""Compare a student with its teacher and with trivial detectors, on a test set and several out-of-distribution sets."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from opu import measures
from opu.checks import check_inputs
from opu.evaluation import metrics
from opu.evaluation.trivial import trivial_scores
from opu.prediction import Prediction, Scores, as_arrays, predict_student, predict_teacher
from opu.teachers import Teacher

# The measures that particles have without a fitted Dirichlet.
TEACHER_MEASURES = measures.named("E", "P", "MI")


def trivial_detection(x: Tensor, ood: Mapping[str, Tensor], calibration: Tensor) -> dict[str, dict[str, float]]:
    """AUROC of the trivial detectors for each out-of-distribution set.

    Args:
        x: In-distribution test inputs.
        ood: Out-of-distribution sets by name.
        calibration: In-distribution inputs whose median statistics the detectors compare with.
    """
    inside = as_arrays(trivial_scores(x, calibration))
    result = {}
    for name, inputs in ood.items():
        outside = as_arrays(trivial_scores(inputs, calibration))
        positive = _positive(len(x), len(inputs))
        result[name] = {m: metrics.auroc(np.concatenate([inside[m], outside[m]]), positive) for m in inside}
    return result


def compare(
    student: nn.Module,
    teacher: Teacher,
    x: Tensor,
    labels: Tensor,
    ood: Mapping[str, Tensor],
    calibration: Tensor,
    num_particles: int = 500,
) -> tuple[dict[str, Any], dict[str, dict[str, Scores]]]:
    """All metrics of a run, and the scores behind them (by set, then by model).

    Args:
        student: The student; only a calibrated one has a novelty score.
        teacher: The teacher.
        x: Test inputs that neither has seen.
        labels: Classes of the test inputs.
        ood: Out-of-distribution sets by name.
        calibration: Held-out in-distribution inputs, with which the trivial detectors compare.
        num_particles: Number of the teacher's particles per input.
    """
    check_inputs(calibration, "calibration inputs")
    predictions = {"teacher": predict_teacher(teacher, x, num_particles), "student": predict_student(student, x)}
    inside = {name: prediction.scores for name, prediction in predictions.items()}
    inside["trivial"] = as_arrays(trivial_scores(x, calibration))
    result: dict[str, Any] = {"accuracy": {}, "calibration": {}, "misclassification": {}, "ood": {}}
    for name, prediction in predictions.items():
        result["accuracy"][name] = metrics.accuracy(prediction.probabilities, labels)
        result["calibration"][name] = _calibration(prediction.probabilities, labels)
    result["misclassification"] = _misclassification(predictions, inside, labels)
    scores = {"test": inside}
    for name, inputs in ood.items():
        scores[name] = {
            "teacher": predict_teacher(teacher, inputs, num_particles).scores,
            "student": predict_student(student, inputs).scores,
            "trivial": as_arrays(trivial_scores(inputs, calibration)),
        }
        result["ood"][name] = _out_of_distribution(inside, scores[name])
    return result, scores


def assess(inside: Prediction, labels: Tensor, outside: Mapping[str, Prediction]) -> dict[str, Any]:
    """All metrics of one model: accuracy, calibration, and how well each score detects errors and OOD inputs.

    The metrics of a score are None if it is not finite for some input, as the differential entropy of an exploding
    precision. A score that is expensive to compute may cover only the first inputs of an out-of-distribution set.

    Args:
        inside: Predictions for the test inputs.
        labels: Classes of the test inputs.
        outside: Predictions for each out-of-distribution set, by name.
    """
    p, labels = inside.probabilities, labels.to(inside.probabilities.device)
    wrong = (p.argmax(-1) != labels).cpu().numpy()
    result: dict[str, Any] = {
        "accuracy": 100 * float(1 - wrong.mean()),
        **_calibration(p, labels),
        "misclassification": {"base_rate": 100 * float(wrong.mean())},
        "ood": {},
    }
    for m, s in inside.scores.items():
        found = _detection(s, wrong)
        result["misclassification"][m] = None if found is None else {**found, "aurc": metrics.aurc(s, wrong)}
    for name, prediction in outside.items():
        count = len(prediction.probabilities)
        result["ood"][name] = {"base_rate": 100 * count / (len(wrong) + count), "count": count} | {
            m: _detection(np.concatenate([inside.scores[m], s]), _positive(len(wrong), len(s)))
            for m, s in prediction.scores.items()
        }
    return result


def _calibration(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    return {
        "nll": metrics.negative_log_likelihood(probabilities, labels),
        "brier": metrics.brier_score(probabilities, labels),
        "ece": metrics.calibration_error(probabilities, labels),
    }


def _misclassification(
    predictions: Mapping[str, Prediction], inside: Mapping[str, Scores], labels: Tensor
) -> dict[str, Any]:
    table: dict[str, Any] = {"base_rate": {}}
    errors = {name: (each.probabilities.argmax(-1) != labels).numpy() for name, each in predictions.items()}
    errors["trivial"] = errors["student"]  # the trivial detectors look for the student's errors
    for name, scores in inside.items():
        wrong = errors[name]
        if name != "trivial":
            table["base_rate"][name] = 100 * float(wrong.mean())
        if wrong.any() and not wrong.all():
            table[name] = {
                m: {**metrics.detection(s, wrong), "aurc": metrics.aurc(s, wrong)} for m, s in scores.items()
            }
        else:  # without errors, or with errors only, there is nothing to detect
            table[name] = dict.fromkeys(scores)
    return table


def _out_of_distribution(inside: Mapping[str, Scores], outside: Mapping[str, Scores]) -> dict[str, Any]:
    num_inside, num_outside = (len(next(iter(scores["teacher"].values()))) for scores in (inside, outside))
    positive = _positive(num_inside, num_outside)
    table: dict[str, Any] = {"base_rate": 100 * float(positive.mean()), "count": num_outside}
    for name in outside:
        table[name] = {
            m: metrics.detection(np.concatenate([inside[name][m], s]), positive) for m, s in outside[name].items()
        }
    if "novelty" in outside["student"]:
        both = np.concatenate([inside["student"]["novelty"], outside["student"]["novelty"]])
        interval = metrics.bootstrap_interval(metrics.auroc, both, positive, strata=positive, num_resamples=100)
        table["student"]["novelty"]["auroc_interval"] = list(interval)
    return table


def _positive(num_inside: int, num_outside: int) -> NDArray[np.bool_]:
    return np.repeat([False, True], [num_inside, num_outside])


def _detection(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> dict[str, float] | None:
    known = positive.any() and not positive.all() and np.isfinite(scores).all()
    return metrics.detection(scores, positive) if known else None
