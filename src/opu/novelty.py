r"""Novelty: one score for near and far strangers, calibrated on ordinary inputs.

The entropy E of the mean sees inputs near the classes, the dispersion B of the Dirichlet sees inputs far from them. Each is
turned into the probability that an ordinary input looks at least as uncertain, and either may raise the alarm. B may cause
a share :math:`s` of all false alarms, and E the rest (a weighted Bonferroni rule), up to a constant:

.. math:: N(x) = \max(\log\tfrac{1-s}{p_E(x)},\; \log\tfrac{s}{p_B(x)}), \qquad p_m(x) = P(m(\text{ordinary}) \ge m(x)).

For images B is C, the negative log-precision, and has a tenth: with more, its doubts about ordinary images drown those of E
about near strangers, and far ones are so rare under C that a tenth is enough. For rows of a table ordinary rows are often
between classes and strangers often are not, so that E says little, and B has nine tenths; it is there
:math:`-\tfrac1K \sum_k \ln\alpha_k`. A member that is sure of a row hides its doubts from :math:`\alpha_0`, not from the
smallest concentration. There N is for strangers, and errors are found by E. ``docs/log.md`` has the studies.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from opu.distributions.dirichlet import Dirichlet

MOST_QUANTILES = 2048
FEWEST_INPUTS = 10


@dataclass(frozen=True)
class Blend:
    r"""How novelty is made up.

    Attributes:
        share: Of all false alarms, those that the dispersion may cause; the entropy may cause the others.
        tilt: The weight :math:`w` in the dispersion :math:`-\ln\alpha_0 - \tfrac wK \sum_k \ln h_k`: 0 makes it the negative
            log-precision, 1 the negative mean log-concentration.
    """

    share: float
    tilt: float

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"the share of dispersion in the false alarms must lie between 0 and 1; got {self.share}.")
        if not 0 <= self.tilt <= 1:
            raise ValueError(f"the tilt of dispersion must lie between 0 and 1; got {self.tilt}.")


FOR_IMAGES, FOR_TABLES = Blend(0.1, 0.0), Blend(0.9, 1.0)


class Novelty(nn.Module):
    """The calibrated score N and its p-value, as a small module that is stored with the student.

    Build it with :meth:`fit` from the student's answers to held-out ordinary inputs, best ones that the teacher was not
    trained on. The buffers hold sorted values of E, of B and of N itself on those inputs, and the two numbers of the blend.
    """

    entropy: Tensor
    dispersion: Tensor
    scores: Tensor
    blend: Tensor
    tails: Tensor

    def __init__(self, entropy: Tensor, dispersion: Tensor, scores: Tensor, blend: Tensor) -> None:
        super().__init__()
        for name, values in (("entropy", entropy), ("dispersion", dispersion), ("scores", scores), ("blend", blend)):
            self.register_buffer(name, values.double())
        self.register_buffer("tails", torch.ones(3, 2, dtype=torch.float64), persistent=False)
        self.register_load_state_dict_post_hook(_measure_tails)  # type: ignore[no-untyped-call]
        _measure_tails(self)

    @classmethod
    def fit(cls, q: Dirichlet, blend: Blend = FOR_IMAGES) -> "Novelty":
        """Calibrate on a student's answers to held-out ordinary inputs; ten is the least, some hundreds are good."""
        if len(q) < FEWEST_INPUTS:
            raise ValueError(
                f"novelty needs at least {FEWEST_INPUTS} held-out inputs to be calibrated, better some hundreds; got "
                f"{len(q)}. Hold more inputs out."
            )
        numbers = torch.tensor([blend.share, blend.tilt], dtype=torch.float64, device=q.mean.device)
        entropy, dispersion = _measures(q.detach(), numbers)
        rare = negative_log_p(entropy, entropy.sort().values), negative_log_p(dispersion, dispersion.sort().values)
        return cls(_quantiles(entropy), _quantiles(dispersion), _quantiles(_louder(*rare, numbers)), numbers)

    def forward(self, q: Dirichlet) -> Float[Tensor, "*B"]:
        """N: it grows with novelty, and has no upper bound."""
        entropy, dispersion = _measures(q, self.blend)
        rare = negative_log_p(entropy, self.entropy, self.tails[0]), negative_log_p(dispersion, self.dispersion, self.tails[1])
        return _louder(*rare, self.blend).to(q.mean.dtype)

    def p_value(self, q: Dirichlet) -> Float[Tensor, "*B"]:
        """Probability that an ordinary input scores at least this high: flag below 0.01 to flag 1 % of ordinary inputs.

        Never below ``1 / (n + 1)`` for ``n`` calibration inputs (2,048 at most): fewer inputs prove no more than that.
        """
        p = torch.exp(-negative_log_p(self(q).double(), self.scores, self.tails[2]))
        return p.clamp(min=1 / (len(self.scores) + 1)).to(q.mean.dtype)

    def threshold(self, rate: float) -> float:
        """The score that a fraction ``rate`` of ordinary inputs exceeds."""
        if not 0 < rate < 1:
            raise ValueError(f"the rate of false alarms must lie between 0 and 1; got {rate}. Use 0.01 for 1 %.")
        return float(torch.quantile(self.scores, 1 - rate))


