"""The teacher of a classifier: from a name, a scikit-learn ensemble or any teacher to one of standardised rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from sklearn.base import BaseEstimator, clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.utils import get_tags
from sklearn.utils.validation import has_fit_parameter
from torch import Tensor, nn

from opu.choices import TABLE_TEACHERS, check_choice
from opu.sklearn.cost import warn_of_size
from opu.students.impute import Prepare
from opu.teachers import BaseTeacher, SklearnEnsemble, Teacher, WeightSamples, polya_gamma, sgpmc

NUM_TREES = 200
NUM_NETWORKS = 10


@dataclass(frozen=True)
class Standardised(BaseTeacher):
    """A teacher of raw rows that is given standardised ones.

    Attributes:
        teacher: A teacher of raw rows.
        prepare: From raw to standardised rows.
        takes_missing: Whether the teacher is given missing values as NaN; otherwise as they were imputed.
    """

    teacher: Teacher
    prepare: Prepare
    takes_missing: bool = True

    def __call__(self, x: Float[Tensor, "B F"], num_particles: int) -> Float[Tensor, "S B K"]:
        """The teacher's particles at the raw rows."""
        back = self.prepare.inverse if self.takes_missing else self.prepare.inverse_imputed
        return self.teacher(back(x), num_particles)


def make_teacher(
    wanted: Any,
    x: Float[Tensor, "N F"],
    labels: Int64[Tensor, " N"],
    prepare: Prepare,
    classes: Sequence[Any],
    weights: Float[Tensor, " N"] | None = None,
) -> Teacher:
    """A teacher of standardised rows, fitted to the labels unless it is fitted already.

    Args:
        wanted: One of ``polya-gamma``, ``gp``, ``forest`` and ``ensemble``; a scikit-learn ensemble, fitted to the raw
            rows or not yet fitted; or any teacher of raw rows.
        x: Standardised training rows.
        labels: Class numbers of the rows, from 0 on.
        prepare: Module from raw to standardised rows.
        classes: Label of each class number.
        weights: Weights of the rows; a teacher that is fitted already cannot have any.
    """
    if isinstance(wanted, str):
        check_choice("teacher", wanted, TABLE_TEACHERS, "A scikit-learn ensemble or any teacher will do as well.")
        warn_of_size(wanted, len(x), x.shape[1], len(classes))
        return FITTED[wanted](x, labels, weights)
    if isinstance(wanted, BaseEstimator) and not hasattr(wanted, "estimators_"):
        takes_missing = bool(get_tags(wanted).input_tags.allow_nan)
        raw = (prepare.inverse if takes_missing else prepare.inverse_imputed)(x.double()).numpy()
        return Standardised(SklearnEnsemble(_fit_ensemble(wanted, raw, labels, weights)), prepare, takes_missing)
    if weights is not None:
        raise ValueError(
            "weights are for a teacher that is yet to be fitted, and this one is fitted already; give class_weight and "
            "sample_weight to its own fit."
        )
    if isinstance(wanted, BaseEstimator):
        if list(wanted.classes_) != list(classes):
            raise ValueError(
                f"the ensemble was fitted to the classes {', '.join(map(str, wanted.classes_))} and the labels here are "
                f"{', '.join(map(str, classes))}; fit both to the same labels."
            )
        return Standardised(SklearnEnsemble(wanted), prepare, bool(get_tags(wanted).input_tags.allow_nan))
    if not isinstance(wanted, Teacher):
        raise ValueError(f"a teacher is called as teacher(x, num_particles); {type(wanted).__name__} cannot be called.")
    return Standardised(wanted, prepare)


def _fit_ensemble(wanted: Any, rows: Any, labels: Tensor, weights: Tensor | None) -> Any:
    if weights is None:
        return clone(wanted).fit(rows, labels.numpy())
    if not has_fit_parameter(wanted, "sample_weight"):
        raise ValueError(
            f"{type(wanted).__name__} cannot weigh rows: its fit takes no sample_weight. Take another ensemble, such as "
            'teacher="forest".'
        )
    return clone(wanted).fit(rows, labels.numpy(), sample_weight=weights.numpy())


def _forest(x: Tensor, labels: Tensor, weights: Tensor | None = None) -> Teacher:
    seed = int(torch.randint(2**31 - 1, ()))
    # Leaves hold at least five rows: a tree grown to purity predicts 0 or 1 everywhere.
    forest = RandomForestClassifier(NUM_TREES, min_samples_leaf=5, random_state=seed)
    return SklearnEnsemble(forest.fit(x.numpy(), labels.numpy(), None if weights is None else weights.numpy()))


def _networks(
    x: Tensor, labels: Tensor, counts: Tensor | None = None, hidden: int = 32, num_steps: int = 300
) -> Teacher:
    """Small networks from different initial weights, each fitted to a bootstrap sample of the rows; trained together.

    Weights of rows are the probabilities with which the bootstrap draws them.
    """
    num_classes = int(labels.max()) + 1
    nets = [_network(x.shape[1], hidden, num_classes) for _ in range(NUM_NETWORKS)]
    weights = {name: torch.stack([net.state_dict()[name] for net in nets]) for name in nets[0].state_dict()}
    first, first_bias, second, second_bias = (w.requires_grad_() for w in weights.values())
    optimizer = torch.optim.AdamW([*weights.values()], 1e-2, weight_decay=0.1)
    if counts is None:
        own = torch.randint(len(x), (NUM_NETWORKS, len(x)))
    else:
        own = torch.multinomial(counts.expand(NUM_NETWORKS, -1), len(x), replacement=True)
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


FITTED: Mapping[str, Callable[[Tensor, Tensor, Tensor | None], Teacher]] = {
    "polya-gamma": lambda x, labels, weights: polya_gamma(x, labels, weights=weights),
    "gp": lambda x, labels, weights: sgpmc(x, labels, weights=weights),
    "forest": _forest,
    "ensemble": _networks,
}
