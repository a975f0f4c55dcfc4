"""From scores to metrics: detection, calibration, and the comparison with a teacher and with trivial detectors."""

from opu.evaluation.compare import TEACHER_MEASURES, assess, compare, trivial_detection
from opu.evaluation.metrics import (
    accuracy,
    aurc,
    auroc,
    bootstrap_interval,
    brier_score,
    calibration_error,
    detection,
    fpr_at_tpr,
    negative_log_likelihood,
)
from opu.evaluation.trivial import trivial_scores

__all__ = [
    "TEACHER_MEASURES",
    "accuracy",
    "assess",
    "aurc",
    "auroc",
    "bootstrap_interval",
    "brier_score",
    "calibration_error",
    "compare",
    "detection",
    "fpr_at_tpr",
    "negative_log_likelihood",
    "trivial_detection",
    "trivial_scores",
]
