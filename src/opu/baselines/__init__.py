"""What others do instead, on the same footing: the same teachers, inputs, broadening and evaluation."""

from opu.baselines.bdk import CategoricalStudent
from opu.baselines.compact import best_group, compact_approximation
from opu.baselines.concentration import ConcentrationStudent
from opu.baselines.dpn import FactorNoise, prior_network_loss

__all__ = [
    "CategoricalStudent",
    "ConcentrationStudent",
    "FactorNoise",
    "best_group",
    "compact_approximation",
    "prior_network_loss",
]
