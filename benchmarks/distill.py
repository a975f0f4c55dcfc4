"""``opu bench distill``: the cost of a step by objective and size, and how long a whole distillation takes."""

import statistics
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

import opu
from benchmarks import options
from benchmarks.clock import take_turns
from benchmarks.passes import dropout_mlp, mc_dropout
from benchmarks.show import show_distill
from opu import measures, objectives
from opu.cuda_graph import CudaGraph
from opu.evaluation import metrics
from opu.terminal import say
from opu.timing import median_seconds, now
from reproduction.paper.domains import Domain, mnist
from reproduction.paper.models import Models, Scale
from reproduction.paper.rows import select

OBJECTIVES = ("kl", "clipped_kl", "cross_entropy", "mmd", "mmd_polynomial", "mmd_sampled", "sinkhorn", "emd")
SLOW = ("sinkhorn", "emd")  # timed on half of the batches
GROWN = ("kl", "mmd", "default")
INPUTS_PER_EPOCH = 60_000
EPOCHS = 40  # passes over MNIST in the whole distillation, as in the tables
FULL_PARTICLES = {"cuda": 64, "cpu": 16}  # per input and step of it; 8 were as good as 64 in the log


@dataclass(frozen=True)
class Size:
    """The size of one step: particles per input, classes, and inputs per batch."""

    particles: int = 64
    classes: int = 10
    batch: int = 256


def command(
    device: str, rounds: int, particles: int, full: bool, out: Path | None, record: bool, console: Console
) -> None:
    """Time steps and, if asked for, a whole distillation; print the tables and write the file.

    Args:
        device: ``cpu`` or ``cuda``.
        rounds: Number of timings of each row.
        particles: Number of particles per input and step.
        full: Also distil a teacher of all MNIST.
        out: File for the numbers.
        record: Write the numbers to ``results/``.
        console: Where to print.
    """
    path = options.destination(f"distill-{device}", out, record)
    result = _time_steps(Size(particles), device, rounds, console)
    if full:
        options.write(path, result)  # what follows takes minutes
        say(console, "all of MNIST: the teacher is trained first, and its time is not counted")
        scale = Scale(epochs=EPOCHS, step_particles=FULL_PARTICLES[device])
        result["full"] = distill_mnist(mnist(), scale, torch.device(device))
    show_distill(result, console)
    options.write(path, result)


def _time_steps(usual: Size, device: str, rounds: int, console: Console) -> dict[str, Any]:
    step = partial(_step, device=device, rounds=rounds)
    say(console, "objectives")
    found = {name: step(name, usual) for name in (*OBJECTIVES, "default")}
    say(console, "a bank of particles")
    banked = {name: step(name, usual, banked=True) for name in GROWN}
    growth: dict[str, list[dict[str, Any]]] = {}
    for what, sizes in sizes_around(usual).items():
        say(console, f"growth with {what}")
        growth[what] = [
            {
                "size": vars(size),
                "seconds": {name: (found[name] if size == usual else step(name, size))["seconds"] for name in GROWN},
            }
            for size in sizes
        ]
    say(console, "objectives alone, with a thousand classes")
    large = replace(usual, classes=1000)
    return {
        "device": device,
        "usual": vars(usual),
        "rounds": rounds,
        "inputs_per_epoch": INPUTS_PER_EPOCH,
        "objectives": found,
        "banked": banked,
        "growth": growth,
        "alone": _alone(large, device, rounds),
        **({"alone_captured": _alone(large, device, rounds, captured=True)} if device == "cuda" else {}),
    }


def sizes_around(usual: Size) -> dict[str, list[Size]]:
    """Sizes that differ from the usual one in a single number."""
    return {
        "particles": [replace(usual, particles=n) for n in (16, 64, 500)],
        "classes": [replace(usual, classes=n) for n in (10, 47, 1000)],
        "batch": [replace(usual, batch=n) for n in (64, 256, 1024)],
    }


