"""Compare a student with its teacher and with trivial detectors, on a test set and several out-of-distribution sets."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from opu import measures
from opu.checks import check_inputs
from opu.evaluation import metrics
from opu.evaluation.trivial import trivial_scores
from opu.prediction import Prediction, Scores, as_arrays, predict_student, predict_teacher
from opu.teachers import Teacher

Array = NDArray[np.float64]

# The measures that particles have without a fitted Dirichlet.
TEACHER_MEASURES = measures.named("E", "P", "MI")


def trivial_detection(x: Tensor, ood: Mapping[str, Tensor], calibration: Tensor) -> dict[str, dict[str, float]]:
    """AUROC of the trivial detectors for each out-of-distribution set.

    Args:
        x: In-distribution test inputs.
        ood: Out-of-distribution sets by name.
        calibration: In-distribution inputs whose median statistics the detectors compare with.
    """
    inside, result = as_arrays(trivial_scores(x, calibration)), {}
    for name, inputs in ood.items():
        outside = as_arrays(trivial_scores(inputs, calibration))
        result[name] = {m: metrics.auroc(*_joined(inside[m], s)) for m, s in outside.items()}
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
        calibration: Held-out in-distribution inputs whose median statistics the trivial detectors compare with.
        num_particles: Number of particles per input.
    """
    check_inputs(calibration, "calibration inputs")

    def predict(inputs: Tensor) -> dict[str, Prediction]:
        ours = predict_student(student, inputs)
        # The trivial detectors look for the student's errors.
        trivial = Prediction(ours.probabilities, as_arrays(trivial_scores(inputs, calibration)))
        return {"teacher": predict_teacher(teacher, inputs, num_particles), "student": ours, "trivial": trivial}

    inside, outside = predict(x), {name: predict(inputs) for name, inputs in ood.items()}
    result: dict[str, Any] = {"accuracy": {}, "calibration": {}, "misclassification": {"base_rate": {}}, "ood": {}}
    for model, prediction in inside.items():
        probabilities = torch.from_numpy(prediction.probabilities)
        wrong = (probabilities.argmax(-1) != labels).numpy()
        result["misclassification"][model] = _find_errors(prediction.scores, wrong)
        if model != "trivial":
            result["accuracy"][model] = metrics.accuracy(probabilities, labels)
            result["calibration"][model] = _calibration(probabilities, labels)
            result["misclassification"]["base_rate"][model] = 100 * float(wrong.mean())
    result["ood"] = {name: _compare_ood(inside, models) for name, models in outside.items()}
    sets = {"test": inside, **outside}
    return result, {name: {model: p.scores for model, p in models.items()} for name, models in sets.items()}


def assess(inside: Prediction, labels: Tensor, outside: Mapping[str, Prediction]) -> dict[str, Any]:
    """All metrics of one model: accuracy, calibration, and how well each score detects errors and OOD inputs.

    The metrics of a score are None if it is not finite for some input, or if there is nothing to detect. A score that is
    expensive to compute may cover only the first inputs of an out-of-distribution set.

    Args:
        inside: Predictions for the test inputs.
        labels: Classes of the test inputs.
        outside: Predictions for each out-of-distribution set, by name.
    """
    p, labels = torch.from_numpy(inside.probabilities), labels.cpu()
    wrong = (p.argmax(-1) != labels).numpy()
    result: dict[str, Any] = {
        "accuracy": 100 * float(1 - wrong.mean()),
        **_calibration(p, labels),
        "misclassification": {"base_rate": 100 * float(wrong.mean()), **_find_errors(inside.scores, wrong)},
        "ood": {},
    }
    for name, prediction in outside.items():
        count = len(prediction.probabilities)
        base_rate = 100 * count / (len(wrong) + count)
        result["ood"][name] = {"base_rate": base_rate, "count": count, **_find_ood(inside.scores, prediction.scores)}
    return result


def _calibration(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    return {
        "nll": metrics.negative_log_likelihood(probabilities, labels),
        "brier": metrics.brier_score(probabilities, labels),
        "ece": metrics.calibration_error(probabilities, labels),
    }


def _find_errors(scores: Scores, wrong: NDArray[np.bool_]) -> dict[str, dict[str, float] | None]:
    found = {m: metrics.detection_or_none(s, wrong) for m, s in scores.items()}
    return {m: None if each is None else {**each, "aurc": metrics.aurc(scores[m], wrong)} for m, each in found.items()}


def _find_ood(inside: Scores, outside: Scores) -> dict[str, dict[str, float] | None]:
    return {m: metrics.detection_or_none(*_joined(inside[m], s)) for m, s in outside.items()}


def _compare_ood(inside: Mapping[str, Prediction], outside: Mapping[str, Prediction]) -> dict[str, Any]:
    num_inside, count = (len(models["student"].probabilities) for models in (inside, outside))
    table: dict[str, Any] = {"base_rate": 100 * (count / (num_inside + count)), "count": count}
    table |= {model: _find_ood(inside[model].scores, p.scores) for model, p in outside.items()}
    if table["student"].get("novelty") is not None:
        both, positive = _joined(*(models["student"].scores["novelty"] for models in (inside, outside)))
        interval = metrics.bootstrap_interval(metrics.auroc, both, positive, strata=positive, num_resamples=100)
        table["student"]["novelty"]["auroc_interval"] = list(interval)
    return table


def _joined(inside: Array, outside: Array) -> tuple[Array, NDArray[np.bool_]]:
    """The scores of both, and which of them are out of distribution."""
    return np.concatenate([inside, outside]), np.repeat([False, True], [len(inside), len(outside)])
