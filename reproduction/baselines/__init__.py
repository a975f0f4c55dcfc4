"""Other methods to distil or replace a teacher, with the same inputs, augmentation and evaluation as ours."""

from reproduction.baselines.bdk import CategoricalStudent
from reproduction.baselines.compact import best_group, compact_approximation
from reproduction.baselines.concentration import ConcentrationStudent
from reproduction.baselines.dpn import FactorNoise, prior_network_loss

__all__ = [
    "CategoricalStudent",
    "ConcentrationStudent",
    "FactorNoise",
    "best_group",
    "compact_approximation",
    "prior_network_loss",
]
