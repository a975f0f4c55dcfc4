r"""Everything that a student can say about an input, as one network of plain operators that leaves Python."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from opu.export.gamma import Gammas
from opu.novelty import Novelty, mean_excess
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
        self.student, self.prepare, self.gammas = student, prepare, Gammas()
        self.names = PLAIN if student.novelty is None else CALIBRATED
        self.novelty = None if student.novelty is None else Ranked(student.novelty)
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """One tensor for each of ``names``."""
        logits, log_precision = self.parameters_of(x if self.prepare is None else self.prepare(x))
        return tuple(each.to(logits.dtype) for each in self.measures(logits.double(), log_precision.double()))

    def parameters_of(self, x: Tensor) -> tuple[Float[Tensor, "B K"], Float[Tensor, " B"]]:
        """Logits of the mean, and the log-precision."""
        student = self.student
        features = x if student.trunk is None else student.trunk(x).flatten(1)
        return student.mean_net(features), student.link(student.precision_net(features).squeeze(-1))

    def measures(self, logits: Float64[Tensor, "B K"], log_precision: Float64[Tensor, " B"]) -> list[Tensor]:
        """What the names say, in float64."""
        log_mean = logits.log_softmax(-1)
        mean = log_mean.exp()
        # The classes, and behind them all of them together, so that each function is asked once.
        log_alpha = nn.functional.pad(log_mean, (0, 1)) + log_precision.unsqueeze(-1)
        alpha = log_alpha.exp()
        excess, log_gamma = self.gammas(alpha)
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

    def __init__(self, novelty: Novelty) -> None:
        super().__init__()
        self.entropy, self.bluntness = Rarity(novelty.entropy), Rarity(novelty.bluntness)
        self.scores = Rarity(novelty.scores)
        share, self.tilt = novelty.blend.tolist()
        larger = max(share, 1 - share)
        self.of_entropy, self.of_bluntness = _log((1 - share) / larger), _log(share / larger)
        self.smallest = 1 / (len(novelty.scores) + 1)

    def forward(
        self, entropy: Float64[Tensor, " B"], log_mean: Float64[Tensor, "B K"], log_precision: Float64[Tensor, " B"]
    ) -> tuple[Tensor, Tensor]:
        """N and its p-value."""
        bluntness = -log_precision - self.tilt * log_mean.mean(-1)
        score = torch.maximum(self.entropy(entropy) + self.of_entropy, self.bluntness(bluntness) + self.of_bluntness)
        return score, torch.exp(-self.scores(score)).clamp(min=self.smallest)


class Rarity(nn.Module):
    """:func:`opu.novelty.rarity` against fixed ordinary values.

    A value is looked up in two steps: among the last values of blocks, and within its block. To compare it with all of
    two thousand would cost more than the student itself.
    """

    ordinary: Tensor
    blocks: Tensor

    def __init__(self, ordinary: Float64[Tensor, " n"]) -> None:
        super().__init__()
        n = len(ordinary)
        width = max(1, round(n**0.5))
        padded = torch.cat([ordinary, ordinary.new_full((-n % width,), torch.inf)])
        self.register_buffer("ordinary", ordinary.clone(), persistent=False)
        self.register_buffer("blocks", padded.view(-1, width).clone(), persistent=False)
        self.upper, self.lower = float(mean_excess(ordinary)), float(mean_excess(-ordinary.flip(0)))

    def forward(self, values: Float64[Tensor, " B"]) -> Float64[Tensor, " B"]:
        """Minus the log of the fraction of ordinary values that are at least as large."""
        n, ordinary = len(self.ordinary), self.ordinary
        place = self.place(values).clamp(1, n - 1)
        below, above = ordinary[place - 1], ordinary[place]
        share = ((values - below) / (above - below).clamp(min=1e-300)).clamp(0, 1)
        tail = (n - (place - 1).double() - share) / (n + 1)
        beyond = ((values - ordinary[-1]) / self.upper).clamp(min=0)
        short = ((ordinary[0] - values) / self.lower).clamp(min=0)
        return torch.where(values < ordinary[0], -torch.log(1 - torch.exp(-short) / (n + 1)), beyond - torch.log(tail))

    def place(self, values: Float64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        """How many ordinary values are smaller."""
        column = values.unsqueeze(-1)
        block = (self.blocks[:, -1] < column).sum(-1).clamp(max=len(self.blocks) - 1)
        return block * self.blocks.shape[1] + (self.blocks[block] < column).sum(-1)


def _log(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).log())
