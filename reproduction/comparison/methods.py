"""The rivals: each is fitted to the models of a seed and answers with class probabilities and scores that grow with doubt."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from opu import measures
from opu.distributions.dirichlet import Dirichlet
from opu.evaluation import metrics
from opu.students import Student
from opu.teachers import Teacher
from reproduction.baselines import CategoricalStudent
from reproduction.comparison import deep, laplace
from reproduction.paper.models import NUM_MEMBERS, Models
from reproduction.paper.rows import ROBUST, Row

Scores = dict[str, Tensor]
Answer = Callable[[Tensor], tuple[Tensor, Scores]]


@dataclass(frozen=True)
class Fitted:
    """A model that answers.

    Attributes:
        answer: Probabilities and scores of a batch.
        num_parameters: Numbers that must be kept to answer.
    """

    answer: Answer
    num_parameters: int


@dataclass(frozen=True)
class Method:
    """A way to make one, and the scores by which it looks for errors and for strangers, fixed in advance."""

    name: str
    fit: Callable[[Models], Fitted]
    errors: str
    strangers: str


def _deterministic(models: Models) -> Fitted:
    net = models.member(0)
    return Fitted(partial(_of_logits, net, 1.0), count(net))


def _tempered(models: Models) -> Fitted:
    """The same network with one temperature, by the likelihood of held-out labels."""
    net, domain = models.member(0), models.domain
    with torch.no_grad():
        temperature = best_temperature(net(domain.held_out), domain.held_out_labels)
    return Fitted(partial(_of_logits, net, temperature), count(net) + 1)


def best_temperature(logits: Float[Tensor, "N K"], labels: Tensor) -> float:
    """The divisor of the logits under which the labels are most likely."""
    logits = logits.double()

    def surprise(log_temperature: float) -> float:
        return float(nn.functional.cross_entropy(logits / math.exp(log_temperature), labels))

    return math.exp(minimize_scalar(surprise, bounds=(-3.0, 3.0), method="bounded").x)


def _of_logits(net: nn.Module, temperature: float, x: Tensor) -> tuple[Tensor, Scores]:
    logits = net(x).double() / temperature
    scores = of_mean(logits.log_softmax(-1)) | {"energy": -temperature * logits.logsumexp(-1)}
    return logits.softmax(-1), scores


def _monte_carlo(teacher: Teacher, num_particles: int, x: Tensor) -> tuple[Tensor, Scores]:
    log_particles = teacher(x, num_particles)
    names = ("predictive_entropy", "least_confidence", "mutual_information")
    return measures.mean(log_particles), {name: measures.MEASURES[name](log_particles) for name in names}


def _ensemble(models: Models) -> Fitted:
    teacher = models.teacher("ensemble")
    return Fitted(partial(_monte_carlo, teacher, NUM_MEMBERS), NUM_MEMBERS * count(models.member(0)))


def _mc_dropout(models: Models) -> Fitted:
    teacher = models.teacher("mc_dropout")
    return Fitted(partial(_monte_carlo, teacher, models.scale.num_particles), count(models.classifier()))


def _bdk(models: Models) -> Fitted:
    student = models.make(Row("BDK-MCDP", "bdk", "mc_dropout", preset="bdk-mcdp"))
    assert isinstance(student, CategoricalStudent)
    return Fitted(partial(_of_logits, student.net, 1.0), count(student))


def _student(models: Models, teacher: str) -> Fitted:
    student = models.make(Row(f"OPU-{teacher}", "opu", teacher, ROBUST, "robust").for_classes(10))
    assert isinstance(student, Student)

    def answer(x: Tensor) -> tuple[Tensor, Scores]:
        q = student(x)
        assert student.novelty is not None
        return q.mean, of_dirichlet(q) | {"novelty": student.novelty(q)}

    novelty = sum(buffer.numel() for buffer in student.buffers())
    return Fitted(answer, count(student) + novelty)


def _of_bridge(models: Models) -> Fitted:
    """The Laplace bridge: a Dirichlet in closed form from the Gaussian over logits, without sampling or training."""
    posterior, domain = laplace.fit(models), models.domain
    held_out = posterior.logits(domain.held_out)
    # Whether to norm is chosen by how well held-out labels are predicted.
    surprise = {
        normed: metrics.negative_log_likelihood(laplace.bridge(*held_out, normed=normed).mean, domain.held_out_labels)
        for normed in (False, True)
    }
    normed = surprise[True] < surprise[False]

    def answer(x: Tensor) -> tuple[Tensor, Scores]:
        moments = posterior.logits(x)
        # Norming makes all precisions alike, so that C is that of the plain one.
        plain, chosen = laplace.bridge(*moments, normed=False), laplace.bridge(*moments, normed=normed)
        return chosen.mean, of_mean(chosen.log_mean) | {"negative_log_precision": -plain.log_precision}

    return Fitted(answer, posterior.num_parameters)


def _of_laplace(models: Models) -> Fitted:
    posterior = laplace.fit(models)
    return Fitted(partial(_monte_carlo, posterior, laplace.NUM_SAMPLES), posterior.num_parameters)


def _of_features(fit: Callable[[Models], tuple[nn.Module, int]], models: Models) -> Fitted:
    model, size = fit(models)

    def answer(x: Tensor) -> tuple[Tensor, Scores]:
        logits, strangeness = model(x)
        return logits.softmax(-1), of_mean(logits.log_softmax(-1)) | {"strangeness": strangeness}

    return Fitted(answer, size)


def of_mean(log_mean: Tensor) -> Scores:
    """E and P of class probabilities."""
    point = Dirichlet.from_logits(log_mean, log_mean.new_zeros(len(log_mean)))
    return {name: measures.MEASURES[name](point) for name in ("predictive_entropy", "least_confidence")}


def of_dirichlet(q: Dirichlet) -> Scores:
    """E, P, C and MI of a Dirichlet."""
    names = ("predictive_entropy", "least_confidence", "negative_log_precision", "mutual_information")
    return {name: measures.MEASURES[name](q) for name in names}


def count(module: nn.Module) -> int:
    """Its parameters."""
    return sum(p.numel() for p in module.parameters())


METHODS = [
    Method("one network (P)", _deterministic, "least_confidence", "least_confidence"),
    Method("one network (energy)", _deterministic, "least_confidence", "energy"),
    Method("temperature scaling (E)", _tempered, "least_confidence", "predictive_entropy"),
    Method("deep ensemble of 5 (MI)", _ensemble, "least_confidence", "mutual_information"),
    Method("MC dropout (MI)", _mc_dropout, "least_confidence", "mutual_information"),
    Method("Laplace in the last layer (MI)", _of_laplace, "least_confidence", "mutual_information"),
    Method("Laplace bridge (C)", _of_bridge, "least_confidence", "negative_log_precision"),
    Method("DDU (density)", partial(_of_features, deep.ddu), "least_confidence", "strangeness"),
    Method("SNGP (evidence)", partial(_of_features, deep.sngp), "least_confidence", "strangeness"),
    Method("BDK of MC dropout (E)", _bdk, "least_confidence", "predictive_entropy"),
    Method("OPU of MC dropout (N)", partial(_student, teacher="mc_dropout"), "novelty", "novelty"),
    Method("OPU of the ensemble (N)", partial(_student, teacher="ensemble"), "novelty", "novelty"),
]
