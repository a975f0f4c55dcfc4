r"""Novelty: one score for near and far strangers, calibrated on ordinary inputs.

The entropy E of the mean sees inputs near the classes, the precision C sees inputs far from them. Each is turned into
the probability that an ordinary input looks at least as uncertain, and either may raise the alarm:

.. math:: N(x) = \max(-\log p_E(x),\; -\log 9\,p_C(x)), \qquad p_m(x) = P(m(\text{ordinary}) \ge m(x)).

Of all false alarms E may cause nine tenths and C one tenth (a weighted Bonferroni rule). With equal shares the doubts of C
about ordinary inputs drown those of E about near strangers, while far strangers are so rare under C that a tenth is enough.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from opu.dirichlet import Dirichlet

MOST_QUANTILES = 2048
# log(0.9 / 0.1): how much rarer an input must look to C than to E for the same alarm.
HANDICAP_OF_C = math.log(9)
FEWEST_INPUTS = 10


class Novelty(nn.Module):
    """The calibrated score N and its p-value, as a small module that is stored with the student.

    Build it with :meth:`fit` from the student's answers to held-out ordinary inputs, best ones that the teacher was not
    trained on. The buffers hold sorted values of E, of C and of N itself on those inputs.
    """

    entropy: Tensor
    negative_log_precision: Tensor
    scores: Tensor

    def __init__(self, entropy: Tensor, negative_log_precision: Tensor, scores: Tensor) -> None:
        super().__init__()
        self.register_buffer("entropy", entropy.double())
        self.register_buffer("negative_log_precision", negative_log_precision.double())
        self.register_buffer("scores", scores.double())

    @classmethod
    def fit(cls, q: Dirichlet) -> "Novelty":
        """Calibrate on a student's answers to held-out ordinary inputs; ten is the least, some hundreds are good."""
        if len(q) < FEWEST_INPUTS:
            raise ValueError(
                f"novelty needs at least {FEWEST_INPUTS} held-out inputs to be calibrated, better some hundreds; got "
                f"{len(q)}. Hold more inputs out."
            )
        q = q.detach()
        entropy, sharpness = _measures(q)
        score = _louder(rarity(entropy, entropy.sort().values), rarity(sharpness, sharpness.sort().values))
        return cls(_quantiles(entropy), _quantiles(sharpness), _quantiles(score))

    def forward(self, q: Dirichlet) -> Float[Tensor, "*B"]:
        """N: it grows with novelty, and has no upper bound."""
        entropy, sharpness = _measures(q)
        score = _louder(rarity(entropy, self.entropy), rarity(sharpness, self.negative_log_precision))
        return score.to(q.mean.dtype)

    def p_value(self, q: Dirichlet) -> Float[Tensor, "*B"]:
        """Probability that an ordinary input scores at least this high: flag below 0.01 to flag 1 % of ordinary inputs.

        Never below ``1 / (n + 1)`` for ``n`` calibration inputs (2,048 at most): fewer inputs prove no more than that.
        """
        p = torch.exp(-rarity(self(q).double(), self.scores))
        return p.clamp(min=1 / (len(self.scores) + 1)).to(q.mean.dtype)

    def threshold(self, rate: float) -> float:
        """The score that a fraction ``rate`` of ordinary inputs exceeds."""
        if not 0 < rate < 1:
            raise ValueError(f"the rate of false alarms must lie between 0 and 1; got {rate}. Use 0.01 for 1 %.")
        return float(torch.quantile(self.scores, 1 - rate))


def rarity(values: Float[Tensor, "*B"], ordinary: Float[Tensor, " n"]) -> Float[Tensor, "*B"]:
    """Minus the log of the fraction of ordinary values that are at least as large, strictly rising in the value.

    Between sorted ordinary values the fraction is interpolated. Above the largest it falls exponentially, at the rate of
    the mean excess in the upper tenth; below the smallest it tends to 1 in the same way, so that no ranks tie.
    """
    n = len(ordinary)
    place = torch.searchsorted(ordinary, values.contiguous()).clamp(1, n - 1)
    below, above = ordinary[place - 1], ordinary[place]
    share = ((values - below) / (above - below).clamp(min=1e-300)).clamp(0, 1)
    tail = (n - (place - 1) - share) / (n + 1)
    upper = ((values - ordinary[-1]) / _mean_excess(ordinary)).clamp(min=0)
    lower = ((ordinary[0] - values) / _mean_excess(-ordinary.flip(0))).clamp(min=0)
    below_all = -torch.log1p(-torch.exp(-lower) / (n + 1))
    return torch.where(values < ordinary[0], below_all, -torch.log(tail) + upper)


def _louder(of_entropy: Tensor, of_precision: Tensor) -> Tensor:
    return torch.maximum(of_entropy, of_precision - HANDICAP_OF_C)


def _measures(q: Dirichlet) -> tuple[Tensor, Tensor]:
    log_mean = q.log_mean.double().log_softmax(-1)
    return -(log_mean.exp() * log_mean).sum(-1), -q.log_precision.double()


def _mean_excess(ordinary: Tensor) -> Tensor:
    start = ordinary[int(0.9 * (len(ordinary) - 1))]
    excess = (ordinary[ordinary >= start] - start).mean()
    # Where the upper tenth is one value, the whole spread sets the scale, and failing that a unit does.
    spread = ordinary[-1] - ordinary[0]
    scale = torch.where(excess > 1e-12 * spread, excess, spread)
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def _quantiles(values: Float[Tensor, " n"]) -> Float[Tensor, " m"]:
    ordered = values.sort().values
    if len(ordered) <= MOST_QUANTILES:
        return ordered
    places = torch.linspace(0, len(ordered) - 1, MOST_QUANTILES, dtype=torch.float64, device=values.device)
    low = places.floor().long()
    high = (low + 1).clamp(max=len(ordered) - 1)
    return torch.lerp(ordered[low], ordered[high], places - low)
