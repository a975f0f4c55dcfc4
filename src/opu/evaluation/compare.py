"""A student beside its teacher and the trivial detectors, on one test set and several ood ones."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from opu import measures
from opu.evaluation import metrics
from opu.checks import check_inputs
from opu.prediction import Prediction, Scores, as_arrays, predict_student, predict_teacher
from opu.teachers import Teacher
from opu.evaluation.trivial import trivial_scores

# What a teacher knows of an input without a Dirichlet.
TEACHER_MEASURES = measures.named("E", "P", "MI")


def predict_trivial(x: Tensor, ordinary: Tensor) -> Scores:
    """The scores of the trivial detectors."""
    return as_arrays(trivial_scores(x, ordinary))


def trivial_detection(x: Tensor, ood: Mapping[str, Tensor], ordinary: Tensor) -> dict[str, dict[str, float]]:
    """AUROC of the detectors that know no classes, for each set of strangers."""
    inside = predict_trivial(x, ordinary)
    result = {}
    for name, inputs in ood.items():
        outside = predict_trivial(inputs, ordinary)
        positive = np.repeat([False, True], [len(x), len(inputs)])
        result[name] = {m: metrics.auroc(np.concatenate([inside[m], outside[m]]), positive) for m in inside}
    return result


def compare(
    student: nn.Module,
    teacher: Teacher,
    x: Tensor,
    labels: Tensor,
    ood: Mapping[str, Tensor],
    ordinary: Tensor,
    num_particles: int = 500,
) -> tuple[dict[str, Any], dict[str, dict[str, Scores]]]:
    """All metrics of a run, and the scores they were made from (by set, then by model).

    Args:
        student: Its novelty should be calibrated.
        teacher: Asked for ``num_particles`` particles everywhere.
        x: Test inputs, seen by neither.
        labels: Their classes.
        ood: Out-of-domain sets by name.
        ordinary: Held-out ordinary inputs, which tell the trivial detectors what is usual.
        num_particles: For the teacher.
    """
    check_inputs(ordinary, "ordinary inputs")
    answers = {"teacher": predict_teacher(teacher, x, num_particles), "student": predict_student(student, x)}
    inside = {name: answer.scores for name, answer in answers.items()} | {"trivial": predict_trivial(x, ordinary)}
    result: dict[str, Any] = {"accuracy": {}, "calibration": {}, "misclassification": {}, "ood": {}}
    for name, answer in answers.items():
        result["accuracy"][name] = metrics.accuracy(answer.probabilities, labels)
        result["calibration"][name] = {
            "nll": metrics.negative_log_likelihood(answer.probabilities, labels),
            "brier": metrics.brier_score(answer.probabilities, labels),
            "ece": metrics.calibration_error(answer.probabilities, labels),
        }
    result["misclassification"] = _misclassification(answers, inside, labels)
    scores = {"test": inside}
    for name, inputs in ood.items():
        outside = {
            "teacher": predict_teacher(teacher, inputs, num_particles).scores,
            "student": predict_student(student, inputs).scores,
            "trivial": predict_trivial(inputs, ordinary),
        }
        scores[name] = outside
        result["ood"][name] = _out_of_domain(inside, outside)
    return result, scores


def _misclassification(answers: Mapping[str, Prediction], inside: Mapping[str, Scores], labels: Tensor) -> dict[str, Any]:
    table: dict[str, Any] = {"base_rate": {}}
    errors = {name: (answer.probabilities.argmax(-1) != labels).numpy() for name, answer in answers.items()}
    errors["trivial"] = errors["student"]  # the trivial detectors look for the student's errors
    for name, scores in inside.items():
        wrong = errors[name]
        if name != "trivial":
            table["base_rate"][name] = 100 * float(wrong.mean())
        if wrong.any() and not wrong.all():
            table[name] = {
                m: {**metrics.detection(s, wrong), "aurc": metrics.aurc(s, wrong)} for m, s in scores.items()
            }
        else:  # a model without errors has none to detect
            table[name] = dict.fromkeys(scores)
    return table


def _out_of_domain(inside: Mapping[str, Scores], outside: Mapping[str, Scores]) -> dict[str, Any]:
    some = next(iter(outside["teacher"].values()))
    positive = np.concatenate([np.zeros(len(next(iter(inside["teacher"].values()))), bool), np.ones(len(some), bool)])
    table: dict[str, Any] = {"base_rate": 100 * float(positive.mean()), "count": len(some)}
    for name in outside:
        table[name] = {
            m: metrics.detection(np.concatenate([inside[name][m], s]), positive) for m, s in outside[name].items()
        }
    if "novelty" in outside["student"]:
        both = np.concatenate([inside["student"]["novelty"], outside["student"]["novelty"]])
        interval = metrics.bootstrap_interval(metrics.auroc, both, positive, strata=positive, num_resamples=100)
        table["student"]["novelty"]["auroc_interval"] = list(interval)
    return table


def assess(inside: Prediction, labels: Tensor, outside: Mapping[str, Prediction]) -> dict[str, Any]:
    """All metrics of one model: accuracy, calibration, and how well each score finds errors and strangers.

    A score that is not a number for some input, such as the differential entropy of a runaway precision, gets None. One that
    is dear may be there for the first strangers of a set alone.
    """
    p = inside.probabilities
    wrong = (p.argmax(-1) != labels.to(p.device)).cpu().numpy()
    result: dict[str, Any] = {
        "accuracy": 100 * float(1 - wrong.mean()),
        "nll": metrics.negative_log_likelihood(p, labels.to(p.device)),
        "brier": metrics.brier_score(p, labels.to(p.device)),
        "ece": metrics.calibration_error(p, labels.to(p.device)),
        "misclassification": {"base_rate": 100 * float(wrong.mean())},
        "ood": {},
    }
    for m, s in inside.scores.items():
        found = _detection(s, wrong)
        result["misclassification"][m] = None if found is None else {**found, "aurc": metrics.aurc(s, wrong)}
    for name, answers in outside.items():
        count = len(answers.probabilities)
        result["ood"][name] = {"base_rate": 100 * count / (len(wrong) + count), "count": count} | {
            m: _detection(np.concatenate([inside.scores[m], s]), np.repeat([False, True], [len(wrong), len(s)]))
            for m, s in answers.scores.items()
        }
    return result


def _detection(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> dict[str, float] | None:
    """None where there is nothing to detect, or where a score is not a number: a runaway precision has no entropy."""
    known = positive.any() and not positive.all() and np.isfinite(scores).all()
    return metrics.detection(scores, positive) if known else None
