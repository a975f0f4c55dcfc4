"""Bayesian classifiers as sources of particles: ``teacher(x, num_particles) -> (S, B, K)`` log-probabilities."""

from opu.teachers.base import BaseTeacher, Teacher, as_teacher
from opu.teachers.diagnostics import Mixing
from opu.teachers.ensemble import Ensemble
from opu.teachers.function import Function
from opu.teachers.laplace import LaplaceLastLayer, laplace
from opu.teachers.logistic import GibbsSettings, LogisticSamples, polya_gamma
from opu.teachers.mc_dropout import MCDropout
from opu.teachers.particle_bank import ParticleBank
from opu.teachers.sgld import Chain, LangevinSettings, sgld
from opu.teachers.sgpmc import GPSamples, SGPMCSettings, sgpmc
from opu.teachers.sklearn_ensemble import SklearnEnsemble
from opu.teachers.svgp import SVGP, SVGPSettings, svgp
from opu.teachers.weight_samples import WeightSamples

__all__ = [
    "SVGP",
    "BaseTeacher",
    "Chain",
    "Ensemble",
    "Function",
    "GPSamples",
    "GibbsSettings",
    "LangevinSettings",
    "LaplaceLastLayer",
    "LogisticSamples",
    "MCDropout",
    "Mixing",
    "ParticleBank",
    "SGPMCSettings",
    "SVGPSettings",
    "SklearnEnsemble",
    "Teacher",
    "WeightSamples",
    "as_teacher",
    "laplace",
    "polya_gamma",
    "sgld",
    "sgpmc",
    "svgp",
]
