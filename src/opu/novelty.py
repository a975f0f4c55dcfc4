r"""One score for "is this input unlike the data?", made of entropy and dispersion and calibrated on held-out inputs.

Entropy E finds inputs between classes. Dispersion B, the negative log-precision or close to it, finds inputs where the
particles spread. Each becomes a p-value: the fraction of held-out in-distribution inputs whose value is at least as large.
N is minus the logarithm of the smaller p-value (a weighted Bonferroni rule, up to a constant): B may cause a fraction
:math:`s` of all false alarms, and E the rest,

.. math:: N(x) = \max(\log\tfrac{1-s}{p_E(x)},\; \log\tfrac{s}{p_B(x)}), \qquad p_m(x) = P(m(X) \ge m(x)),

where :math:`X` is an in-distribution input.

For images B is C, the negative log-precision, with a tenth of the false alarms. That is enough to find inputs far from the
data; with more, false alarms by C would hide inputs just outside the data, which E finds. In a table many in-distribution
rows lie between classes, so E says little, and B has nine tenths. There B is :math:`-\tfrac1K \sum_k \ln\alpha_k`: a class
with a large concentration hides a small one in :math:`\alpha_0`, but not in this mean. ``docs/log.md`` has the studies.
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
    r"""What novelty is made of.

    Attributes:
        share: Fraction of all false alarms that dispersion may cause; entropy may cause the rest.
        tilt: The weight :math:`w` in the dispersion :math:`-\ln\alpha_0 - \tfrac wK \sum_k \ln h_k`: 0 makes it the negative
            log-precision, 1 the negative mean log-concentration.
    """

    share: float
    tilt: float

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"the fraction of false alarms by dispersion must lie between 0 and 1; got {self.share}.")
        if not 0 <= self.tilt <= 1:
            raise ValueError(f"the tilt of dispersion must lie between 0 and 1; got {self.tilt}.")


FOR_IMAGES, FOR_TABLES = Blend(0.1, 0.0), Blend(0.9, 1.0)


class Novelty(nn.Module):
    """The calibrated score N and its p-value, as a small module that is stored with the student.

    Build it with :meth:`fit` from a student's predictions for held-out in-distribution inputs, ideally ones that the teacher
    was not trained on. The buffers hold sorted values of E, of B and of N on those inputs, and the two numbers of the blend.
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
        """Calibrate on predictions for held-out in-distribution inputs: at least ten, better some hundreds."""
        if len(q) < FEWEST_INPUTS:
            raise ValueError(
                f"novelty needs at least {FEWEST_INPUTS} held-out inputs to be calibrated, better some hundreds; got "
                f"{len(q)}. Hold more inputs out."
            )
        numbers = torch.tensor([blend.share, blend.tilt], dtype=torch.float64, device=q.mean.device)
        entropy, dispersion = _measures(q.detach(), numbers)
        tails = negative_log_p(entropy, entropy.sort().values), negative_log_p(dispersion, dispersion.sort().values)
        return cls(_quantiles(entropy), _quantiles(dispersion), _quantiles(_combined(*tails, numbers)), numbers)

    def forward(self, q: Dirichlet) -> Float[Tensor, "*B"]:
        """N: it grows with novelty, and has no upper bound."""
        entropy, dispersion = _measures(q, self.blend)
        tails = (
            negative_log_p(entropy, self.entropy, self.tails[0]),
            negative_log_p(dispersion, self.dispersion, self.tails[1]),
        )
        return _combined(*tails, self.blend).to(q.mean.dtype)

    def p_value(self, q: Dirichlet) -> Float[Tensor, "*B"]:
        """Probability that an in-distribution input scores at least this high: flag below 0.01 for 1 % of false alarms.

        It is never below ``1 / (n + 1)`` for ``n`` calibration inputs (2,048 at most), since these prove no more than that.
        """
        p = torch.exp(-negative_log_p(self(q).double(), self.scores, self.tails[2]))
        return p.clamp(min=self.least_p_value).to(q.mean.dtype)

    @property
    def least_p_value(self) -> float:
        """The smallest p-value that an input can have: 1 / (n + 1)."""
        return 1 / (len(self.scores) + 1)

    @property
    def beyond(self) -> float:
        """A score above that of every calibration input, for inputs that are known to be novel."""
        return float(self.scores[-1]) + 1.0

    def threshold(self, rate: float) -> float:
        """The score that a fraction ``rate`` of in-distribution inputs exceeds."""
        if not 0 < rate < 1:
            raise ValueError(f"the rate of false alarms must lie between 0 and 1; got {rate}. Use 0.01 for 1 %.")
        return float(torch.quantile(self.scores, 1 - rate))


def _measure_tails(novelty: Novelty, *_: object) -> None:
    """Measure the tails once, and again after loading: doing it in each call would cost more than all the rest."""
    parts = (novelty.entropy, novelty.dispersion, novelty.scores)
    if min(len(each) for each in parts) > 1:
        novelty.tails = torch.stack([tail_scales(each) for each in parts])


def negative_log_p(
    values: Float[Tensor, "*B"], calibration: Float[Tensor, " n"], scales: Float[Tensor, "2"] | None = None
) -> Float[Tensor, "*B"]:
    """Minus the log of the fraction of calibration values that are at least as large, strictly rising in the value.

    Between sorted calibration values the fraction is interpolated. Above the largest it falls exponentially, at the rate of
    the mean excess in the upper tenth; below the smallest it tends to 1 in the same way, so that no two values tie.

    Args:
        values: The values to rank.
        calibration: Sorted values of in-distribution inputs.
        scales: The scales of both tails, computed from the calibration values by default.
    """
    n = len(calibration)
    above_all, below_them = (tail_scales(calibration) if scales is None else scales).unbind()
    place = torch.searchsorted(calibration, values.contiguous()).clamp(1, n - 1)
    below, above = calibration[place - 1], calibration[place]
    share = ((values - below) / (above - below).clamp(min=1e-300)).clamp(0, 1)
    tail = (n - (place - 1) - share) / (n + 1)
    upper = ((values - calibration[-1]) / above_all).clamp(min=0)
    lower = ((calibration[0] - values) / below_them).clamp(min=0)
    below_all = -torch.log1p(-torch.exp(-lower) / (n + 1))
    return torch.where(values < calibration[0], below_all, -torch.log(tail) + upper)


def _combined(from_entropy: Tensor, from_dispersion: Tensor, blend: Float[Tensor, "2"]) -> Tensor:
    # Divided by the larger share, so that the measure which has it enters unchanged.
    share = blend[0]
    larger = torch.maximum(share, 1 - share)
    return torch.maximum(from_entropy + ((1 - share) / larger).log(), from_dispersion + (share / larger).log())


def _measures(q: Dirichlet, blend: Float[Tensor, "2"]) -> tuple[Tensor, Tensor]:
    log_mean = q.log_mean.double().log_softmax(-1)
    return -(log_mean.exp() * log_mean).sum(-1), -q.log_precision.double() - blend[1] * log_mean.mean(-1)


def tail_scales(calibration: Float[Tensor, " n"]) -> Float[Tensor, "2"]:
    """The scales of the upper and of the lower tail."""
    return torch.stack([mean_excess(calibration), mean_excess(-calibration.flip(0))])


def mean_excess(calibration: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The mean by which values in the upper tenth exceed its smallest value: the scale of the tail."""
    start = calibration[int(0.9 * (len(calibration) - 1))]
    excess = (calibration[calibration >= start] - start).mean()
    # If the upper tenth is one value, the whole range sets the scale; if all values are equal, the scale is 1.
    spread = calibration[-1] - calibration[0]
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
