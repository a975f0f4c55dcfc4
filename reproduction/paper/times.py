"""Seconds for the whole test set, model by model. Speed does not depend on weights, so nothing need be trained."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from opu import measures
from opu.environment import environment
from opu.teachers import MCDropout, Teacher, WeightSamples
from opu.timing import median_seconds
from reproduction.baselines import CategoricalStudent, ConcentrationStudent
from reproduction.paper.models import Models


def measure(models: Models, wanted: set[str]) -> dict[str, Any]:
    """Time teachers in a loop and vectorised, students and baselines in one pass; all in one run.

    Args:
        models: Gives the architectures and the test set.
        wanted: Names of teachers and kinds of rows; a single network is always timed.
    """
    x = models.domain.test
    seconds: dict[str, dict[str, float]] = {}
    if "mc_dropout" in wanted:
        seconds["mc_dropout"] = _mc_dropout(models, x)
    if "sgld" in wanted:
        seconds["sgld"] = _weight_samples(models, x)
    seconds["opu"] = {"one_pass": _one_pass(models.student("softsign"), x)}
    seconds["bdk"] = {"one_pass": _one_pass(CategoricalStudent(models.classifier()), x)}
    if "dpn_vgg" in wanted:
        seconds["dpn_vgg"] = {"one_pass": _one_pass(ConcentrationStudent(models.vgg()), x)}
    return {
        "num_inputs": len(x),
        "num_particles": models.scale.num_particles,
        "seconds": {name: {kind: float(f"{s:.3g}") for kind, s in each.items()} for name, each in seconds.items()},
        "environment": environment(),
    }


def _mc_dropout(models: Models, x: Tensor) -> dict[str, float]:
    net = models.classifier(dropout=0.5).eval()
    teacher = MCDropout(net, consistent=True, memory_budget=models.memory_budget)
    return _of_teacher(teacher, lambda: _drop(net, x), x, models.scale.num_particles)


def _weight_samples(models: Models, x: Tensor) -> dict[str, float]:
    net, count = models.classifier().eval(), models.scale.num_particles
    stacked = {name: w.detach().expand(count, *w.shape).clone() for name, w in net.state_dict().items()}
    teacher = WeightSamples(net, stacked, memory_budget=models.memory_budget)
    return _of_teacher(teacher, lambda: net(x).softmax(-1), x, count)


def _of_teacher(teacher: Teacher, one: Callable[[], Tensor], x: Tensor, count: int) -> dict[str, float]:
    @torch.no_grad()
    def naive_loop() -> None:
        total = one()
        for _ in range(count - 1):
            total = total + one()

    @torch.no_grad()
    def vectorised() -> None:
        for part in x.split(2000):
            measures.mean(teacher(part, count))

    repeats = 3 if x.is_cuda else 1
    if not x.is_cuda:  # on a CPU the whole loop takes long, so a single pass warms up
        one()
    return {"naive_loop": median_seconds(naive_loop, repeats), "vectorised": median_seconds(vectorised, repeats)}


def _drop(net: nn.Module, x: Tensor) -> Tensor:
    for layer in net.modules():
        layer.train(isinstance(layer, nn.Dropout))
    probabilities: Tensor = net(x).softmax(-1)
    net.eval()
    return probabilities


def _one_pass(student: nn.Module, x: Tensor) -> float:
    student.eval()

    @torch.no_grad()
    def predict() -> None:
        for part in x.split(10_000):
            q = student(part)
            measures.predictive_entropy(q)
            measures.negative_log_precision(q)

    return median_seconds(predict, 20 if x.is_cuda else 3)
