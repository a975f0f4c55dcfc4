"""What a student predicts: distributions on the simplex, their marginals, kernels between them, and pointwise fits."""

from collections.abc import Sequence

from opu.distributions.beta import BetaMarginals
from opu.distributions.dirichlet import Dirichlet, kl_divergence
from opu.distributions.log_ratio_fit import fit_logistic_normal
from opu.distributions.logistic_normal import LogisticNormal
from opu.distributions.pointwise import maximum_likelihood, minimum_mmd

__all__ = [
    "BetaMarginals",
    "Dirichlet",
    "LogisticNormal",
    "SimplexDistribution",
    "cat",
    "fit_logistic_normal",
    "kl_divergence",
    "maximum_likelihood",
    "minimum_mmd",
]

SimplexDistribution = Dirichlet | LogisticNormal


def cat(parts: Sequence[SimplexDistribution]) -> SimplexDistribution:
    """Several batches of one family as one."""
    return type(parts[0]).cat(parts)  # type: ignore[arg-type]
