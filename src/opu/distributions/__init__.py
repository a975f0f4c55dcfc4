"""What a student predicts: distributions on the simplex, their marginals, kernels between them, and pointwise fits."""

from opu.distributions.beta import BetaMarginals
from opu.distributions.dirichlet import Dirichlet, kl_divergence
from opu.distributions.pointwise import maximum_likelihood, minimum_mmd

__all__ = ["BetaMarginals", "Dirichlet", "kl_divergence", "maximum_likelihood", "minimum_mmd"]
