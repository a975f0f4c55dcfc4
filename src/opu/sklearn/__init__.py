"""A scikit-learn classifier for tables whose probabilities come with intervals and a novelty p-value."""

from opu.sklearn.classifier import OnePassClassifier
from opu.teachers.sklearn_ensemble import SklearnEnsemble

__all__ = ["OnePassClassifier", "SklearnEnsemble"]
