"""The demo from end to end: teacher, student, table, speed, pictures."""

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

import opu
from opu import measures, plotting
from opu.demo import data
from opu.distillation.kinds import DEMO
from opu.distillation.outcome import keep_evaluation
from opu.distillation.replacing import fresh_folder, put_back
from opu.environment import environment
from opu.evaluation.compare import TEACHER_MEASURES, compare
from opu.files import write_json
from opu.students import Student
from opu.tables import print_table
from opu.teachers import MCDropout, Teacher
from opu.terminal import say
from opu.timing import median_seconds


@dataclass(frozen=True)
class Settings:
    """Sizes and lengths of the demo; none of them was searched for.

    Attributes:
        seed: Seed of everything random.
        hidden: Width of the hidden layers.
        dropout: Dropout rate of the teacher.
        teacher_epochs: Epochs of the teacher's training.
        epochs: Epochs of the distillation.
        num_particles: Number of particles per input and step.
        evaluation_particles: Number of particles per input in the evaluation.
    """

    seed: int = 0
    hidden: int = 256
    dropout: float = 0.5
    teacher_epochs: int = 150
    epochs: int = 120
    num_particles: int = 32
    evaluation_particles: int = 500


def run_demo(
    out: str | Path = "runs/demo", *, seed: int = 0, overwrite: bool = False, console: Console | None = None
) -> dict[str, Any]:
    """Train a teacher, distil it, compare the two and draw pictures; return what ``metrics.json`` holds.

    Args:
        out: The run folder.
        seed: Seed of everything random.
        overwrite: Whether an earlier demo in that folder is replaced, once the new one is complete.
        console: Where to print.
    """
    console = console or Console()
    out, settings = Path(out), Settings(seed=seed)
    if (interrupted := put_back(out)) is not None:
        say(console, interrupted)
    with fresh_folder(out, DEMO, overwrite=overwrite) as folder, _one_thread():
        metrics = _run(folder, settings, console)
    show(console, metrics, out, plotting.missing())
    return metrics


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread: a problem this small gains nothing from more, and is slowed down if other processes need the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(out: Path, settings: Settings, console: Console) -> dict[str, Any]:
    torch.manual_seed(settings.seed)
    began = time.perf_counter()
    digits = data.load(settings.seed)
    say(console, f"Teacher: MC dropout, trained on {len(digits.train)} digits (without the {data.HELD_OUT_CLASS}).")
    net = train_teacher(digits, settings)
    teacher = MCDropout(net, consistent=True)
    say(console, "Student: a mean and a precision network, distilled without labels and without OOD inputs.")
    student = distil_student(teacher, digits, settings, out=out)
    x, labels, particles = digits.test, digits.test_labels, settings.evaluation_particles
    metrics, scores = compare(student, teacher, x, labels, digits.ood, digits.calibration, particles)
    metrics["speedup"] = measure_speed(net, teacher, student, x, particles)
    metrics |= {"seed": settings.seed, "settings": asdict(settings), "environment": environment()}
    metrics["classes"] = list(data.CLASSES)
    if plotting.missing() is None:
        plotting.draw_inputs(out / "simplex.png", _three_inputs(digits, teacher), teacher, student, data.CLASSES)
        plotting.draw_histograms(out / "scores.png", scores)
        plotting.draw_roc(out / "roc.png", metrics, scores)
    keep_evaluation(out, teacher, x, labels, digits.train, particles)
    metrics["seconds"] = time.perf_counter() - began
    write_json(out / "metrics.json", metrics)
    return metrics


@torch.no_grad()
def _three_inputs(digits: data.Digits, teacher: Teacher) -> dict[str, Tensor]:
    """A confident, an ambiguous and an out-of-distribution input."""
    photographs = digits.ood["photographs"]
    inside, outside = teacher(digits.test, 200), teacher(photographs, 200)
    return {
        "confident": digits.test[measures.predictive_entropy(inside).argmin()],
        "ambiguous": digits.test[measures.mean(inside).topk(2).values[:, 1].argmax()],
        "out of distribution": photographs[measures.mutual_information(outside).argmax()],
    }


