"""How closely a student follows its teacher, input by input: what both families of students are compared by."""

from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from opu import measures
from opu.distributions.kernels import Exponential
from opu.fidelity.coverage import by_decile, class_coverage
from opu.fidelity.gaps import squared_distance
from opu.teachers import Teacher

ROWS_AT_ONCE = 500
_COMPARED = measures.named("E", "MI")
_COVERED = ("predicted", "runner_up", "below", "above")


@torch.no_grad()
def agreement(teacher: Teacher, student: nn.Module, x: Tensor, num_particles: int = 500) -> dict[str, Any]:
    """Student and teacher compared on some inputs.

    Returns:
        ``total_variation`` between the class probabilities and ``squared_mmd`` between the distributions, means over the
        inputs; the mean ``mutual_information`` of both; the ``rank_correlation`` of each measure; and in ``coverage`` the
        percentage of particles within the 90 % interval of the predicted class and of the runner-up, and beyond either
        end of the former, by decile of the teacher's predictive entropy.
    """
    parts = [_compared(teacher, student, part, num_particles) for part in x.split(ROWS_AT_ONCE)]
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    entropy = found["teacher predictive_entropy"]
    return {
        "total_variation": float(found["total_variation"].mean()),
        "squared_mmd": float(found["squared_mmd"].mean()),
        "mutual_information": {who: float(found[f"{who} mutual_information"].mean()) for who in ("teacher", "student")},
        "rank_correlation": {
            name: float(spearmanr(found[f"teacher {name}"], found[f"student {name}"]).statistic) for name in _COMPARED
        },
        "coverage": {name: [100 * share for share in by_decile(entropy, found[name])] for name in _COVERED},
    }


def _compared(teacher: Teacher, student: nn.Module, x: Tensor, num_particles: int) -> dict[str, Tensor]:
    log_particles, q = teacher(x, num_particles), student(x)
    covered = class_coverage(q, log_particles)
    found = {
        "total_variation": (q.mean - measures.mean(log_particles)).abs().sum(-1) / 2,
        "squared_mmd": squared_distance(q, log_particles, Exponential()),
        **{name: covered[name] for name in _COVERED},
    }
    for who, source in (("teacher", log_particles), ("student", q)):
        found |= {f"{who} {name}": measures.MEASURES[name](source) for name in _COMPARED}
    return {name: values.double().cpu() for name, values in found.items()}
