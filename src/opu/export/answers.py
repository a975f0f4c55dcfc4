r"""Everything that a student can say about an input, as one network of plain operators that leaves Python."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from opu.export.gamma import HIGHEST, LOWEST, Table
from opu.novelty import Novelty, tail_scales
from opu.students import Student

PLAIN = (
    "probabilities",
    "log_precision",
    "predictive_entropy",
    "expected_entropy",
    "mutual_information",
    "differential_entropy",
)
CALIBRATED = (*PLAIN, "novelty", "novelty_p_value")


class Prediction(nn.Module):
    """A student with its preparation of inputs before it and all measures behind it.

    From the logits on everything is computed in float64, as in the library, and rounded at the end. A runtime pays for
    every operator, whatever its size: where one can do for several measures, it does.

    Args:
        student: Trained; it is not changed.
        prepare: From raw inputs to those that the student was distilled on.
    """

    def __init__(self, student: Student, prepare: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.student, self.prepare = student, prepare
        self.names = PLAIN if student.novelty is None else CALIBRATED
        self.measures = Measures(student.novelty)
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """One tensor for each of ``names``."""
        logits, log_precision = self.student.heads(x if self.prepare is None else self.prepare(x))
        mean, found = self.measures(logits.double(), log_precision.double())
        return mean.to(logits.dtype), log_precision, *found.to(logits.dtype).unbind(-1)


class Measures(nn.Module):
    r"""All measures from logits and log-precision.

    With :math:`\alpha_0` as one more class behind the others, whose mean is 1, all measures are sums over classes of a few
    functions, and so one product with a matrix of constants.
    """

    def __init__(self, novelty: Novelty | None) -> None:
        super().__init__()
        self.table = Table()
        self.novelty = None if novelty is None else Ranked(novelty)
        self.tilt = 0.0 if novelty is None else float(novelty.blend[1])

    def forward(
        self, logits: Float64[Tensor, "B K"], log_precision: Float64[Tensor, " B"]
    ) -> tuple[Float64[Tensor, "B K"], Float64[Tensor, "B measures"]]:
        """The mean, and what the names behind ``log_precision`` say, side by side."""
        log_mean = nn.functional.pad(logits.log_softmax(-1), (0, 1))
        mean = log_mean.exp()
        u = log_mean + log_precision.unsqueeze(-1)  # ln alpha
        inside = u.clamp(LOWEST, HIGHEST)
        functions = self.table(inside)
        excess = functions[..., 0] + (LOWEST - u.clamp(max=LOWEST))
        reciprocal = torch.exp(-u.clamp(min=-700))
        parts = [mean * log_mean, mean * excess, functions.flatten(1), reciprocal, u, inside]
        sums = torch.tensor(_sums(logits.shape[-1], self.tilt), dtype=torch.float64)
        entropy, dispersion, information, spread = (torch.cat(parts, -1) @ sums).split(1, -1)
        information = information.clamp(min=0)
        found = [entropy, (entropy - information).clamp(min=0), information, spread]
        if self.novelty is not None:
            found.append(self.novelty(torch.cat([entropy, dispersion], -1)))
        return mean[:, :-1], torch.cat(found, -1)


def _sums(k: int, tilt: float) -> list[list[float]]:
    """How the parts of :class:`Measures` add up to entropy, dispersion, mutual information and differential entropy."""
    each, total = np.append(np.ones(k), 0.0), np.append(np.zeros(k), 1.0)
    none = np.zeros(k + 1)
    entropy = [-each, none, none, none, none, none, none]
    dispersion = [none, none, none, none, none, (tilt - 1) * total - tilt / k * each, none]
    information = [none, each - total, none, none, none, none, none]
    # In D the terms in alpha cancel, since concentrations add up to alpha_0, whose digamma is excess + u - 1/alpha. Above
    # the table's end its second function grows by u / 2.
    of_u = (each - total) / 2
    spread = [none, none, (1 - k) * total, each - total, k * total - each, of_u + (1 - k) * total, -of_u]
    columns = [
        np.concatenate([a, b, np.stack([excess, rest], -1).ravel(), *others])
        for a, b, excess, rest, *others in (entropy, dispersion, information, spread)
    ]
    rows: list[list[float]] = np.stack(columns, -1).tolist()
    return rows


class Ranked(nn.Module):
    """Novelty and its p-value without a search that runtimes do not have."""

    weights: Tensor

    def __init__(self, novelty: Novelty) -> None:
        super().__init__()
        self.parts = NegativeLogP(torch.stack([novelty.entropy, novelty.dispersion]))
        self.scores = NegativeLogP(novelty.scores.unsqueeze(0))
        share = float(novelty.blend[0])
        # Less the logarithm of the larger share, so that the measure which has it is read as it is.
        weights = torch.tensor([[1 - share], [share]], dtype=torch.float64) / max(share, 1 - share)
        self.register_buffer("weights", weights.log(), persistent=False)
        self.smallest = 1 / (len(novelty.scores) + 1)

    def forward(self, measures: Float64[Tensor, "B 2"]) -> Float64[Tensor, "B 2"]:
        """N and its p-value, from entropy and dispersion."""
        # ONNX Runtime sums an empty batch to a wrong shape: one row more, whose answers are dropped, and none is empty.
        rows = nn.functional.pad(measures, (0, 0, 0, 1)).unsqueeze(-1)
        louder = (self.parts(rows) + self.weights).amax(1, keepdim=True)
        # Beyond all ordinary scores the fraction stays at its smallest, as a p-value must.
        fraction, _ = self.scores.fraction(louder)
        return torch.cat([louder, fraction.clamp(min=self.smallest)], -1)[:-1].squeeze(1)


class NegativeLogP(nn.Module):
    """:func:`opu.novelty.negative_log_p` of several scores at once, each against fixed ordinary values of its own.

    A value is looked up in two steps: among the last values of blocks, and within its block. To compare it with all of
    two thousand would cost more than the student itself. Between ordinary values the fraction that is larger falls in
    straight lines, whose starts, heights and slopes are laid down in a table; its last column is the rate of the tails, 0
    but for values beyond all ordinary ones.
    """

    blocks: Tensor
    last: Tensor
    lines: Tensor
    offsets: Tensor

    def __init__(self, ordinary: Float64[Tensor, "m n"]) -> None:
        super().__init__()
        m, n = ordinary.shape
        self.width = max(1, round(n**0.5))
        # More places than there are values, so that the last block never ends.
        size = -(-(n + 1) // self.width) * self.width
        blocks = torch.cat([ordinary, ordinary.new_full((m, size - n), torch.inf)], -1).view(m, -1, self.width)
        constants = {
            "blocks": blocks.reshape(-1, self.width),
            "last": blocks[:, :, -1],
            "lines": torch.cat([_lines(each, size) for each in ordinary]),
            "offsets": torch.arange(m) * blocks.shape[1],
        }
        for name, values in constants.items():
            self.register_buffer(name, values.clone(), persistent=False)
        self.step = 1 / (n + 1)

    def forward(self, column: Float64[Tensor, "B m 1"]) -> Float64[Tensor, "B m 1"]:
        """Minus the log of the fraction of ordinary values that are at least as large."""
        fraction, beyond = self.fraction(column)
        return beyond.clamp(min=0) - torch.log(fraction)

    def fraction(self, column: Float64[Tensor, "B m 1"]) -> tuple[Float64[Tensor, "B m 1"], Float64[Tensor, "B m 1"]]:
        """The fraction, as far as there are ordinary values, and how far beyond them, in the scale of that tail."""
        start, height, slope, rate = nn.functional.embedding(self.place(column), self.lines).split(1, -1)
        along = column - start
        beyond = rate * along
        return height + slope * along - self.step * torch.exp(beyond.clamp(max=0)), beyond

    def place(self, column: Float64[Tensor, "B m 1"]) -> Int64[Tensor, "B m"]:
        """The line of each value: how many ordinary ones are smaller, behind the lines of the scores before."""
        block = (self.last < column).sum(-1) + self.offsets
        place: Tensor = block * self.width + (nn.functional.embedding(block, self.blocks) < column).sum(-1)
        return place


def _lines(ordinary: Float64[Tensor, " n"], size: int) -> Float64[Tensor, "size 4"]:
    """Start, height (with the step that every value is short of), slope and rate; what is behind them is never read."""
    n = len(ordinary)
    place = torch.arange(n + 1).clamp(1, n - 1)
    below, above = ordinary[place - 1], ordinary[place]
    lines = ordinary.new_zeros(size, 4)
    lines[: n + 1, 0], lines[: n + 1, 1] = below, (n - place + 2).double() / (n + 1)
    lines[: n + 1, 2] = torch.where(above > below, -1 / ((n + 1) * (above - below).clamp(min=1e-300)), 0.0)
    upper, lower = (1 / tail_scales(ordinary)).tolist()
    lines[0] = lines.new_tensor([float(ordinary[0]), 1.0, 0.0, lower])
    lines[n] = lines.new_tensor([float(ordinary[-1]), 2 / (n + 1), 0.0, upper])
    return lines
