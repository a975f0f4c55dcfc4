r"""Everything that a student can say about an input, as one network of plain operators that leaves Python."""

from collections.abc import Callable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from opu.export.gamma import gammas
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


class Answers(nn.Module):
    """A student with its preparation of inputs before it and all measures behind it.

    From the logits on everything is computed in float64, as in the library, and rounded at the end.

    Args:
        student: Trained; it is not changed.
        prepare: From raw inputs to those that the student was distilled on.
    """

    def __init__(self, student: Student, prepare: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.student, self.prepare = student, prepare
        self.names = PLAIN if student.novelty is None else CALIBRATED
        self.novelty = None if student.novelty is None else Ranked(student.novelty)
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """One tensor for each of ``names``."""
        logits, log_precision = self.student.heads(x if self.prepare is None else self.prepare(x))
        return tuple(each.to(logits.dtype) for each in self.measures(logits.double(), log_precision.double()))

    def measures(self, logits: Float64[Tensor, "B K"], log_precision: Float64[Tensor, " B"]) -> list[Tensor]:
        """What the names say, in float64."""
        log_mean = logits.log_softmax(-1)
        mean = log_mean.exp()
        # The classes, and behind them all of them together, so that each function is asked once.
        log_alpha = nn.functional.pad(log_mean, (0, 1)) + log_precision.unsqueeze(-1)
        alpha = log_alpha.exp()
        excess, log_gamma = gammas(alpha)
        entropy = -(mean * log_mean).sum(-1)
        information = ((mean * excess[:, :-1]).sum(-1) - excess[:, -1]).clamp(min=0)
        # ln Gamma(alpha) - (alpha - 1) psi(alpha) of each, of which the sum wants K in place of 1
        digamma = excess + log_alpha - alpha.reciprocal()
        parts = log_gamma - log_alpha - (alpha - 1) * digamma
        spread = parts[:, :-1].sum(-1) - parts[:, -1] - (log_mean.shape[-1] - 1) * digamma[:, -1]
        found = [mean, log_precision, entropy, (entropy - information).clamp(min=0), information, spread]
        return found if self.novelty is None else [*found, *self.novelty(entropy, log_mean, log_precision)]


class Ranked(nn.Module):
    """Novelty and its p-value without a search that runtimes do not have."""

    weights: Tensor

    def __init__(self, novelty: Novelty) -> None:
        super().__init__()
        self.parts = Rarity(torch.stack([novelty.entropy, novelty.bluntness]))
        self.scores = Rarity(novelty.scores.unsqueeze(0))
        share, self.tilt = novelty.blend.tolist()
        # Less the logarithm of the larger share, so that the measure which has it is read as it is.
        weights = torch.tensor([1 - share, share], dtype=torch.float64) / max(share, 1 - share)
        self.register_buffer("weights", weights.log(), persistent=False)
        self.smallest = 1 / (len(novelty.scores) + 1)

    def forward(
        self, entropy: Float64[Tensor, " B"], log_mean: Float64[Tensor, "B K"], log_precision: Float64[Tensor, " B"]
    ) -> tuple[Tensor, Tensor]:
        """N and its p-value."""
        bluntness = -log_precision
        if self.tilt:
            bluntness = bluntness - self.tilt * log_mean.mean(-1)
        louder = (self.parts(torch.stack([entropy, bluntness], -1)) + self.weights).amax(-1, keepdim=True)
        p_value = torch.exp(-self.scores(louder)).clamp(min=self.smallest)
        return louder.squeeze(-1), p_value.squeeze(-1)


class Rarity(nn.Module):
    """:func:`opu.novelty.rarity` of several scores at once, each against fixed ordinary values of its own.

    A value is looked up in two steps: among the last values of blocks, and within its block. To compare it with all of
    two thousand would cost more than the student itself. Between ordinary values the fraction that is larger falls in
    straight lines, whose starts and slopes are laid down in a table.
    """

    lowest: Tensor
    highest: Tensor
    blocks: Tensor
    last: Tensor
    lines: Tensor
    offsets: Tensor
    upper: Tensor
    lower: Tensor

    def __init__(self, ordinary: Float64[Tensor, "m n"]) -> None:
        super().__init__()
        (m, n), self.width = ordinary.shape, max(1, round(ordinary.shape[1] ** 0.5))
        padded = torch.cat([ordinary, ordinary.new_full((m, -n % self.width), torch.inf)], -1)
        blocks = padded.view(m, -1, self.width)
        place = torch.arange(n + 1).clamp(1, n - 1)
        below, above = ordinary[:, place - 1], ordinary[:, place]
        start = ((n - place + 1).double() / (n + 1)).expand_as(below).clone()
        slope = torch.where(above > below, -1 / ((n + 1) * (above - below).clamp(min=1e-300)), 0.0)
        start[:, 0], slope[:, 0] = n / (n + 1), 0.0  # below all of them
        start[:, n], slope[:, n] = 1 / (n + 1), 0.0  # above
        scales = torch.stack([tail_scales(each) for each in ordinary])
        constants = {
            "lowest": ordinary[:, 0],
            "highest": ordinary[:, -1],
            "blocks": blocks.reshape(-1, self.width),
            "last": blocks[:, :, -1],
            "lines": torch.stack([below, start, slope], -1).reshape(-1, 3),
            "offsets": torch.arange(m),
            "upper": 1 / scales[:, 0],
            "lower": 1 / scales[:, 1],
        }
        for name, values in constants.items():
            self.register_buffer(name, values.clone(), persistent=False)
        self.n = n

    def forward(self, values: Float64[Tensor, "B m"]) -> Float64[Tensor, "B m"]:
        """Minus the log of the fraction of ordinary values that are at least as large."""
        inside = torch.minimum(torch.maximum(values, self.lowest), self.highest)
        below, start, slope = nn.functional.embedding(
            self.place(values) + self.offsets * (self.n + 1), self.lines
        ).unbind(-1)
        beyond = values - inside
        short = 1 - torch.exp(beyond.clamp(max=0) * self.lower)  # 0 but for values below all ordinary ones
        fraction = start + slope * (inside - below) + short / (self.n + 1)
        return beyond.clamp(min=0) * self.upper - torch.log(fraction)

    def place(self, values: Float64[Tensor, "B m"]) -> Int64[Tensor, "B m"]:
        """How many ordinary values are smaller."""
        column = values.unsqueeze(-1)
        block = (self.last < column).sum(-1).clamp(max=self.last.shape[1] - 1)
        rows = nn.functional.embedding(block + self.offsets * self.last.shape[1], self.blocks)
        place: Tensor = block * self.width + (rows < column).sum(-1)
        return place
