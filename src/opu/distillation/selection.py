"""Which epoch a run keeps: the last one, unless an earlier one is clearly better on held-out inputs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from scipy.stats import rankdata
from torch import Tensor

# An earlier epoch is kept if the last is worse by more than this number of standard deviations of the signed-rank sum. It
# is more than two, since the best of many epochs is compared. Eight inputs that agree reach it.
CLEAR = 2.5
# And if the ranks of the inputs that lost outweigh those of the inputs that gained by two to one: over thousands of inputs
# the smallest difference is beyond noise.
MOST = 1 / 3
_EARLY = 0.75  # fraction of the epochs before which a kept epoch is worth a warning


class Comparison(NamedTuple):
    """How much worse the second of two epochs is.

    Attributes:
        z: In standard deviations of the signed-rank sum.
        balance: From -1, if it is better on all inputs, to 1, if it is worse on all: the rank-biserial correlation.
    """

    z: float = 0.0
    balance: float = 0.0

    @property
    def clear(self) -> bool:
        """Whether the second epoch is clearly worse: beyond noise, and on most inputs."""
        return self.z > CLEAR and self.balance > MOST


def compare(first: Float[Tensor, " B"], second: Float[Tensor, " B"]) -> Comparison:
    r"""How much worse the second of two epochs is, by Wilcoxon's signed ranks over the same inputs.

    .. math::
        z = \frac{\sum_i \operatorname{sign}(d_i) r_i}{\sqrt{\sum_i r_i^2}}, \qquad d_i = \text{second}_i - \text{first}_i,

    where :math:`r_i` is the rank of :math:`|d_i|`. If neither is better, the signs are those of fair coins, and z has mean 0
    and variance 1. An input counts by its rank, so that one whose loss is thousands of times that of the others decides
    nothing by itself. With n inputs z is at most about :math:`\sqrt{3n/4}`.

    Args:
        first: One loss per input; what is not finite counts as infinitely bad.
        second: Those of the other epoch.
    """
    difference = _infinite_if_broken(second) - _infinite_if_broken(first)
    difference = difference[~difference.isnan() & (difference != 0)]  # ties; infinity on both sides is one too
    if len(difference) == 0:
        return Comparison()
    ranks = torch.from_numpy(rankdata(difference.abs().numpy()))
    total = (difference.sign() * ranks).sum()
    return Comparison(float(total / ranks.norm()), float(total / ranks.sum()))


def _infinite_if_broken(values: Tensor) -> Tensor:
    values = values.detach().double().cpu()
    return torch.where(values.isfinite(), values, math.inf)


@dataclass
class Selection:
    """Keeps the last epoch, unless the best one before it is clearly better on held-out inputs.

    A mean over held-out inputs is no judge by itself: the forward KL of one augmented input may be hundreds of times that
    of all others together. Epochs are compared input by input instead, by :func:`compare`. The last epoch is the
    default, since a falling learning rate makes it the best in nearly every run, while the lowest of some hundred noisy
    values is often lowest by chance. Besides the student's own weights, those of one epoch are held.

    Attributes:
        last_epoch: The last epoch that was seen, counted from 1.
        last_values: Its held-out losses, one per input; None if they say nothing.
        best_epoch: The best epoch by pairwise comparison; among equals the latest.
        best_values: Its held-out losses.
        best_weights: Its weights.
    """

    last_epoch: int = 0
    last_values: Tensor | None = None
    best_epoch: int = 0
    best_values: Tensor | None = None
    best_weights: dict[str, Tensor] = field(default_factory=dict)

    def see(self, epoch: int, values: Float[Tensor, " B"] | None, weights: Mapping[str, Tensor]) -> None:
        """Note what an epoch lost on each held-out input.

        Args:
            epoch: Number of the epoch, counted from 1.
            values: One loss per input; None if epochs cannot be compared, so that the last is kept.
            weights: The student's weights; they are copied if this is the best epoch so far.
        """
        self.last_epoch, self.last_values = epoch, None if values is None else values.detach().double().cpu()
        if self.last_values is None:
            self.best_epoch, self.best_values, self.best_weights = epoch, None, {}
        elif self.best_values is None or compare(self.best_values, self.last_values).z <= 0:
            self.best_epoch, self.best_values = epoch, self.last_values
            self.best_weights = {name: w.detach().clone() for name, w in weights.items()}

    @property
    def kept_epoch(self) -> int:
        """The epoch to keep, from what was seen so far."""
        return self.best_epoch if self._earlier_is_better else self.last_epoch

    @property
    def kept_weights(self) -> dict[str, Tensor] | None:
        """Weights of the epoch to keep; None if they are those that the student has."""
        return self.best_weights if self._earlier_is_better else None

    @property
    def _earlier_is_better(self) -> bool:
        if self.best_epoch == self.last_epoch or not self.best_weights:
            return False
        if self.best_values is None or self.last_values is None:  # from a checkpoint that held one epoch alone
            return True
        broken = not bool(self.last_values.isfinite().any())  # that is clear whatever the number of inputs
        return broken or compare(self.best_values, self.last_values).clear

    def advice(self) -> str | None:
        """A warning, with what to do, if an early epoch is kept."""
        if self.last_values is None or self.kept_epoch >= _EARLY * self.last_epoch:
            return None
        return (
            f"epoch {self.kept_epoch} of {self.last_epoch} was kept, since the last is clearly worse on held-out inputs: the "
            "run got worse as it went on. Use a lower learning rate or the cosine schedule, and look at the curves with "
            "the result's plot()."
        )

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return dict(vars(self))

    @classmethod
    def of(cls, checkpoint: Mapping[str, Any]) -> "Selection":
        """The selection of a checkpoint.

        One from before 0.2 holds the weights with the lowest mean, and no losses per input. They are kept if the run was
        over, and are forgotten after the next epoch.
        """
        if "selection" in checkpoint:
            return cls(**checkpoint["selection"])
        best_epoch, best_weights = checkpoint["best_epoch"], checkpoint["best_weights"]
        return cls(len(checkpoint["held_out"]), best_epoch=best_epoch, best_weights=best_weights)
