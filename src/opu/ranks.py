"""How a value ranks among calibration values, and how several such ranks become one score.

Values that differ by rounding alone tie, and a tie counts as at least as large. A network's outputs change in their last
digits with the batch size, the device and the type of its numbers. Where many inputs are alike, as rows of a few binary
columns are, such a change would move an input from the bottom of its tied group to the top. So every value is lowered by
the slack of the arithmetic before it is ranked, which can only make a p-value larger.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor


@dataclass(frozen=True)
class Slack:
    """What rounding may change in values of several measures, one measure to a column.

    The first measure is an entropy, whose error is relative: of a confident prediction, entropy is small and so is its
    error. Errors of all others are those of logits and log-precisions, which do not shrink with the value.

    Attributes:
        relative: Change as a fraction of the value.
        absolute: Change in units of the measure.
        largest: The largest value of each measure.
    """

    # Of entropies, and of other values relative to 1 plus the largest: about three times what was measured on networks of
    # up to eight layers and logits of up to 90. A student in float64 may have been calibrated in float32.
    RELATIVE: ClassVar[dict[torch.dtype, tuple[float, float]]] = {
        torch.float64: (1e-4, 1e-5),
        torch.float32: (1e-4, 1e-5),
        torch.float16: (2e-2, 2e-3),
        torch.bfloat16: (1e-1, 1e-2),
    }

    relative: Float[Tensor, " m"]
    absolute: Float[Tensor, " m"]
    largest: Float[Tensor, " m"]

    @classmethod
    def of(cls, columns: Float[Tensor, "n m"], dtype: torch.dtype = torch.float32) -> "Slack":
        """The slack for values like these, in the arithmetic of this type."""
        return cls.up_to(columns.abs().amax(0), dtype)

    @classmethod
    def up_to(cls, largest: Float[Tensor, " m"], dtype: torch.dtype = torch.float32) -> "Slack":
        """The same, from the largest value of each measure."""
        is_entropy = torch.arange(len(largest), device=largest.device) == 0
        of_entropy, of_others = cls.RELATIVE[dtype]
        return cls(of_entropy * is_entropy.double(), of_others * (1 + largest) * ~is_entropy, largest)

    def __call__(self, values: Float[Tensor, "*B m"], times: int = 1) -> Float[Tensor, "*B m"]:
        """The values lowered by the slack, or by a multiple of it."""
        return values - times * (self.relative * values + self.absolute)

    @property
    def most(self) -> Float[Tensor, " m"]:
        """Differences up to this mean nothing at the upper end of each measure."""
        return self.relative * self.largest + self.absolute


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
    place = torch.searchsorted(calibration, values.contiguous()).clamp(1, n - 1)
    around = calibration[place - 1], calibration[place]
    ends = calibration[0], calibration[-1]
    return _interpolated(values, place, n, around, ends, tail_scales(calibration) if scales is None else scales)


def left_out(columns: Float[Tensor, "n m"], shares: Float[Tensor, " m"], slack: Slack) -> Float[Tensor, " n"]:
    """The combined score of each calibration input among the others.

    Args:
        columns: Values of calibration inputs, one measure to a column.
        shares: Fraction of all false alarms that each measure may cause.
        slack: What rounding may change in the values.
    """
    lowered, least = slack(columns), slack.most.tolist()
    parts = [_among_others(columns[:, j], lowered[:, j], least[j]) for j in range(columns.shape[1])]
    return combined(torch.stack(parts, -1), shares)


def _among_others(values: Float[Tensor, " n"], lowered: Float[Tensor, " n"], least: float) -> Float[Tensor, " n"]:
    """Where each value ranks among all but itself; ``lowered`` is what is ranked, and not above the value.

    A fresh value counts as one more of the others, and as smaller: wherever it lies, the rank is not above this one.
    """
    order = values.argsort()
    calibration, asked = values[order], lowered[order]
    n = len(calibration) - 1
    own = torch.arange(n + 1, device=values.device)

    def others(place: Int64[Tensor, " n"]) -> Float[Tensor, " n"]:
        return calibration[place + (place >= own).long()]

    place = torch.searchsorted(calibration, asked).clamp(1, n - 1)
    first, last = torch.zeros_like(own), torch.full_like(own, n - 1)
    # Only the largest value lies above all others, and only the smallest below them.
    scales = torch.stack([tail_scales(calibration[:-1], least)[0], tail_scales(calibration[1:], least)[1]])
    around, ends = (others(place - 1), others(place)), (others(first), others(last))
    ranked = torch.empty_like(values)
    ranked[order] = _interpolated(asked, place, n, around, ends, scales, num_smaller=1)
    return ranked


def _interpolated(
    values: Float[Tensor, "*B"],
    place: Int64[Tensor, "*B"],
    n: int,
    around: tuple[Tensor, Tensor],
    ends: tuple[Tensor, Tensor],
    scales: Float[Tensor, "2"],
    num_smaller: int = 0,
) -> Float[Tensor, "*B"]:
    """:func:`negative_log_p` from the neighbours of each value, the first and the last of ``n`` calibration values.

    There may be more calibration values, of which no more is known than that they are smaller.
    """
    (below, above), (first, last) = around, ends
    above_all, below_them = scales.unbind()
    count = n + num_smaller + 1
    share = ((values - below) / (above - below).clamp(min=1e-300)).clamp(0, 1)
    tail = (n - (place - 1) - share) / count
    upper = ((values - last) / above_all).clamp(min=0)
    lower = ((first - values) / below_them).clamp(min=0)
    below_all = -torch.log1p(-(num_smaller + torch.exp(-lower)) / count)
    return torch.where(values < first, below_all, -torch.log(tail) + upper)


def combined(parts: Float[Tensor, "*B m"], shares: Float[Tensor, " m"]) -> Float[Tensor, "*B"]:
    """The largest of several negative log p-values, each less the logarithm of its share of the false alarms.

    Shares are relative to the largest, so that the measure which has it enters unchanged.
    """
    return (parts + (shares / shares.max()).log()).amax(-1)


def tail_scales(calibration: Float[Tensor, " n"], least: float = 0.0) -> Float[Tensor, "2"]:
    """The scales of the upper and of the lower tail; differences up to ``least`` are rounding."""
    return torch.stack([mean_excess(calibration, least), mean_excess(-calibration.flip(0), least)])


def mean_excess(calibration: Float[Tensor, " n"], least: float = 0.0) -> Float[Tensor, ""]:
    """The mean by which values in the upper tenth exceed its smallest value: the scale of the tail."""
    start = calibration[int(0.9 * (len(calibration) - 1))]
    excess = (calibration[calibration >= start] - start).mean()
    # If the upper tenth is one value, the whole range sets the scale; if all values are equal, the scale is 1.
    spread = calibration[-1] - calibration[0]
    scale = torch.where(excess > torch.clamp(1e-12 * spread, min=least), excess, spread)
    return torch.where(scale > least, scale, torch.ones_like(scale))
