"""From scores to metrics: detection, calibration, and the comparison with a teacher and with trivial detectors."""

from opu.evaluation import metrics
from opu.evaluation.compare import TEACHER_MEASURES, assess, compare, trivial_detection
from opu.evaluation.trivial import trivial_scores

__all__ = ["TEACHER_MEASURES", "assess", "compare", "metrics", "trivial_detection", "trivial_scores"]
