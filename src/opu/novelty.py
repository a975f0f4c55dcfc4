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

The p-value of N is that of conformal prediction, :math:`(1 + \#\{i : N_i \ge N(x)\}) / (n + 1)`. The scores
:math:`N_i` of the :math:`n` calibration inputs are each computed from the :math:`n - 1` others, since a fresh input is
not among those that it is ranked against either. They are what they would be with the fresh input among the others and
below them, which is the largest that they can be: so no p-value is too small. :mod:`opu.ranks` has the ranks, and says how
ties are kept.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from opu.distributions import SimplexDistribution
from opu.ranks import Slack, combined, left_out, negative_log_p, tail_scales

MOST_INPUTS = 2048
# Predictions that are surer than this tie: smaller entropies are rounding of a probability next to 1.
LEAST_ENTROPY = 1e-11
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
    They stay in float64 when the student is converted to another type.

    A prediction that is not a number is always novel: its score is :attr:`beyond`, and its p-value the least.
    """

    entropy: Tensor
    dispersion: Tensor
    scores: Tensor
    blend: Tensor
    tails: Tensor

    def __init__(self, entropy: Tensor, dispersion: Tensor, scores: Tensor, blend: Tensor) -> None:
        super().__init__()
        for name, values in (("entropy", entropy), ("dispersion", dispersion), ("scores", scores), ("blend", blend)):
            self.register_buffer(name, values.double().contiguous())
        self.register_buffer("tails", torch.ones(2, 2, dtype=torch.float64), persistent=False)
        self.register_load_state_dict_post_hook(_measure_tails)  # type: ignore[no-untyped-call]
        self.arithmetic = torch.float32
        _measure_tails(self)

    @classmethod
    def fit(cls, q: SimplexDistribution, blend: Blend = FOR_IMAGES) -> "Novelty":
        """Calibrate on predictions for held-out in-distribution inputs: at least ten, better some hundreds."""
        if len(q) < FEWEST_INPUTS:
            raise ValueError(
                f"novelty needs at least {FEWEST_INPUTS} held-out inputs to be calibrated, better some hundreds; got "
                f"{len(q)}. Hold more inputs out."
            )
        numbers = torch.tensor([blend.share, blend.tilt], dtype=torch.float64, device=q.mean.device)
        columns = _measures(q.detach(), numbers)
        finite = columns.isfinite().all(-1)
        if not bool(finite.all()):
            raise ValueError(
                f"novelty is calibrated on predictions that are numbers; {int((~finite).sum())} of {len(q)} are NaN or "
                "infinite. Check these inputs, and the student's weights."
            )
        columns = calibrate_on(columns)
        scores = left_out(columns, shares_of(numbers), Slack.of(columns))
        entropy, dispersion = columns.sort(0).values.unbind(-1)
        return cls(entropy, dispersion, scores.sort().values, numbers)

    def forward(self, q: SimplexDistribution) -> Float[Tensor, "*B"]:
        """N: it grows with novelty, and has no upper bound."""
        return self._score(q).to(q.mean.dtype)

    def p_value(self, q: SimplexDistribution) -> Float[Tensor, "*B"]:
        """The conformal p-value: of in-distribution inputs, at most a fraction ``a`` has one of ``a`` or less.

        It is never below ``1 / (n + 1)`` for ``n`` calibration inputs (2,048 at most), since these prove no more than that.
        Flagging inputs below 0.01 therefore needs a hundred of them.
        """
        smaller = torch.searchsorted(self.scores, self._score(q).contiguous())
        count = len(self.scores) + 1
        return ((count - smaller).double() / count).to(q.mean.dtype)

    def _score(self, q: SimplexDistribution) -> Float[Tensor, "*B"]:
        # Twice the slack of calibration scores, so that an input which ties with some of them ranks below all of these.
        measured = _measures(q, self.blend)
        values = self.slack()(measured, 2)
        columns = (self.entropy, self.dispersion)
        parts = [negative_log_p(values[..., j], each, self.tails[j]) for j, each in enumerate(columns)]
        score = combined(torch.stack(parts, -1), shares_of(self.blend))
        return torch.where(measured.isfinite().all(-1), score, self.beyond)

    def slack(self) -> Slack:
        """What rounding may change in E and B."""
        ends = [torch.maximum(-each[0], each[-1]) for each in (self.entropy, self.dispersion)]  # they are sorted
        return Slack.up_to(torch.stack(ends), self.arithmetic)

    def in_arithmetic(self, dtype: torch.dtype) -> "Novelty":
        """The same score for predictions of a network that computes in this type, if that is a coarser one."""
        if dtype not in Slack.RELATIVE or Slack.RELATIVE[dtype] <= Slack.RELATIVE[self.arithmetic]:
            return self
        other = copy.copy(self)
        other.arithmetic = dtype
        return other

    @property
    def least_p_value(self) -> float:
        """The smallest p-value that an input can have: 1 / (n + 1)."""
        return 1 / (len(self.scores) + 1)

    @property
    def beyond(self) -> float:
        """A score above that of every calibration input, for inputs that are known to be novel."""
        return float(self.scores[-1]) + 1.0

    def threshold(self, rate: float) -> float:
        """The score that at most a fraction ``rate`` of in-distribution inputs exceeds: the one of that p-value.

        A rate below ``1 / (n + 1)`` is refused, since ``n`` calibration inputs cannot tell it from 0.
        """
        return threshold(self.scores, rate)

    def _apply(self, fn: Any, recurse: bool = True) -> "Novelty":
        """Move with the student to another device; the numbers stay in float64."""
        exact = {name: buffer.double() for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in exact.items():
            moved = self._buffers[name]
            assert moved is not None
            self._buffers[name] = buffer.to(moved.device)
        return self


def check_rate(rate: float, num_inputs: int) -> int:
    """How many of so many calibration inputs a rate of false alarms lets be flagged; a rate that they cannot hold is refused.

    Args:
        rate: Fraction of in-distribution inputs that may be flagged.
        num_inputs: Number of calibration inputs.
    """
    if not 0 < rate < 1:
        raise ValueError(f"the rate of false alarms must lie between 0 and 1; got {rate}. Use 0.01 for 1 %.")
    allowed = math.floor(rate * (num_inputs + 1) + 1e-9)
    if allowed == 0:
        raise ValueError(
            f"a rate of false alarms of {rate:g} needs at least {math.ceil(1 / rate - 1e-9) - 1} calibration inputs; there "
            f"were {num_inputs}. Calibrate on more (opu.calibrate), or ask for a larger rate."
        )
    return allowed


def threshold(scores: Float[Tensor, " n"], rate: float) -> float:
    """The score that at most a fraction ``rate`` of inputs exceeds that are like those with these sorted scores."""
    allowed = check_rate(rate, len(scores))
    # A little above, since scores that are rounded to float32 may lie above the score that they equal.
    return float(scores[-allowed]) * (1 + 1e-6) + 1e-6


def _measure_tails(novelty: Novelty, *_: object) -> None:
    """Measure the tails once, and again after loading: doing it in each call would cost more than all the rest."""
    novelty.entropy = novelty.entropy.clamp(min=LEAST_ENTROPY)  # older students were calibrated without a least one
    parts = (novelty.entropy, novelty.dispersion)
    if min(len(each) for each in parts) > 1:
        least = novelty.slack().most.tolist()
        novelty.tails = torch.stack([tail_scales(*both) for both in zip(parts, least, strict=True)])


def shares_of(blend: Float[Tensor, "2"]) -> Float[Tensor, "2"]:
    """The fractions of false alarms by entropy and by dispersion."""
    return torch.stack([1 - blend[0], blend[0]])


def _measures(q: SimplexDistribution, blend: Float[Tensor, "2"]) -> Float[Tensor, "*B 2"]:
    log_mean = q.log_mean.double().log_softmax(-1)
    entropy = torch.special.entr(log_mean.exp()).sum(-1).clamp(min=LEAST_ENTROPY)
    return torch.stack([entropy, -q.log_precision.double() - blend[1] * log_mean.mean(-1)], -1)


def calibrate_on(columns: Float[Tensor, "n m"]) -> Float[Tensor, "k m"]:
    """The rows that scores are calibrated on: all, or 2,048 of them, always the same ones of so many.

    Quantiles of more rows would break ties: an input would rank above the calibration inputs that it equals.
    """
    if len(columns) <= MOST_INPUTS:
        return columns
    chosen = torch.randperm(len(columns), generator=torch.Generator().manual_seed(0))[:MOST_INPUTS]
    return columns[chosen.to(columns.device)]
