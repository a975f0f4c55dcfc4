"""``opu bench distill``: what a step costs by objective and size, and how long a student of full quality takes."""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import opu
from benchmarks.passes import dropout_mlp
from opu import measures, objectives
from opu.cuda_graph import WARM_UP, CudaGraph
from opu.environment import environment
from opu.evaluation import metrics
from opu.files import write_json
from opu.teachers import MCDropout
from opu.timing import wait

OBJECTIVES = (
    "kl",
    "clipped_kl",
    "cross_entropy",
    "mmd",
    "mmd_polynomial",
    "mmd_sampled",
    "sinkhorn",
    "emd",
)
GROWN = ("kl", "mmd", "default")
INPUTS_PER_EPOCH = 60_000
EPOCHS = 40  # of the whole distillation, as in the tables
WHOLE_PARTICLES = {"cuda": 64, "cpu": 16}  # for each input and step; 8 were as good as 64 in the log's first round
SLOW = ("sinkhorn", "emd")


@dataclass(frozen=True)
class Size:
    """Of one step."""

    particles: int = 64
    classes: int = 10
    batch: int = 256


def bench_distill(
    out: Path, *, device: str, rounds: int, particles: int, full: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Time steps, and with ``full`` a whole distillation on MNIST, and write the file."""
    usual = Size(particles)
    names = (*OBJECTIVES, "default")
    result: dict[str, Any] = {
        "device": device,
        "usual": vars(usual),
        "rounds": rounds,
        "inputs_per_epoch": INPUTS_PER_EPOCH,
    }
    say("objectives")
    result["objectives"] = {name: _step(name, usual, device, rounds) for name in names}
    say("a bank of particles")
    result["banked"] = {name: _step(name, usual, device, rounds, banked=True) for name in GROWN}
    result["growth"] = {}
    for what, sizes in sizes_around(usual).items():
        say(f"growth with {what}")
        result["growth"][what] = [
            {"size": vars(size), "seconds": {name: _grown(name, size, result, rounds) for name in GROWN}}
            for size in sizes
        ]
    say("objectives alone, with a thousand classes")
    result["alone"] = _alone(replace(usual, classes=1000), device, rounds)
    if device == "cuda":
        result["alone_recorded"] = _alone(replace(usual, classes=1000), device, rounds, record=True)
    result["environment"] = environment()
    write_json(out, result)
    if full:
        say("MNIST whole: the teacher is trained first, and not counted")
        result["full"] = _whole_mnist(device, WHOLE_PARTICLES[device])
        write_json(out, result)
    return result


def sizes_around(usual: Size) -> dict[str, list[Size]]:
    """One number at a time."""
    return {
        "particles": [replace(usual, particles=n) for n in (16, 64, 500)],
        "classes": [replace(usual, classes=n) for n in (10, 47, 1000)],
        "batch": [replace(usual, batch=n) for n in (64, 256, 1024)],
    }


def _grown(name: str, size: Size, result: dict[str, Any], rounds: int) -> float:
    if vars(size) == result["usual"]:
        found: float = result["objectives"][name]["seconds"]
        return found
    return _step(name, size, result["device"], rounds)["seconds"]


def _step(name: str, size: Size, device: str, rounds: int, *, banked: bool = False) -> dict[str, float]:
    """Seconds of a step, as a user's run takes them: what more epochs add to ``distill``, over their steps."""
    on_gpu = device == "cuda"
    few, many, batches = (1, 11, 10) if on_gpu else (1, 3, 4 if size.classes <= 100 else 2)
    if name in SLOW:
        batches = batches // 2
    net = dropout_mlp(784, (400, 400), size.classes).to(device)
    teacher = MCDropout(net, consistent=True, memory_budget=2**32 if on_gpu else 2**28)
    x = torch.rand(batches * size.batch, 28, 28, device=device)

    def run(epochs: int) -> float:
        torch.manual_seed(0)
        student = opu.students.mlp(784, size.classes, (400, 400)).to(device)
        wait()
        began = time.perf_counter()
        opu.distill(
            teacher,
            student,
            x,
            objective=None if name == "default" else name,
            num_particles=size.particles,
            batch_size=size.batch,
            epochs=epochs,
            held_out=0,
            bank=size.particles if banked else None,
            graph=on_gpu and name != "emd" and not banked,  # a critic and a bank wait for the CPU
            progress=False,
        )
        wait()
        return time.perf_counter() - began

    run(few)
    steps = (many - few) * batches * (2 if banked else 1)  # a bank holds as many augmented inputs again
    costs, opening = [], []
    for _ in range(rounds):
        short = run(few)
        costs.append((run(many) - short) / steps)
        opening.append(short - costs[-1] * few * steps / (many - few))
    return {
        "seconds": statistics.median(costs),
        "least": min(costs),
        "most": max(costs),
        "before_the_first": statistics.median(opening),
    }


def _alone(size: Size, device: str, rounds: int, *, record: bool = False) -> dict[str, float]:
    """Seconds of objectives forward and backward, without teacher and student; recorded, as the steps above are, or not."""
    torch.manual_seed(0)
    log_particles = (2 * torch.randn(size.particles, size.batch, size.classes, device=device)).log_softmax(-1)
    logits = torch.randn(size.batch, size.classes, device=device, requires_grad=True)
    log_precision = torch.randn(size.batch, device=device, requires_grad=True)
    found = {}
    for name in ("kl", "clipped_kl", "mmd"):
        objective = objectives.parse(name)

        def once(objective: objectives.Objective = objective) -> torch.Tensor:
            value = objective(logits, log_particles, opu.Dirichlet.from_logits(logits, log_precision)).mean()
            torch.autograd.grad(value, (logits, log_precision))
            return value.detach()

        way = CudaGraph(once) if record else once
        for _ in range(WARM_UP + 1 if record else 1):
            way()
        times = []
        for _ in range(max(3, rounds)):
            wait()
            began = time.perf_counter()
            for _ in range(10 if device == "cuda" else 1):
                way()
            wait()
            times.append((time.perf_counter() - began) / (10 if device == "cuda" else 1))
        found[name] = statistics.median(times)
    return found


def _whole_mnist(device: str, particles: int) -> dict[str, Any]:
    """The robust recipe on all of MNIST, from a trained teacher to a calibrated student."""
    from reproduction.paper.domains import mnist
    from reproduction.paper.models import Models, Scale
    from reproduction.paper.rows import select

    (row,) = select("mnist-robust", ["OPU-MCDP (robust)"])
    with tempfile.TemporaryDirectory() as folder:
        domain = mnist().to(torch.device(device))
        models = Models(
            domain,
            Scale(epochs=EPOCHS, step_particles=particles),
            0,
            Path(folder),
            torch.device(device),
            progress=False,
        )
        row = row.for_classes(domain.num_classes)
        teacher = models.teacher("mc_dropout")
        wait()
        began = time.perf_counter()
        student = models.make(row)
        wait()
        seconds = time.perf_counter() - began
    assert isinstance(student, opu.students.Student)
    assert student.novelty is not None
    with torch.no_grad():
        theirs = torch.cat([measures.mean(teacher(part, 100)) for part in domain.test.split(1000)])
        ours = student(domain.test).mean
        ordinary, *strange = (student.novelty(student(x)).double().cpu() for x in (domain.test, *domain.ood.values()))
    found = {
        name: metrics.auroc(torch.cat([ordinary, each]).numpy(), np.repeat([False, True], [len(ordinary), len(each)]))
        for name, each in zip(domain.ood, strange, strict=True)
    }
    labels = domain.test_labels
    return {
        "seconds": seconds,
        "particles": particles,
        "accuracy": 100 * float((ours.argmax(-1) == labels).float().mean()),
        "teacher_accuracy": 100 * float((theirs.argmax(-1) == labels).float().mean()),
        "total_variation": float((ours - theirs).abs().sum(-1).mean() / 2),
        "strangers_by_novelty": found,
    }
