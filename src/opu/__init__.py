"""One-Pass Uncertainty: any Bayesian classifier becomes a network that gives its whole uncertainty in one pass.

A teacher turns inputs into particles on the simplex, a student predicts one Dirichlet for each input, an objective says how
far the two are apart, and :func:`distill` ties the three. Measures turn predictions into scores.
"""

from opu import augment, export, fidelity, measures, objectives, students, teachers
from opu._version import __version__
from opu.acceleration import optimize
from opu.cascade import Cascade
from opu.distillation import Recipe, calibrate, distill
from opu.distributions import Dirichlet, kernels, kl_divergence, maximum_likelihood, minimum_mmd
from opu.novelty import Novelty
from opu.students import load

__all__ = [
    "Cascade",
    "Dirichlet",
    "Novelty",
    "Recipe",
    "__version__",
    "augment",
    "calibrate",
    "distill",
    "export",
    "fidelity",
    "kernels",
    "kl_divergence",
    "load",
    "maximum_likelihood",
    "measures",
    "minimum_mmd",
    "objectives",
    "optimize",
    "students",
    "teachers",
]
