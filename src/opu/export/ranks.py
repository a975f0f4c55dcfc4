"""Novelty and its p-value among calibration values, without a search that runtimes do not have."""

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor, nn

from opu.novelty import Novelty, calibrate_on, shares_of
from opu.ranks import Slack, left_out, tail_scales


class NoveltyRanks(nn.Module):
    """The novelty score and its p-value from entropy, dispersion and perhaps more measures.

    Args:
        columns: Sorted calibration values of each measure.
        scores: Sorted scores of the calibration inputs.
        shares: Fraction of all false alarms that each measure may cause.
        slack: What rounding may change in the measures.
    """

    factor: Tensor
    offset: Tensor
    weights: Tensor
    count: Tensor

    def __init__(
        self,
        columns: Float64[Tensor, "m n"],
        scores: Float64[Tensor, " n"],
        shares: Float64[Tensor, " m"],
        slack: Slack,
    ) -> None:
        super().__init__()
        scales = [tail_scales(each, least) for each, least in zip(columns, slack.most.tolist(), strict=True)]
        self.parts = NegativeLogP(columns, torch.stack(scales))
        self.ordered = scores
        self.scores = NegativeLogP(scores.unsqueeze(0), torch.ones(1, 2, dtype=torch.float64))
        constants = {
            "factor": 1 - 2 * slack.relative,  # a value is lowered by twice its slack, as in opu.novelty
            "offset": 2 * slack.absolute,
            "weights": (shares / shares.max()).log().unsqueeze(-1),
            "count": torch.tensor([len(scores) + 1.0], dtype=torch.float64),  # a number would be rounded to float32
        }
        for name, values in constants.items():
            self.register_buffer(name, values.clone(), persistent=False)
        self.beyond = float(scores[-1]) + 1.0

    @classmethod
    def of(cls, novelty: Novelty) -> "NoveltyRanks":
        """The same score as the library's."""
        columns = torch.stack([novelty.entropy, novelty.dispersion])
        return cls(columns, novelty.scores, shares_of(novelty.blend), novelty.slack())

    @classmethod
    def fit(cls, columns: Float64[Tensor, "n m"], shares: Float64[Tensor, " m"]) -> "NoveltyRanks":
        """Calibrate on the measures of held-out inputs.

        The slack is that of float32 for int8 too: sums of integers are exact, whatever the batch size.
        """
        columns = calibrate_on(columns)
        slack = Slack.of(columns)
        scores = left_out(columns, shares, slack).sort().values
        return cls(columns.T.sort(-1).values, scores, shares, slack)

    def forward(
        self, measures: Float64[Tensor, "B m"], known: Bool[Tensor, " B"], novel: Bool[Tensor, " B"] | None = None
    ) -> Float64[Tensor, "B 2"]:
        """N and its p-value.

        Args:
            measures: One column for each measure.
            known: Rows that are finite; all others are novel, whatever the measures say.
            novel: Rows that are novel for another reason: their score is above all calibration scores at least.
        """
        lowered = measures * self.factor - self.offset
        # ONNX Runtime sums an empty batch to a wrong shape. One more row is never empty; its outputs are dropped.
        rows = nn.functional.pad(lowered, (0, 0, 0, 1)).unsqueeze(-1)
        score = (self.parts(rows) + self.weights).amax(1, keepdim=True)[:-1]
        score = torch.where(known[:, None, None], score, self.beyond)
        if novel is not None:
            score = torch.where(novel[:, None, None], score.clamp(min=self.beyond), score)
        rows = nn.functional.pad(score, (0, 0, 0, 0, 0, 1))
        p_value = (self.count - self.scores.place(rows)[:-1]) / self.count
        return torch.cat([score.squeeze(1), p_value], -1)


class NegativeLogP(nn.Module):
    """:func:`opu.novelty.negative_log_p` of several scores at once, each against calibration values of its own.

    A value is looked up in two steps, first its block among the last values of all blocks, then its place within the block:
    a comparison with all of two thousand values would cost more than the student itself. Between calibration values the
    fraction that is larger falls in straight lines. A table holds the start, height and slope of each line, and the rate of
    the tail, which is 0 between calibration values.
    """

    blocks: Tensor
    last: Tensor
    lines: Tensor
    offsets: Tensor
    step: Tensor

    def __init__(self, calibration: Float64[Tensor, "m n"], scales: Float64[Tensor, "m 2"]) -> None:
        super().__init__()
        m, n = calibration.shape
        self.width = max(1, round(n**0.5))
        # More places than there are values, so that the last block never ends.
        size = -(-(n + 1) // self.width) * self.width
        blocks = torch.cat([calibration, calibration.new_full((m, size - n), torch.inf)], -1).view(m, -1, self.width)
        constants = {
            "blocks": blocks.reshape(-1, self.width),
            "last": blocks[:, :, -1],
            "lines": torch.cat([_lines(*both, size) for both in zip(calibration, scales, strict=True)]),
            "offsets": torch.arange(m) * blocks.shape[1],
            "step": torch.tensor([1 / (n + 1)], dtype=torch.float64),
        }
        for name, values in constants.items():
            self.register_buffer(name, values.clone(), persistent=False)

    def forward(self, column: Float64[Tensor, "B m 1"]) -> Float64[Tensor, "B m 1"]:
        """Minus the log of the fraction of calibration values that are at least as large."""
        start, height, slope, rate = nn.functional.embedding(self.place(column), self.lines).split(1, -1)
        along = column - start
        beyond = rate * along  # the distance beyond the calibration values, in the scale of that tail
        fraction = height + slope * along - self.step * torch.exp(beyond.clamp(max=0))
        rank: Tensor = beyond.clamp(min=0) - torch.log(fraction)
        return rank

    def place(self, column: Float64[Tensor, "B m 1"]) -> Int64[Tensor, "B m"]:
        """The number of each value's line: how many calibration values are smaller, counted on from the scores before."""
        block = (self.last < column).sum(-1) + self.offsets
        place: Tensor = block * self.width + (nn.functional.embedding(block, self.blocks) < column).sum(-1)
        return place


def _lines(calibration: Float64[Tensor, " n"], scales: Float64[Tensor, "2"], size: int) -> Float64[Tensor, "size 4"]:
    """Start, height (with one step more, which every value takes off), slope and rate; rows behind them are never read."""
    n = len(calibration)
    place = torch.arange(n + 1).clamp(1, n - 1)
    below, above = calibration[place - 1], calibration[place]
    lines = calibration.new_zeros(size, 4)
    lines[: n + 1, 0], lines[: n + 1, 1] = below, (n - place + 2).double() / (n + 1)
    lines[: n + 1, 2] = torch.where(above > below, -1 / ((n + 1) * (above - below).clamp(min=1e-300)), 0.0)
    upper, lower = (1 / scales).tolist()
    lines[0] = lines.new_tensor([float(calibration[0]), 1.0, 0.0, lower])
    lines[n] = lines.new_tensor([float(calibration[-1]), 2 / (n + 1), 0.0, upper])
    return lines
