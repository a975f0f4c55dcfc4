"""The teacher of a classifier: from a name, a scikit-learn ensemble or any teacher to one of standardised rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from sklearn.base import BaseEstimator, clone
from sklearn.ensemble import RandomForestClassifier
from torch import Tensor, nn

from opu.choices import TABLE_TEACHERS, check_choice
from opu.students.standardise import Standardise
from opu.teachers import BaseTeacher, SklearnEnsemble, Teacher, WeightSamples, polya_gamma, sgpmc

NUM_TREES = 200
NUM_NETWORKS = 10


@dataclass(frozen=True)
class Standardised(BaseTeacher):
    """A teacher of raw rows that is given standardised ones."""

    teacher: Teacher
    standardise: Standardise

    def __call__(self, x: Float[Tensor, "B F"], num_particles: int) -> Float[Tensor, "S B K"]:
        """The teacher's particles at the raw rows."""
        return self.teacher(self.standardise.inverse(x), num_particles)


def make_teacher(
    wanted: Any,
    x: Float[Tensor, "N F"],
    labels: Int64[Tensor, " N"],
    standardise: Standardise,
    classes: Sequence[Any],
) -> Teacher:
    """A teacher of standardised rows, fitted to the labels unless it is fitted already.

    Args:
        wanted: One of ``polya-gamma``, ``gp``, ``forest`` and ``ensemble``; a scikit-learn ensemble, fitted to the raw
            rows or not yet fitted; or any teacher of raw rows.
        x: Standardised training rows.
        labels: Class numbers of the rows, from 0 on.
        standardise: Module from raw to standardised rows.
        classes: Label of each class number.
    """
    if isinstance(wanted, str):
        check_choice("teacher", wanted, TABLE_TEACHERS, "A scikit-learn ensemble or any teacher will do as well.")
        return FITTED[wanted](x, labels)
    if isinstance(wanted, BaseEstimator):
        if not hasattr(wanted, "estimators_"):
            wanted = clone(wanted).fit(standardise.inverse(x.double()).numpy(), labels.numpy())
        elif list(wanted.classes_) != list(classes):
            raise ValueError(
                f"the ensemble was fitted to the classes {', '.join(map(str, wanted.classes_))} and the labels here are "
                f"{', '.join(map(str, classes))}; fit both to the same labels."
            )
        return Standardised(SklearnEnsemble(wanted), standardise)
    if not isinstance(wanted, Teacher):
        raise ValueError(f"a teacher is called as teacher(x, num_particles); {type(wanted).__name__} cannot be called.")
    return Standardised(wanted, standardise)


def _forest(x: Tensor, labels: Tensor) -> Teacher:
    seed = int(torch.randint(2**31 - 1, ()))
    # Leaves hold at least five rows: a tree grown to purity predicts 0 or 1 everywhere.
    forest = RandomForestClassifier(NUM_TREES, min_samples_leaf=5, random_state=seed)
    return SklearnEnsemble(forest.fit(x.numpy(), labels.numpy()))


def _networks(x: Tensor, labels: Tensor, hidden: int = 32, num_steps: int = 300) -> Teacher:
    """Small networks from different initial weights, each fitted to a bootstrap sample of the rows; trained together."""
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
        (NUM_NETWORKS * loss).backward()  # so that each network minimises the mean over its own rows
        optimizer.step()
    return WeightSamples(nets[0], {name: w.detach() for name, w in weights.items()})


def _network(num_features: int, hidden: int, num_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(num_features, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))


FITTED: Mapping[str, Callable[[Tensor, Tensor], Teacher]] = {
    "polya-gamma": polya_gamma,
    "gp": sgpmc,
    "forest": _forest,
    "ensemble": _networks,
}
