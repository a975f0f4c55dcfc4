"""Distances between a student's prediction and its teacher's particles: objects, and names for them.

``parse("0.1*clipped_kl + 10*mmd")`` is ``0.1 * ClippedKL() + 10 * ExactMMD()``.
"""

import re
from collections.abc import Callable

from opu.distributions.kernels import Exponential, Polynomial
from opu.objectives.base import BaseObjective, Objective, WeightedSum, as_objective
from opu.objectives.emd import Critic, CriticEMD
from opu.objectives.exact_mmd import ExactMMD, squared_mmd_between
from opu.objectives.kl import ClippedKL, CrossEntropy, ForwardKL
from opu.objectives.sampled_mmd import SampledMMD
from opu.objectives.sinkhorn import Sinkhorn

__all__ = [
    "NAMES",
    "BaseObjective",
    "ClippedKL",
    "Critic",
    "CriticEMD",
    "CrossEntropy",
    "ExactMMD",
    "ForwardKL",
    "Objective",
    "SampledMMD",
    "Sinkhorn",
    "WeightedSum",
    "as_objective",
    "default",
    "parse",
    "squared_mmd_between",
]

NAMES: dict[str, Callable[[], BaseObjective]] = {
    "kl": ForwardKL,
    "clipped_kl": ClippedKL,
    "cross_entropy": CrossEntropy,
    "mmd": lambda: ExactMMD(Exponential()),
    "mmd_polynomial": lambda: ExactMMD(0.5 * Polynomial(3) + 0.5 * Polynomial(4)),
    "mmd_sampled": SampledMMD,
    "emd": CriticEMD,
    "sinkhorn": Sinkhorn,
}


def parse(text: str) -> WeightedSum:
    """The objective that a sum such as ``"0.1*clipped_kl + 10*mmd"`` names."""
    # A plus sign inside a number (1e+2) does not separate terms.
    return WeightedSum([_term(part) for part in re.split(r"(?<![\d.][eE])\+", text)])


# Up to this number of classes, the averaged KL was seen to leave the mean close to the teacher's.
MAX_CLASSES_FOR_KL = 50


def default(num_classes: int, family: str = "dirichlet") -> str:
    """The default objective for students of a family.

    For logistic-normals it is KL, averaged over the classes, plus the cross-entropy of the mean, plus MMD. KL alone fits
    the log-ratios of classes that are next to impossible as closely as those of the others.

    For Dirichlets it is clipped KL, averaged over the classes, plus exact MMD.

    KL is a sum over classes and MMD is not, so the weight of KL must fall with the number of classes, or the mean would
    drift away from the teacher's. With hundreds of classes it does so at any useful weight of KL, and the cross-entropy
    of the mean takes its place.
    """
    if family != "dirichlet":
        return f"{1 / num_classes:.3g}*kl + cross_entropy + 10*mmd"
    if num_classes > MAX_CLASSES_FOR_KL:
        return "cross_entropy + 10*mmd"
    return f"{1 / num_classes:.3g}*clipped_kl + 10*mmd"


def _term(text: str) -> tuple[float, BaseObjective]:
    weight, star, name = text.rpartition("*")
    name = name.strip()
    if name not in NAMES:
        raise ValueError(
            f"an objective is a sum such as '0.1*clipped_kl + 10*mmd' over the names {', '.join(NAMES)}; got {name!r} in "
            f"{text!r}."
        )
    try:
        return float(weight) if star else 1.0, NAMES[name]()
    except ValueError:
        raise ValueError(f"the weight before '*' must be a number; got {weight.strip()!r} in {text!r}.") from None