def _measure_tails(novelty: Novelty, *_: object) -> None:
    """Once, and again when other numbers have been read: in each call it would cost more than all the rest."""
    parts = (novelty.entropy, novelty.dispersion, novelty.scores)
    if min(len(each) for each in parts) > 1:
        novelty.tails = torch.stack([tail_scales(each) for each in parts])


def negative_log_p(
    values: Float[Tensor, "*B"], ordinary: Float[Tensor, " n"], scales: Float[Tensor, "2"] | None = None
) -> Float[Tensor, "*B"]:
    """Minus the log of the fraction of ordinary values that are at least as large, strictly rising in the value.

    Between sorted ordinary values the fraction is interpolated. Above the largest it falls exponentially, at the rate of
    the mean excess in the upper tenth; below the smallest it tends to 1 in the same way, so that no ranks tie. Those two
    scales are taken from the ordinary values unless they are given.
    """
    n = len(ordinary)
    above_all, below_them = (tail_scales(ordinary) if scales is None else scales).unbind()
    place = torch.searchsorted(ordinary, values.contiguous()).clamp(1, n - 1)
    below, above = ordinary[place - 1], ordinary[place]
    share = ((values - below) / (above - below).clamp(min=1e-300)).clamp(0, 1)
    tail = (n - (place - 1) - share) / (n + 1)
    upper = ((values - ordinary[-1]) / above_all).clamp(min=0)
    lower = ((ordinary[0] - values) / below_them).clamp(min=0)
    below_all = -torch.log1p(-torch.exp(-lower) / (n + 1))
    return torch.where(values < ordinary[0], below_all, -torch.log(tail) + upper)


def _louder(of_entropy: Tensor, of_bluntness: Tensor, blend: Float[Tensor, "2"]) -> Tensor:
    # Less the logarithm of the larger share, so that the measure which has it is read as it is.
    share = blend[0]
    larger = torch.maximum(share, 1 - share)
    return torch.maximum(of_entropy + ((1 - share) / larger).log(), of_bluntness + (share / larger).log())


def _measures(q: Dirichlet, blend: Float[Tensor, "2"]) -> tuple[Tensor, Tensor]:
    log_mean = q.log_mean.double().log_softmax(-1)
    return -(log_mean.exp() * log_mean).sum(-1), -q.log_precision.double() - blend[1] * log_mean.mean(-1)


def tail_scales(ordinary: Float[Tensor, " n"]) -> Float[Tensor, "2"]:
    """Of the upper and of the lower end."""
    return torch.stack([mean_excess(ordinary), mean_excess(-ordinary.flip(0))])


def mean_excess(ordinary: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """By how much the upper tenth exceeds its smallest value on average: the scale of the tail."""
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
