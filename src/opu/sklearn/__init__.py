"""For people with tables: a scikit-learn classifier whose probabilities come with intervals and a novelty p-value."""

from opu.sklearn.classifier import OnePassClassifier
from opu.teachers.sklearn_ensemble import SklearnEnsemble

__all__ = ["SklearnEnsemble", "OnePassClassifier"]
