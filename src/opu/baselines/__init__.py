"""What others do instead, on the same footing: the same teachers, inputs, broadening and evaluation."""

from opu.baselines.bdk import CategoricalStudent, CrossEntropy
from opu.baselines.concentration import ConcentrationStudent
from opu.baselines.dpn import FactorNoise, prior_network_loss

__all__ = ["CategoricalStudent", "ConcentrationStudent", "CrossEntropy", "FactorNoise", "prior_network_loss"]
