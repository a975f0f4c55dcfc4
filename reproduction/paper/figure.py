"""The paper's picture of the induced distribution: a classifier of the digits 0, 1 and 2, and four kinds of input."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import opu
from opu import measures
from opu.distillation.run_folder import make_folder
from opu.environment import environment
from opu.files import write_json
from opu.plotting import INK, STUDENT, draw_simplex, figure, finish
from opu.teachers import MCDropout
from reproduction.data import images
from reproduction.paper import classifiers

CLASSES = 3
NAMES = tuple(f"digit {digit}" for digit in range(CLASSES))


def draw(out: Path, seed: int = 0) -> dict[str, Any]:
    """Train a teacher, distil it, pick one input of each kind, and write ``simplex-012.png`` and its numbers.

    Args:
        out: Folder for the picture and the numbers.
        seed: Seed of everything random.
    """
    drawing = figure(13.0, 9.4)  # first of all, since it tells what to install where matplotlib is missing
    make_folder(out, resume=True)
    torch.manual_seed(seed)
    x, test, ood = _inputs()
    teacher = _teacher(*x)
    student = opu.students.mlp(784, CLASSES, (200, 200)).start_mean_from(teacher)
    opu.distill(teacher, student, x[0], recipe=opu.Recipe(num_particles=32, epochs=15, start_from_teacher=False))
    chosen = pick(teacher, test, ood)
    grid = drawing.add_gridspec(
        3, len(chosen), height_ratios=(1, 2.6, 2.6), top=0.95, bottom=0.12, hspace=0.42, wspace=0.4
    )
    numbers = {}
    for place, (name, image) in enumerate(chosen.items()):
        numbers[name] = _panel(drawing, grid, place, name, image, teacher, student)
    finish(drawing, out / "simplex-012.png")
    record = {"seed": seed, "inputs": numbers, "environment": environment()}
    write_json(out / "simplex-012.json", record)
    return record


def _inputs() -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    train, test = images.mnist("train"), images.mnist("test")
    rows, fresh = train.labels < CLASSES, test.labels < CLASSES
    ood = torch.cat([images.emnist_letters(2000).images, test.images[~fresh]])
    return (train.images[rows], train.labels[rows]), test.images[fresh], ood


def _teacher(x: Tensor, labels: Tensor) -> MCDropout:
    net = classifiers.mlp(CLASSES, (200, 200), dropout=0.5)
    classifiers.train(net, x, labels, lambda rows, y: nn.functional.cross_entropy(net(rows), y), epochs=5)
    return MCDropout(net, consistent=True)


@torch.no_grad()
def pick(teacher: MCDropout, inside: Tensor, outside: Tensor, num_particles: int = 200) -> dict[str, Tensor]:
    """One input of each kind, by the teacher's particles alone.

    Confident: the least entropy. Boundary: among inputs whose members agree (little mutual information for their
    entropy), the one most undecided between two classes. Out of distribution: the most mutual information among even
    means. Two corners: the most mutual information between two classes, with next to nothing for the third.
    """
    known, unknown = teacher(inside, num_particles), teacher(outside, num_particles)
    both, x = torch.cat([known, unknown], 1), torch.cat([inside, outside])
    entropy, information = measures.predictive_entropy(both), measures.mutual_information(both)
    third = measures.mean(both).min(-1).values
    agreeing = torch.where(information < 0.35 * entropy, entropy, torch.zeros_like(entropy))
    torn = torch.where(third < 0.03, information, torch.zeros_like(information))
    return {
        "confident": inside[measures.predictive_entropy(known).argmin()],
        "boundary": x[torch.where(third < 0.05, agreeing, torch.zeros_like(agreeing)).argmax()],
        "out of distribution": x[torch.where(third > 0.2, information, torch.zeros_like(information)).argmax()],
        "two corners": x[torn.argmax()],
    }


@torch.no_grad()
def _panel(
    drawing: Any, grid: Any, place: int, name: str, image: Tensor, teacher: MCDropout, student: nn.Module
) -> Any:
    log_particles, q = teacher(image.unsqueeze(0), 500), student(image.unsqueeze(0))
    above = drawing.add_subplot(grid[0, place])
    above.imshow(image[0], cmap="gray", vmin=-1, vmax=1)
    above.set_axis_off()
    above.set_title(name, color=INK, fontsize=12)
    teacher_axes, student_axes = (drawing.add_subplot(grid[row, place], projection="ternary") for row in (1, 2))
    draw_simplex(teacher_axes, log_particles[:, 0], q, (0, 1), classes=NAMES)
    drawn = q.log_rsample(500)[:, 0]
    draw_simplex(student_axes, drawn, q, (0, 1), STUDENT, classes=NAMES, dots="draws from the student")
    return {
        "teacher_mean": [round(p, 3) for p in measures.mean(log_particles)[0].tolist()],
        "student_mean": [round(p, 3) for p in q.mean[0].tolist()],
        "teacher_mutual_information": round(float(measures.mutual_information(log_particles)), 3),
        "student_mutual_information": round(float(measures.mutual_information(q)), 3),
        "student_log_precision": round(float(q.log_precision), 2),
    }