def train_teacher(digits: data.Digits, settings: Settings, num_classes: int = data.HELD_OUT_CLASS) -> nn.Module:
    """A network with dropout, trained by Adam."""
    width = settings.hidden
    net = nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, width),
        nn.ReLU(),
        nn.Dropout(settings.dropout),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Dropout(settings.dropout),
        nn.Linear(width, num_classes),
    )
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(settings.teacher_epochs):
        for rows in torch.randperm(len(digits.train)).split(64):
            loss = nn.functional.cross_entropy(net(digits.train[rows]), digits.train_labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net.eval()


def distil_student(
    teacher: MCDropout,
    digits: data.Digits,
    settings: Settings,
    num_classes: int = data.HELD_OUT_CLASS,
    out: Path | None = None,
) -> Student:
    """A student of the teacher's width, by the default recipe."""
    student = opu.students.mlp(64, num_classes, (settings.hidden, settings.hidden))
    # From random weights, so that the numbers show what distillation alone can do.
    recipe = opu.Recipe(epochs=settings.epochs, num_particles=settings.num_particles, start_from_teacher=False)
    opu.distill(teacher, student, digits.train, recipe=recipe, held_out=digits.calibration, out=out)
    return student


@torch.no_grad()
def measure_speed(
    net: nn.Module, teacher: MCDropout, student: nn.Module, x: Tensor, num_particles: int
) -> dict[str, Any]:
    """Time the predictions and scores of a batch: Monte-Carlo passes in a loop, the same vectorised, and the student."""

    def naive_loop() -> Tensor:
        net.train()  # its only layers with a mode are dropout
        mean = torch.stack([net(x).softmax(-1) for _ in range(num_particles)]).mean(0)
        net.eval()
        entropy: Tensor = torch.special.entr(mean).sum(-1)
        return entropy

    def vectorised() -> Tensor:
        return measures.predictive_entropy(teacher(x, num_particles))

    def one_pass() -> Tensor:
        novelty: Tensor = student.novelty(student(x))  # type: ignore[operator]
        return novelty

    loop, batch, once = median_seconds(naive_loop, 1), median_seconds(vectorised, 1), median_seconds(one_pass, 50)
    return {
        "naive_loop": loop / once,
        "vectorised": batch / once,
        "num_particles": num_particles,
        "batch_size": len(x),
        "seconds": {"naive_loop": loop, "vectorised": batch, "student": once},
    }


def show(console: Console, metrics: dict[str, Any], out: Path, advice: str | None = None) -> None:
    """Print the table of AUROCs, the accuracies and the speed.

    Args:
        console: Where to print.
        metrics: What ``metrics.json`` holds.
        out: The run folder.
        advice: How to install what pictures need, if it is missing.
    """
    errors, accuracy, speed = metrics["misclassification"], metrics["accuracy"], metrics["speedup"]
    rows = {"errors": errors | {"base_rate": errors["base_rate"]["student"]}, **metrics["ood"]}
    lines = [[name.replace("_", " "), *_cells(row), f"{row['base_rate']:.1f}"] for name, row in rows.items()]
    header = ["to detect", "teacher", "student N", "E", "C", "trivial", "base rate"]
    print_table(console, header, lines, title="AUROC in percent: how well a score detects errors and OOD inputs")
    say(
        console,
        f"Teacher, {speed['num_particles']} passes: the best of predictive entropy (E), least confidence (P) and mutual "
        "information (MI). Student, one pass: novelty (N), which combines E and negative log-precision (C). Trivial: the "
        "best detector that knows no classes. Base rate: percentage of errors or OOD inputs.",
    )
    say(console, f"Accuracy: teacher {accuracy['teacher']:.1f} %, student {accuracy['student']:.1f} %.")
    say(
        console,
        f"Speed: one pass is {speed['naive_loop']:.0f} times as fast as {speed['num_particles']} passes in a "
        f"loop, and {speed['vectorised']:.0f} times as fast as the same passes vectorised ({speed['batch_size']} inputs).",
    )
    pictures = ", simplex.png, scores.png, roc.png" if advice is None else ""
    written = f"Written to {out}: metrics.json, student/{pictures} ({metrics['seconds']:.0f} s)."
    say(console, written)
    if advice is not None:
        say(console, advice)
    if "photographs" not in metrics["ood"]:
        say(console, "Photographs, one more OOD set, need Pillow to be read; the same extra brings it.")
    advised = f"How close the student is to its teacher, and why: opu fidelity {shlex.quote(str(out))}"
    say(console, advised)


def _cells(row: dict[str, Any]) -> list[str]:
    entropy, precision, novelty = measures.named("E", "C", "N")
    if row["teacher"][entropy] is None or row["student"][novelty] is None:
        return ["no errors"] * 5
    best = max(TEACHER_MEASURES, key=lambda m: row["teacher"][m]["auroc"])
    trivial = max(row["trivial"], key=lambda m: row["trivial"][m]["auroc"])
    student = [f"{row['student'][m]['auroc']:.1f}" for m in (novelty, entropy, precision)]
    teacher = f"{row['teacher'][best]['auroc']:.1f} ({measures.SYMBOLS[best]})"
    return [teacher, *student, f"{row['trivial'][trivial]['auroc']:.1f} ({trivial.split('_')[0]})"]
