"""Bayesian classifiers as sources of particles: ``teacher(x, num_particles) -> (S, B, K)`` log-probabilities."""

from opu.teachers.base import Teacher
from opu.teachers.diagnostics import Mixing
from opu.teachers.ensemble import Ensemble
from opu.teachers.function import Function
from opu.teachers.logistic import GibbsSettings, polya_gamma
from opu.teachers.logistic_samples import LogisticSamples
from opu.teachers.mc_dropout import MCDropout
from opu.teachers.particle_bank import ParticleBank
from opu.teachers.sgld import Chain, LangevinSettings, sgld
from opu.teachers.weight_samples import WeightSamples

__all__ = [
    "Chain",
    "Ensemble",
    "Function",
    "GibbsSettings",
    "LangevinSettings",
    "LogisticSamples",
    "MCDropout",
    "Mixing",
    "ParticleBank",
    "Teacher",
    "WeightSamples",
    "polya_gamma",
    "sgld",
]
