"""Seconds for the whole test set, model by model. Speed does not depend on weights, so nothing need be trained."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from opu import measures
from opu.baselines import CategoricalStudent, ConcentrationStudent
from opu.environment import environment
from opu.experiments import classifiers
from opu.experiments.models import Models
from opu.teachers import MCDropout, Teacher, WeightSamples
from opu.timing import median_seconds


def measure(models: Models) -> dict[str, Any]:
    """Teachers particle by particle and many at once; students and baselines in one pass. All in one run."""
    x, count = models.domain.test, models.scale.num_particles
    dropout, samples = _teachers(models, count)
    seconds = {
        "mc_dropout": _of_teacher(dropout, lambda: _drop(dropout.net, x), x, count),
        "sgld": _of_teacher(samples, lambda: samples.net(x).softmax(-1), x, count),
        "opu": {"one_pass": _one_pass(models.student("bounded"), x)},
        "bdk": {"one_pass": _one_pass(CategoricalStudent(models.classifier()), x)},
        "dpn_vgg": {
            "one_pass": _one_pass(ConcentrationStudent(classifiers.vgg(models.domain.num_classes).to(x.device)), x)
        },
    }
    return {
        "num_inputs": len(x),
        "num_particles": count,
        "seconds": {name: {how: float(f"{s:.3g}") for how, s in each.items()} for name, each in seconds.items()},
        "environment": environment(),
    }


def _teachers(models: Models, count: int) -> tuple[MCDropout, WeightSamples]:
    dropout = MCDropout(models.classifier(dropout=0.5).eval(), consistent=True, memory_budget=models.memory_budget)
    net = models.classifier().eval()
    stacked = {name: w.detach().expand(count, *w.shape).clone() for name, w in net.state_dict().items()}
    return dropout, WeightSamples(net, stacked, memory_budget=models.memory_budget)


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

    return {"naive_loop": _timed(naive_loop, 1), "vectorised": _timed(vectorised, 1)}


def _drop(net: nn.Module, x: Tensor) -> Tensor:
    for layer in net.modules():
        layer.train(isinstance(layer, nn.Dropout))
    answer: Tensor = net(x).softmax(-1)
    net.eval()
    return answer


def _one_pass(student: nn.Module, x: Tensor) -> float:
    student.eval()

    @torch.no_grad()
    def answer() -> None:
        for part in x.split(10_000):
            q = student(part)
            measures.predictive_entropy(q)
            measures.negative_log_precision(q)

    return _timed(answer, 20)


def _timed(function: Callable[[], None], repeats: int) -> float:
    def waited() -> None:
        function()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    waited()
    return median_seconds(waited, repeats)
