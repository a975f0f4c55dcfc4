r"""The distance of a student from its teacher, split into Monte-Carlo noise, family gap and amortisation gap.

All of them are exact distances (MMD, not squared) between the empirical distribution :math:`\hat p` of the teacher's
particles at an input, the student's prediction :math:`q`, and the nearest Dirichlet :math:`q^*`:

.. math::
    \mathrm{MMD}(q, \hat p) \ge \mathrm{MMD}(q^*, \hat p) \ge 0, \qquad
    0 \le \mathrm{MMD}(q, \hat p) - \mathrm{MMD}(q^*, \hat p) \le \mathrm{MMD}(q, q^*).

The difference is the amortisation gap, and the last inequality is the paper's bound on it. The noise is the distance of
:math:`\hat p`, which has finitely many particles, from the teacher's own distribution.
"""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from opu.checks import check_particles
from opu.distributions.dirichlet import Dirichlet
from opu.distributions.kernels import Exponential, Kernel
from opu.distributions.moments import kernel_to_points, kernel_within
from opu.distributions.pointwise import minimum_mmd, moment_match
from opu.objectives import squared_mmd_between

TOLERANCE = 1e-7  # in squared MMD: with 500 particles, this finds the nearest Dirichlet within 1/50 of the noise
MAX_STEPS = 60
ROWS_AT_ONCE = 500


@dataclass(frozen=True)
class Gaps:
    """Distances in MMD, one per input.

    Attributes:
        total: Distance of the student's prediction from the teacher's particles.
        best: Distance of the nearest Dirichlet from the particles.
        noise: Distance of the particles from the distribution that they were drawn from, as an estimate.
        bound: Distance of the student's prediction from the nearest Dirichlet: an upper bound of the amortisation gap.
    """

    total: Float[Tensor, " B"]
    best: Float[Tensor, " B"]
    noise: Float[Tensor, " B"]
    bound: Float[Tensor, " B"]

    @property
    def amortisation(self) -> Float[Tensor, " B"]:
        """Amortisation gap: how much further the student is from the particles than the nearest Dirichlet."""
        return self.total - self.best

    @property
    def family(self) -> Float[Tensor, " B"]:
        """Family gap: the distance of the nearest Dirichlet from the particles, without their noise."""
        return (self.best.square() - self.noise.square()).clamp(min=0).sqrt()

    def squared_parts(self) -> dict[str, float]:
        """The mean squared distance as a sum of noise, family and amortisation.

        The nearest Dirichlet is fitted to the particles, and may be closer to them than the noise. A student cannot
        follow that noise, so its amortisation gap is measured from the noise on.
        """
        total, best, noise = (float(d.square().mean()) for d in (self.total, self.best, self.noise))
        noise = min(noise, total)
        reached = max(best, noise)
        return {"noise": noise, "family": reached - noise, "amortisation": total - reached}


@torch.no_grad()
def gaps(q: Dirichlet, log_particles: Float[Tensor, "S B K"], kernel: Kernel | None = None) -> Gaps:
    """The distances between predictions and particles, for each input.

    Args:
        q: The student's predictions.
        log_particles: The teacher's particles, at least four per input.
        kernel: A kernel that is a power series in the inner product; by default the exponential one.
    """
    if len(log_particles) < 4:
        raise ValueError(f"fidelity needs at least four particles per input; got {len(log_particles)}. Draw more.")
    check_particles(log_particles, num_rows=len(q), num_classes=q.num_classes)
    kernel, parts = kernel or Exponential(), []
    for start in range(0, len(q), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        parts.append(_gaps(q[rows], log_particles[:, rows], kernel))
    return Gaps(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Gaps)))


def _gaps(q: Dirichlet, log_particles: Float[Tensor, "S B K"], kernel: Kernel) -> Gaps:
    points, series = log_particles.exp(), kernel.power_series()
    within, noise = _within(kernel, points.permute(1, 0, 2).contiguous())

    def to_particles(each: Dirichlet) -> Tensor:
        return within - 2 * kernel_to_points(each, points, series) + kernel_within(each, series)

    # From matched moments: the most likely Dirichlet is further off, since it depends strongly on rare classes.
    start = moment_match(log_particles)
    fitted = minimum_mmd(log_particles, kernel, MAX_STEPS, start=start, tolerance=TOLERANCE).to(torch.float64)
    ours, theirs = to_particles(q), to_particles(fitted)
    # If the student is closer than the fit, it is the nearest Dirichlet known.
    q, closer = q.to(torch.float64), ours < theirs
    nearest = Dirichlet.from_logits(
        torch.where(closer.unsqueeze(-1), q.log_mean, fitted.log_mean),
        torch.where(closer, q.log_precision, fitted.log_precision),
    )
    squares = ours, torch.minimum(ours, theirs), noise, squared_mmd_between(q, nearest, kernel)
    return Gaps(*(square.clamp(min=0).sqrt() for square in squares))


def _within(kernel: Kernel, cloud: Float[Tensor, "B S K"]) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Mean kernel between all pairs of particles, and the squared distance of the particles from their distribution.

    The latter is estimated by v / S, where v is the mean kernel of a particle with itself minus that with another one.
    """
    size, within, noise = cloud.shape[1], [], []
    few = max(1, 2**19 // size**2)  # inputs at a time, so that the pairs fit the cache
    for part in cloud.split(few):
        gram = kernel.gram(part, part)
        pairs = gram.sum((1, 2), dtype=torch.float64)
        alone = gram.diagonal(dim1=1, dim2=2).sum(-1, dtype=torch.float64)
        within.append(pairs / size**2)
        noise.append((alone / size - (pairs - alone) / (size * (size - 1))) / size)
    return torch.cat(within), torch.cat(noise)