def _step(name: str, size: Size, *, device: str, rounds: int, banked: bool = False) -> dict[str, float]:
    """Seconds of a step in a user's run: the time that more epochs add to ``distill``, divided by their steps."""
    on_gpu = device == "cuda"
    few, many, batches = (1, 11, 10) if on_gpu else (1, 3, 4 if size.classes <= 100 else 2)
    if name in SLOW:
        batches = batches // 2
    teacher = mc_dropout(dropout_mlp(784, (400, 400), size.classes).to(device), consistent=True)
    x = torch.rand(batches * size.batch, 28, 28, device=device)
    recipe = opu.Recipe(
        objective=None if name == "default" else name,
        num_particles=size.particles,
        batch_size=size.batch,
        bank=size.particles if banked else None,
        cuda_graph=on_gpu and name != "emd" and not banked,  # a critic and a bank wait for the CPU
    )

    def seconds(epochs: int) -> float:
        torch.manual_seed(0)
        student = opu.students.mlp(784, size.classes, (400, 400)).to(device)
        settings = replace(recipe, epochs=epochs)
        return median_seconds(
            lambda: opu.distill(teacher, student, x, recipe=settings, held_out=0, progress=False), repeats=1
        )

    seconds(few)
    steps = (many - few) * batches * (2 if banked else 1)  # a bank holds as many augmented inputs again
    costs, opening = [], []
    for _ in range(rounds):
        short = seconds(few)
        costs.append((seconds(many) - short) / steps)
        opening.append(short - costs[-1] * few * steps / (many - few))
    return {
        "seconds": statistics.median(costs),
        "least": min(costs),
        "most": max(costs),
        "before_the_first": statistics.median(opening),
    }


def _alone(size: Size, device: str, rounds: int, *, captured: bool = False) -> dict[str, float]:
    """Seconds of objectives forward and backward, without teacher and student; as CUDA graphs, like steps, or not."""
    torch.manual_seed(0)
    log_particles = (2 * torch.randn(size.particles, size.batch, size.classes, device=device)).log_softmax(-1)
    logits = torch.randn(size.batch, size.classes, device=device, requires_grad=True)
    log_precision = torch.randn(size.batch, device=device, requires_grad=True)

    def once(objective: objectives.Objective) -> torch.Tensor:
        value = objective(logits, log_particles, opu.Dirichlet.from_logits(logits, log_precision)).mean()
        torch.autograd.grad(value, (logits, log_precision))
        return value.detach()

    calls = {name: partial(once, objectives.parse(name)) for name in ("kl", "clipped_kl", "mmd")}
    timed = take_turns(
        {name: CudaGraph(call).capture().replay if captured else call for name, call in calls.items()}, max(3, rounds)
    )
    return {name: each.median for name, each in timed.items()}


def distill_mnist(domain: Domain, scale: Scale, device: torch.device) -> dict[str, Any]:
    """Distil by the robust recipe, from a trained teacher to a calibrated student: its time and its quality."""
    domain = domain.to(device)
    (row,) = select("mnist-robust", ["OPU-MCDP (robust)"])
    with tempfile.TemporaryDirectory() as folder:
        models = Models(domain, scale, 0, Path(folder), device, progress=False)
        teacher = models.teacher("mc_dropout")
        began = now()
        student = models.make(row.for_classes(domain.num_classes))
        seconds = now() - began
    assert isinstance(student, opu.students.Student)
    assert student.novelty is not None
    with torch.no_grad():
        theirs = torch.cat([measures.mean(teacher(part, 100)) for part in domain.test.split(1000)])
        ours = student(domain.test).mean
        inside, *outside = (
            student.novelty(student(x)).double().cpu().numpy() for x in (domain.test, *domain.ood.values())
        )
    return {
        "seconds": seconds,
        "particles": scale.step_particles,
        "accuracy": metrics.accuracy(ours, domain.test_labels),
        "teacher_accuracy": metrics.accuracy(theirs, domain.test_labels),
        "total_variation": float((ours - theirs).abs().sum(-1).mean() / 2),
        "ood_by_novelty": {
            name: metrics.auroc(np.append(inside, each), np.repeat([False, True], [len(inside), len(each)]))
            for name, each in zip(domain.ood, outside, strict=True)
        },
    }
