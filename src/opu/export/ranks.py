"""Novelty and its p-value among calibration values, without a search that runtimes do not have."""

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor, nn

from opu.novelty import Novelty, tail_scales


class NoveltyRanks(nn.Module):
    """The novelty score and its p-value from entropy and dispersion."""

    weights: Tensor

    def __init__(self, novelty: Novelty) -> None:
        super().__init__()
        self.parts = NegativeLogP(torch.stack([novelty.entropy, novelty.dispersion]))
        self.scores = NegativeLogP(novelty.scores.unsqueeze(0))
        fraction = float(novelty.blend[0])
        # Relative to the larger fraction, so that the measure which has it keeps its value.
        weights = torch.tensor([[1 - fraction], [fraction]], dtype=torch.float64) / max(fraction, 1 - fraction)
        self.register_buffer("weights", weights.log(), persistent=False)
        self.smallest, self.beyond = novelty.least_p_value, novelty.beyond

    def forward(self, measures: Float64[Tensor, "B 2"]) -> Float64[Tensor, "B 2"]:
        """N and its p-value."""
        # ONNX Runtime sums an empty batch to a wrong shape. One more row is never empty; its outputs are dropped.
        rows = nn.functional.pad(measures, (0, 0, 0, 1)).unsqueeze(-1)
        score = (self.parts(rows) + self.weights).amax(1, keepdim=True)
        # Beyond all calibration scores the fraction stays at its smallest, as a p-value must.
        fraction, _ = self.scores.fraction(score)
        return torch.cat([score, fraction.clamp(min=self.smallest)], -1)[:-1].squeeze(1)

    def marked(self, ranks: Float64[Tensor, "B 2"], rows: Bool[Tensor, " B"]) -> Float64[Tensor, "B 2"]:
        """The same with some rows marked as novel: a score above all calibration scores, and the smallest p-value."""
        score, p_value = ranks.unbind(-1)
        score = torch.where(rows, score.clamp(min=self.beyond), score)
        return torch.stack([score, torch.where(rows, torch.full_like(p_value, self.smallest), p_value)], -1)


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

    def __init__(self, calibration: Float64[Tensor, "m n"]) -> None:
        super().__init__()
        m, n = calibration.shape
        self.width = max(1, round(n**0.5))
        # More places than there are values, so that the last block never ends.
        size = -(-(n + 1) // self.width) * self.width
        blocks = torch.cat([calibration, calibration.new_full((m, size - n), torch.inf)], -1).view(m, -1, self.width)
        constants = {
            "blocks": blocks.reshape(-1, self.width),
            "last": blocks[:, :, -1],
            "lines": torch.cat([_lines(each, size) for each in calibration]),
            "offsets": torch.arange(m) * blocks.shape[1],
        }
        for name, values in constants.items():
            self.register_buffer(name, values.clone(), persistent=False)
        self.step = 1 / (n + 1)

    def forward(self, column: Float64[Tensor, "B m 1"]) -> Float64[Tensor, "B m 1"]:
        """Minus the log of the fraction of calibration values that are at least as large."""
        fraction, beyond = self.fraction(column)
        return beyond.clamp(min=0) - torch.log(fraction)

    def fraction(self, column: Float64[Tensor, "B m 1"]) -> tuple[Float64[Tensor, "B m 1"], Float64[Tensor, "B m 1"]]:
        """The fraction up to the last calibration value, and the distance beyond it in the scale of that tail."""
        start, height, slope, rate = nn.functional.embedding(self.place(column), self.lines).split(1, -1)
        along = column - start
        beyond = rate * along
        return height + slope * along - self.step * torch.exp(beyond.clamp(max=0)), beyond

    def place(self, column: Float64[Tensor, "B m 1"]) -> Int64[Tensor, "B m"]:
        """The number of each value's line: how many calibration values are smaller, counted on from the scores before."""
        block = (self.last < column).sum(-1) + self.offsets
        place: Tensor = block * self.width + (nn.functional.embedding(block, self.blocks) < column).sum(-1)
        return place


def _lines(calibration: Float64[Tensor, " n"], size: int) -> Float64[Tensor, "size 4"]:
    """Start, height (with one step more, which every value takes off), slope and rate; rows behind them are never read."""
    n = len(calibration)
    place = torch.arange(n + 1).clamp(1, n - 1)
    below, above = calibration[place - 1], calibration[place]
    lines = calibration.new_zeros(size, 4)
    lines[: n + 1, 0], lines[: n + 1, 1] = below, (n - place + 2).double() / (n + 1)
    lines[: n + 1, 2] = torch.where(above > below, -1 / ((n + 1) * (above - below).clamp(min=1e-300)), 0.0)
    upper, lower = (1 / tail_scales(calibration)).tolist()
    lines[0] = lines.new_tensor([float(calibration[0]), 1.0, 0.0, lower])
    lines[n] = lines.new_tensor([float(calibration[-1]), 2 / (n + 1), 0.0, upper])
    return lines
