"""A thin student on few digits: 8,000 of MNIST, 128 units, a few hundred steps. Where it keeps up, and where it does not.

python -m reproduction.studies.mnist_small [--seeds 0 1 2] [--record]
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import opu
from opu.environment import environment
from opu.evaluation.compare import compare
from opu.files import write_json
from reproduction.data import images
from reproduction.paper.classifiers import train_plainly
from reproduction.studies.options import study_options


def train_teacher(x: Tensor, labels: Tensor) -> nn.Module:
    """A small network with dropout."""
    first = [nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Dropout(0.5)]
    net = nn.Sequential(*first, nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))
    return train_plainly(net, x, labels, epochs=8)


def run(folder: Path | None, seed: int) -> dict[str, Any]:
    """All metrics of one seed, and the percentage of fresh digits with a novelty p-value below 5 %."""
    torch.manual_seed(seed)
    inside, fresh = images.mnist("train", folder), images.mnist("test", folder)
    train, labels = inside.images[:8000], inside.labels[:8000]
    held_out, test, test_labels = fresh.images[:1000], fresh.images[1000:3000], fresh.labels[1000:3000]
    teacher = opu.teachers.MCDropout(train_teacher(train, labels), consistent=True)
    student = opu.students.mlp(784, 10, (128, 128)).start_mean_from(teacher)
    recipe = opu.Recipe(epochs=8, num_particles=16, start_from_teacher=False)
    opu.distill(teacher, student, train, recipe=recipe, held_out=held_out, progress=False)
    ood = {"inverted": -test, "shifted": images.shifted(test), "noise": torch.rand_like(test) * 2 - 1}
    result, _ = compare(student, teacher, test, test_labels, ood, held_out, num_particles=100)
    with torch.no_grad():
        p_values = student.novelty.p_value(student(test))
    return result | {"seed": seed, "flagged_at_5_percent": 100 * float((p_values < 0.05).float().mean())}


def main() -> None:
    """Run every seed."""
    parser = study_options(__doc__, "study-mnist-small.json")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    runs = [run(None, seed) for seed in options.seeds]
    write_json(options.out, {"runs": runs, "environment": environment()})


if __name__ == "__main__":
    main()
