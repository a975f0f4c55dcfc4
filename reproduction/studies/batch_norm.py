"""Where a student of a network with batch norm starts, and what its batch-norm statistics do while it is distilled.

Half of each batch is augmented, so statistics taken from it would fit neither half. The digits are MNIST's training part
at 14 x 14 pixels, which no table evaluates; 8 and 9 are left out of training and serve as OOD inputs.

python -m reproduction.studies.batch_norm [--seeds 0 1 2] [--record]
"""

from typing import Any

import torch
from torch import Tensor, nn

import opu
from opu.distributions.pointwise import maximum_likelihood
from opu.environment import environment
from opu.evaluation.compare import compare
from opu.files import rounded, write_json
from opu.students import Student, from_teacher
from opu.teachers import MCDropout, Teacher
from reproduction.data import images
from reproduction.paper.classifiers import train_plainly
from reproduction.studies.options import study_options

Record = dict[str, Any]
NUM_CLASSES, NUM_PARTICLES = 8, 200
# Where mean and precision network start, and whether the layers of the copy stay in evaluation mode.
VARIATIONS = {
    "random, statistics updated": ("random", "random", False),
    "teacher's weights, statistics updated": ("teacher", "teacher", False),
    "teacher's weights, statistics kept": ("teacher", "teacher", True),
    "teacher's weights for the mean only, statistics kept": ("teacher", "random", True),
}


def network() -> nn.Module:
    """A small convolutional network with batch norm and dropout."""
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
    net.extend([nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()])
    net.extend([nn.Dropout(0.3), nn.Linear(288, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3)])
    return net.append(nn.Linear(64, NUM_CLASSES))


def digits() -> tuple[tuple[Tensor, Tensor], Tensor, tuple[Tensor, Tensor], Tensor]:
    """Images and labels to train on, images to calibrate on, images and labels to test on, images of 8 and 9."""
    data = images.mnist("train")
    x, labels = nn.functional.avg_pool2d(data.images[:15_000], 2), data.labels[:15_000]
    known, ood = labels < NUM_CLASSES, x[labels >= NUM_CLASSES][:1000]
    x, labels = x[known], labels[known]
    return (x[:6000], labels[:6000]), x[6000:7000], (x[7000:11_000], labels[7000:11_000]), ood


def student_for(teacher: MCDropout, mean_start: str, precision_start: str, kept: bool) -> Student:
    """A student of the teacher's architecture; its networks start from the teacher's weights or from random ones."""
    student, fresh = from_teacher(teacher), from_teacher(network())
    if mean_start == "random":
        student.mean_net = fresh.mean_net
    if precision_start == "random":
        student.precision_net = fresh.precision_net
    norms = [name for name, layer in student.named_modules() if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)]
    started = {"mean_net": mean_start, "precision_net": precision_start}
    in_evaluation = [name for name in norms if kept and started[name.partition(".")[0]] == "teacher"]
    student.layers_to_keep = lambda: in_evaluation  # type: ignore[method-assign]
    return student


@torch.no_grad()
def assess(student: Student, teacher: Teacher, test: tuple[Tensor, Tensor], ood: Tensor, held_out: Tensor) -> Record:
    """Accuracies, KL from the teacher's mean, log-precisions, and AUROC of the held-out classes by each measure."""
    x, labels = test
    found, _ = compare(student, teacher, x, labels, {"held-out classes": ood}, held_out, NUM_PARTICLES)
    particles = torch.cat([teacher(part, NUM_PARTICLES) for part in x.split(1000)], 1).double()
    mean, q, best = particles.exp().mean(0), student(x), maximum_likelihood(particles).log_precision
    ranks = torch.stack([each.argsort().argsort().double() for each in (q.log_precision, best)])
    medians = {
        "student": q.log_precision.median(),
        "best fit": best.median(),
        "ood": student(ood).log_precision.median(),
    }
    return {
        "accuracy": found["accuracy"],
        "kl": float((mean * (mean.log() - q.log_mean)).sum(-1).mean()),
        "log_precision": {name: float(value) for name, value in medians.items()},
        "rank_correlation": float(torch.corrcoef(ranks)[0, 1]),
        "auroc": {
            model: {measure: score["auroc"] for measure, score in found["ood"]["held-out classes"][model].items()}
            for model in ("teacher", "student")
        },
    }


def run(seed: int) -> list[Record]:
    """All variations of one teacher."""
    torch.manual_seed(seed)
    (x, labels), held_out, test, ood = digits()
    teacher = MCDropout(train_plainly(network(), x, labels, epochs=6), consistent=True)
    runs = []
    for name, settings in VARIATIONS.items():
        torch.manual_seed(seed)
        student = student_for(teacher, *settings)
        recipe = opu.Recipe(epochs=10, num_particles=32, start_from_teacher=False)
        opu.distill(teacher, student, x, recipe=recipe, held_out=held_out, progress=False)
        runs.append({"seed": seed, "variation": name, **rounded(assess(student, teacher, test, ood, held_out))})
        print(runs[-1], flush=True)
    return runs


def main() -> None:
    """Run every seed."""
    parser = study_options(__doc__, "study-batch-norm.json")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = [each for seed in options.seeds for each in run(seed)]
    write_json(options.out, {"runs": runs, "environment": environment()})


if __name__ == "__main__":
    main()
