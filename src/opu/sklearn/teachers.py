"""From a name, a scikit-learn ensemble or any teacher to a teacher of standardised rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from sklearn.base import BaseEstimator, clone
from sklearn.ensemble import RandomForestClassifier
from torch import Tensor, nn

from opu.teachers.sklearn_ensemble import SklearnEnsemble
from opu.teachers import Teacher, WeightSamples, polya_gamma, sgpmc

NUM_TREES = 200
NUM_NETWORKS = 10


@dataclass(frozen=True)
class Standardised:
    """A teacher of raw rows, asked about standardised ones."""

    teacher: Teacher
    mean: Float[Tensor, " F"]
    scale: Float[Tensor, " F"]

    def __call__(self, x: Float[Tensor, "B F"], num_particles: int) -> Float[Tensor, "S B K"]:
        """The teacher's particles at the raw rows."""
        return self.teacher((x.double() * self.scale + self.mean).to(x), num_particles)


def make_teacher(
    wanted: Any,
    x: Float[Tensor, "N F"],
    labels: Int64[Tensor, " N"],
    mean: Tensor,
    scale: Tensor,
    classes: Sequence[Any],
) -> Teacher:
    """A teacher of standardised rows, fitted to the labels where it is not one already.

    Args:
        wanted: ``polya-gamma``, ``gp``, ``forest`` or ``ensemble``; an ensemble of scikit-learn, fitted to the raw rows
            or not yet fitted; or any teacher of raw rows.
        x: Standardised training rows.
        labels: Their classes, from 0 on.
        mean: Of each raw column.
        scale: Of each raw column.
        classes: What the labels stand for, in order.
    """
    if isinstance(wanted, str):
        if wanted not in FITTED:
            raise ValueError(
                f"teacher must be one of {', '.join(FITTED)}, an ensemble of scikit-learn, or a teacher; got {wanted!r}."
            )
        return FITTED[wanted](x, labels)
    if isinstance(wanted, BaseEstimator):
        if not hasattr(wanted, "estimators_"):
            raw = (x.double() * scale + mean).numpy()
            wanted = clone(wanted).fit(raw, labels.numpy())
        elif list(wanted.classes_) != list(classes):
            raise ValueError(
                f"the ensemble was fitted to the classes {', '.join(map(str, wanted.classes_))} and the labels here are "
                f"{', '.join(map(str, classes))}; fit both to the same labels."
            )
        return Standardised(SklearnEnsemble(wanted), mean, scale)
    if not isinstance(wanted, Teacher):
        raise ValueError(f"a teacher is called as teacher(x, num_particles); {type(wanted).__name__} cannot be called.")
    return Standardised(wanted, mean, scale)


def _forest(x: Tensor, labels: Tensor) -> Teacher:
    seed = int(torch.randint(2**31 - 1, ()))
    # Leaves of a few rows: a tree grown to purity says 0 or 1 everywhere.
    forest = RandomForestClassifier(NUM_TREES, min_samples_leaf=5, random_state=seed)
    return SklearnEnsemble(forest.fit(x.numpy(), labels.numpy()))


def _networks(x: Tensor, labels: Tensor, hidden: int = 32, num_steps: int = 300) -> Teacher:
    """Small networks with starts of their own, each fitted to rows drawn with repetition; all are trained at once."""
    num_classes = int(labels.max()) + 1
    nets = [_network(x.shape[1], hidden, num_classes) for _ in range(NUM_NETWORKS)]
    weights = {name: torch.stack([net.state_dict()[name] for net in nets]) for name in nets[0].state_dict()}
    first, first_bias, second, second_bias = (w.requires_grad_() for w in weights.values())
    optimizer = torch.optim.AdamW([*weights.values()], 1e-2, weight_decay=0.1)
    own = torch.randint(len(x), (NUM_NETWORKS, len(x)))
    for _ in range(num_steps):
        rows = own.gather(1, torch.randint(len(x), (NUM_NETWORKS, min(128, len(x)))))
        inner = torch.baddbmm(first_bias.unsqueeze(1), x[rows], first.mT).relu()
        logits = torch.baddbmm(second_bias.unsqueeze(1), inner, second.mT)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels[rows].flatten())
        optimizer.zero_grad()
        (NUM_NETWORKS * loss).backward()  # each network by the mean over its own rows
        optimizer.step()
    return WeightSamples(nets[0], {name: w.detach() for name, w in weights.items()})


def _network(num_features: int, hidden: int, num_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(num_features, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))


def _polya_gamma(x: Tensor, labels: Tensor) -> Teacher:
    return polya_gamma(x, labels)


def _gaussian_process(x: Tensor, labels: Tensor) -> Teacher:
    return sgpmc(x, labels)


FITTED: dict[str, Callable[[Tensor, Tensor], Teacher]] = {
    "polya-gamma": _polya_gamma,
    "gp": _gaussian_process,
    "forest": _forest,
    "ensemble": _networks,
}


def standardisation(x: Float[np.ndarray, "N F"]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column; a constant column keeps its scale."""
    mean, scale = x.mean(0), x.std(0)
    constant = scale <= 1e-12 * np.maximum(np.abs(mean), 1.0)
    return torch.from_numpy(mean), torch.from_numpy(np.where(constant, 1.0, scale))
