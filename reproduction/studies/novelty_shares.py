"""Which share of novelty's false alarms should C get? AUROC of finding a held-out digit, for several shares.

The demo is evaluated with the digit 9 held out, so the 9 takes no part here at all: each run leaves out one other digit
and trains on the remaining eight. Far OOD inputs are not looked at.

python -m reproduction.studies.novelty_shares [--held-out 1 3 5 8] [--record]
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import opu
from opu.demo.data import Digits
from opu.demo.run import Settings, distil_student, train_teacher
from opu.environment import environment
from opu.evaluation import metrics
from opu.evaluation.compare import TEACHER_MEASURES
from opu.files import write_json
from opu.measures import named
from opu.prediction import Scores, predict_student, predict_teacher
from opu.ranks import negative_log_p
from reproduction.studies.options import study_options

EVALUATED_CLASS = 9
SHARES = {"1/2": 0.5, "1/4": 0.25, "1/10": 0.1, "1/20": 0.05}


def development_digits(seed: int, held_out: int) -> Digits:
    """The demo's digits without the 9, one of the others held out."""
    source, bunch = np.random.default_rng(seed), load_digits()
    images = torch.tensor(bunch.images / 8 - 1, dtype=torch.float32).unsqueeze(1)
    classes = [c for c in range(10) if c not in (held_out, EVALUATED_CLASS)]
    labels = torch.tensor([classes.index(t) if t in classes else -1 for t in bunch.target])
    inside = np.flatnonzero(labels.numpy() >= 0)
    source.shuffle(inside)
    first, second = int(0.5 * len(inside)), int(0.7 * len(inside))
    train, calibration, test = (torch.from_numpy(part) for part in np.split(inside, [first, second]))
    ood = {"held_out": images[torch.from_numpy(bunch.target == held_out)]}
    return Digits(images[train], labels[train], images[calibration], images[test], labels[test], ood)


def both(inside_and_outside: list[Scores], measure: str) -> NDArray[np.float64]:
    """One measure of the test inputs and then of the OOD inputs."""
    return np.concatenate([scores[measure] for scores in inside_and_outside])


def run(held_out: int, seed: int) -> dict[str, Any]:
    """One held-out digit: the teacher's best measure, the student's E and C, and N for each share."""
    torch.manual_seed(seed)
    digits, settings = development_digits(seed, held_out), Settings()
    teacher = opu.teachers.MCDropout(train_teacher(digits, settings, num_classes=8), consistent=True)
    student = distil_student(teacher, digits, settings, num_classes=8)
    sets = digits.test, digits.ood["held_out"]
    positive = np.repeat([0, 1], [len(x) for x in sets])
    theirs = [predict_teacher(teacher, x, 500).scores for x in sets]
    ours = [predict_student(student, x).scores for x in sets]
    entropy, precision = (both(ours, measure) for measure in named("E", "C"))
    assert student.novelty is not None
    from_entropy = negative_log_p(torch.from_numpy(entropy), student.novelty.entropy).numpy()
    from_precision = negative_log_p(torch.from_numpy(precision), student.novelty.dispersion).numpy()
    novelty = {
        name: metrics.auroc(np.maximum(from_entropy, from_precision - math.log((1 - share) / share)), positive)
        for name, share in SHARES.items()
    }
    return {
        "held_out": held_out,
        "seed": seed,
        "teacher": max(metrics.auroc(both(theirs, m), positive) for m in TEACHER_MEASURES),
        "entropy": metrics.auroc(entropy, positive),
        "precision": metrics.auroc(precision, positive),
        "novelty": novelty,
    }


def main() -> None:
    """Run every digit with two seeds."""
    parser = study_options(__doc__, "study-novelty-shares.json")
    parser.add_argument("--held-out", type=int, nargs="+", default=[1, 3, 5, 8])
    options = parser.parse_args()
    runs = []
    for held_out in options.held_out:
        for seed in (0, 1):
            runs.append(run(held_out, seed))
            write_json(options.out, {"runs": runs, "environment": environment()})
            print(runs[-1])


if __name__ == "__main__":
    main()
