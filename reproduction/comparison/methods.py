"""The methods of the comparison. Each is fitted to the models of a seed, and predicts class probabilities and scores."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from jaxtyping import Float
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from opu.distributions.dirichlet import Dirichlet
from opu.evaluation import metrics
from opu.measures import MEASURES, mean, named
from opu.students import Student
from opu.teachers import LaplaceLastLayer, Teacher, laplace
from reproduction.baselines import CategoricalStudent
from reproduction.comparison import deep
from reproduction.comparison.laplace_bridge import bridge
from reproduction.paper.models import NUM_MEMBERS, Models
from reproduction.paper.rows import ROBUST, Row

LAPLACE_SAMPLES = 100
ENTROPY, CONFIDENCE, PRECISION, INFORMATION, NOVELTY = named("E", "P", "C", "MI", "N")
ENERGY, FEATURE_DISTANCE = "energy", "feature_distance"

Scores = dict[str, Tensor]
Predict = Callable[[Tensor], tuple[Tensor, Scores]]


@dataclass(frozen=True)
class Fitted:
    """A fitted method.

    Attributes:
        predict: Gives the class probabilities of a batch, and scores that grow with uncertainty.
        num_parameters: Number of values that must be kept to predict.
    """

    predict: Predict
    num_parameters: int


@dataclass(frozen=True)
class Method:
    """One row of the comparison.

    Attributes:
        name: The name in the table, with the score for OOD inputs.
        fit: Fits the method to the models of a seed.
        ood_score: The score that finds OOD inputs, fixed in advance.
        error_score: The score that finds errors, fixed in advance.
    """

    name: str
    fit: Callable[[Models], Fitted]
    ood_score: str
    error_score: str = CONFIDENCE


def _one_network(models: Models) -> Fitted:
    net = models.member(0)
    return Fitted(partial(_from_logits, net, 1.0), count(net))


def _temperature_scaling(models: Models) -> Fitted:
    """The same network with one temperature, by the likelihood of held-out labels."""
    net, domain = models.member(0), models.domain
    with torch.no_grad():
        temperature = best_temperature(net(domain.held_out), domain.held_out_labels)
    return Fitted(partial(_from_logits, net, temperature), count(net) + 1)


def best_temperature(logits: Float[Tensor, "N K"], labels: Tensor) -> float:
    """The divisor of the logits under which the labels are most likely."""
    logits = logits.double()

    def loss(log_temperature: float) -> float:
        return float(nn.functional.cross_entropy(logits / math.exp(log_temperature), labels))

    return math.exp(minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded").x)


def _ensemble(models: Models) -> Fitted:
    teacher = models.teacher("ensemble")
    return Fitted(partial(_from_particles, teacher, NUM_MEMBERS), NUM_MEMBERS * count(models.member(0)))


def _mc_dropout(models: Models) -> Fitted:
    teacher = models.teacher("mc_dropout")
    return Fitted(partial(_from_particles, teacher, models.scale.num_particles), count(models.classifier()))


@lru_cache(maxsize=1)
def _laplace_posterior(models: Models) -> LaplaceLastLayer:
    """The posterior of the single network's last layer, which two methods share."""
    return laplace(models.member(0), models.domain.x, models.domain.labels)


def _laplace(models: Models) -> Fitted:
    posterior = _laplace_posterior(models)
    return Fitted(partial(_from_particles, posterior, LAPLACE_SAMPLES), posterior.num_parameters)


def _laplace_bridge(models: Models) -> Fitted:
    posterior, domain = _laplace_posterior(models), models.domain
    held_out = posterior.logits(domain.held_out)
    # Whether to norm is chosen by how well held-out labels are predicted.
    losses = {
        normed: metrics.negative_log_likelihood(bridge(*held_out, normed=normed).mean, domain.held_out_labels)
        for normed in (False, True)
    }
    normed = losses[True] < losses[False]

    def predict(x: Tensor) -> tuple[Tensor, Scores]:
        moments = posterior.logits(x)
        # Norming makes all precisions alike, so that C is that of the plain one.
        plain, chosen = bridge(*moments, normed=False), bridge(*moments, normed=normed)
        return chosen.mean, _mean_scores(chosen.log_mean) | {PRECISION: -plain.log_precision}

    return Fitted(predict, posterior.num_parameters)


def _feature_distance(fit: Callable[[Models], tuple[nn.Module, int]], models: Models) -> Fitted:
    model, size = fit(models)

    def predict(x: Tensor) -> tuple[Tensor, Scores]:
        logits, distance = model(x)
        return logits.softmax(-1), _mean_scores(logits.log_softmax(-1)) | {FEATURE_DISTANCE: distance}

    return Fitted(predict, size)


def _bdk(models: Models) -> Fitted:
    student = models.make(Row("BDK-MCDP", "bdk", "mc_dropout", preset="bdk-mcdp"))
    assert isinstance(student, CategoricalStudent)
    return Fitted(partial(_from_logits, student.net, 1.0), count(student))


def _student(models: Models, teacher: str) -> Fitted:
    student = models.make(Row(f"OPU-{teacher}", "opu", teacher, ROBUST, "robust").for_classes(10))
    assert isinstance(student, Student)

    def predict(x: Tensor) -> tuple[Tensor, Scores]:
        q = student(x)
        names = (ENTROPY, CONFIDENCE, PRECISION, INFORMATION, NOVELTY)
        return q.mean, {name: MEASURES[name](q, student.novelty) for name in names}

    return Fitted(predict, count(student) + sum(buffer.numel() for buffer in student.buffers()))


def _from_logits(net: nn.Module, temperature: float, x: Tensor) -> tuple[Tensor, Scores]:
    logits = net(x).double() / temperature
    scores = _mean_scores(logits.log_softmax(-1)) | {ENERGY: -temperature * logits.logsumexp(-1)}
    return logits.softmax(-1), scores


def _from_particles(teacher: Teacher, num_particles: int, x: Tensor) -> tuple[Tensor, Scores]:
    log_particles = teacher(x, num_particles)
    return mean(log_particles), {name: MEASURES[name](log_particles) for name in (ENTROPY, CONFIDENCE, INFORMATION)}


def _mean_scores(log_mean: Tensor) -> Scores:
    """E and P of class probabilities."""
    point = Dirichlet.from_logits(log_mean, log_mean.new_zeros(len(log_mean)))
    return {name: MEASURES[name](point) for name in (ENTROPY, CONFIDENCE)}


def count(module: nn.Module) -> int:
    """Number of parameters of a module."""
    return sum(p.numel() for p in module.parameters())


METHODS = [
    Method("one network (P)", _one_network, CONFIDENCE),
    Method("one network (energy)", _one_network, ENERGY),
    Method("temperature scaling (E)", _temperature_scaling, ENTROPY),
    Method("deep ensemble of 5 (MI)", _ensemble, INFORMATION),
    Method("MC dropout (MI)", _mc_dropout, INFORMATION),
    Method("Laplace in the last layer (MI)", _laplace, INFORMATION),
    Method("Laplace bridge (C)", _laplace_bridge, PRECISION),
    Method("DDU (density)", partial(_feature_distance, deep.ddu), FEATURE_DISTANCE),
    Method("SNGP (evidence)", partial(_feature_distance, deep.sngp), FEATURE_DISTANCE),
    Method("BDK of MC dropout (E)", _bdk, ENTROPY),
    Method("OPU of MC dropout (N)", partial(_student, teacher="mc_dropout"), NOVELTY, NOVELTY),
    Method("OPU of the ensemble (N)", partial(_student, teacher="ensemble"), NOVELTY, NOVELTY),
]
