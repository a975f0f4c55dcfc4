r"""Distances in log-ratio space: how a student sees the log-odds of the class that the teacher predicts.

.. math:: \ell = \ln\pi_k - \ln(1 - \pi_k), \qquad k = \mathrm{argmax}_k\, E[\pi_k]

MMD between probabilities hardly sees a corner: 0.999 and 0.9999 are next to each other. In log-odds they are 2.3 apart.
Distances of all log-ratios would be ruled by classes that are next to impossible, whose logarithms vary most and matter
least. Here such classes count through their sum alone. The median over inputs keeps the few out of it where the teacher's
particles agree to all digits.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from opu.distributions import SimplexDistribution
from opu.distributions.dirichlet import Dirichlet
from opu.distributions.simplex import log_shares

NUM_POINTS = 512
_LEAST_DEVIATION = 1e-6  # of particles that agree
_ROWS_AT_ONCE = 200


@dataclass(frozen=True)
class LogOdds:
    """Teacher and student compared in the log-odds of the class that the teacher predicts, one value per input.

    Attributes:
        shift: Absolute difference of their means, in the teacher's standard deviations.
        spread: Standard deviation of the student's, divided by the teacher's.
    """

    shift: Float[Tensor, " B"]
    spread: Float[Tensor, " B"]

    def medians(self) -> dict[str, float]:
        """The median of each over the inputs."""
        return {"shift": float(self.shift.median()), "spread": float(self.spread.median())}


@torch.no_grad()
def log_odds(q: SimplexDistribution, log_particles: Float[Tensor, "S B K"]) -> LogOdds:
    """Compare predictions with particles in the log-odds of the teacher's predicted class."""
    shifts, spreads = [], []
    for start in range(0, len(q), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        particles = log_particles[:, rows]
        predicted = particles.double().logsumexp(0).argmax(-1)
        middle, deviation = _moments(particles, predicted)
        our_middle, our_deviation = _moments_of(q[rows], predicted)
        shifts.append((our_middle - middle).abs() / deviation)
        spreads.append(our_deviation / deviation)
    return LogOdds(torch.cat(shifts), torch.cat(spreads))


def _moments_of(q: SimplexDistribution, classes: Int64[Tensor, " B"]) -> tuple[Tensor, Tensor]:
    if not isinstance(q, Dirichlet):
        return _moments(q.to(torch.float64).log_points(NUM_POINTS), classes)
    marginals, column = q.to(torch.float64).marginals(), classes.unsqueeze(-1)
    a, b = (shape.gather(-1, column).squeeze(-1) for shape in (marginals.a, marginals.b))
    variance = torch.polygamma(1, a) + torch.polygamma(1, b)
    return torch.digamma(a) - torch.digamma(b), variance.sqrt()


def _moments(log_points: Float[Tensor, "S B K"], classes: Int64[Tensor, " B"]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the log-odds of one class per input."""
    log_share, log_others = log_shares(log_points)
    column = classes.expand(len(log_points), -1).unsqueeze(-1)
    odds = (log_share - log_others).gather(-1, column).squeeze(-1)
    return odds.mean(0), odds.std(0).clamp(min=_LEAST_DEVIATION)
