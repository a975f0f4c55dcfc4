r"""How far a student is from its teacher, and why: the sampling, the family, or the amortisation.

All three are read from exact distances (MMD, not squared) to the cloud :math:`\hat p` of a teacher's particles at an input:

.. math::
    \underbrace{\mathrm{MMD}(q, \hat p)}_{\text{total}} \ge
    \underbrace{\mathrm{MMD}(q^*, \hat p)}_{\text{of the best Dirichlet}} \ge 0, \qquad
    0 \le \mathrm{MMD}(q, \hat p) - \mathrm{MMD}(q^*, \hat p) \le \mathrm{MMD}(q, q^*).

The second line is the paper's bound on what amortisation costs. A cloud of finitely many particles is itself some way from
the law that it was drawn from; two halves of it are twice as far from one another as the whole is from that law. The noise
below is what halves say on average over all ways to halve a cloud, which needs no halving.
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

GAIN = 1e-7  # in squared MMD: a step that gains less ends the fit, within a fiftieth of the noise (measured on 500 particles)
MOST_STEPS = 60
ROWS_AT_ONCE = 500


@dataclass(frozen=True)
class Gaps:
    """Distances in MMD, one for each input.

    Attributes:
        total: From the student's answer to the teacher's particles.
        best: From the best Dirichlet to them.
        noise: From the particles to the law they were drawn from, as halves of them tell.
        bound: From the student's answer to the best Dirichlet, which the amortisation gap cannot exceed.
    """

    total: Float[Tensor, " B"]
    best: Float[Tensor, " B"]
    noise: Float[Tensor, " B"]
    bound: Float[Tensor, " B"]

    @property
    def amortisation(self) -> Float[Tensor, " B"]:
        """What the student loses by answering all inputs with one network."""
        return self.total - self.best

    @property
    def family(self) -> Float[Tensor, " B"]:
        """What no Dirichlet can follow: the best one's distance, less the particles' own noise."""
        return (self.best.square() - self.noise.square()).clamp(min=0).sqrt()

    def squared_parts(self) -> dict[str, float]:
        """What the mean squared distance is made of.

        The best Dirichlet follows the accidents of its cloud and may be nearer than the noise; a student cannot know these,
        so that what it is charged with begins at the noise.
        """
        total, best, noise = (float(d.square().mean()) for d in (self.total, self.best, self.noise))
        noise = min(noise, total)
        reached = max(best, noise)
        return {"noise": noise, "family": reached - noise, "amortisation": total - reached}


@torch.no_grad()
def gaps(q: Dirichlet, log_particles: Float[Tensor, "S B K"], kernel: Kernel | None = None) -> Gaps:
    """The distances between answers and particles, input by input.

    Args:
        q: The student's answers.
        log_particles: The teacher's, at least four for each input.
        kernel: One that is a power series in the inner product; exponential unless given.
    """
    if len(log_particles) < 4:
        raise ValueError(f"two halves of a cloud need at least four particles; got {len(log_particles)}. Draw more.")
    check_particles(log_particles, num_rows=len(q), num_classes=q.num_classes)
    kernel = kernel if kernel is not None else Exponential()
    parts = []
    for start in range(0, len(q), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        parts.append(_gaps(q[rows], log_particles[:, rows], kernel))
    return Gaps(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Gaps)))


def _gaps(q: Dirichlet, log_particles: Float[Tensor, "S B K"], kernel: Kernel) -> Gaps:
    points = log_particles.exp()
    within, noise = _within(kernel, points.permute(1, 0, 2).contiguous())
    ours = _squared(q, points, within, kernel)
    start = moment_match(log_particles)  # nearer than the likelihood's optimum, which follows rare classes
    best = in_double(minimum_mmd(log_particles, kernel, MOST_STEPS, start=start, tolerance=GAIN))
    theirs = _squared(best, points, within, kernel)
    # Where the student is nearer than what the fit found, it is the best that is known.
    rows = (ours < theirs).nonzero().squeeze(-1)
    best = _with_rows(best, rows, in_double(q[rows]))
    bound = squared_mmd_between(in_double(q), best, kernel)
    squares = ours, torch.minimum(ours, theirs), noise, bound
    return Gaps(*(square.clamp(min=0).sqrt() for square in squares))


def _with_rows(q: Dirichlet, rows: Tensor, others: Dirichlet) -> Dirichlet:
    log_mean, log_precision = q.log_mean.clone(), q.log_precision.clone()
    log_mean[rows], log_precision[rows] = others.log_mean, others.log_precision
    return Dirichlet.from_logits(log_mean, log_precision)


def _squared(q: Dirichlet, points: Tensor, within: Tensor, kernel: Kernel) -> Float[Tensor, " B"]:
    series = kernel.power_series()
    return within - 2 * kernel_to_points(q, points, series) + kernel_within(q, series)


def _within(kernel: Kernel, cloud: Float[Tensor, "B S K"]) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Mean kernel between all pairs of a cloud, and its squared distance from its law.

    Random halves of m and n particles are (1/m + 1/n) v apart on average, v being how much more alike a particle is to itself
    than to another; the whole cloud is v / (m + n) from its law.
    """
    size, within, noise = cloud.shape[1], [], []
    few = max(1, 2**19 // cloud.shape[1] ** 2)  # so that the pairs stay in the cache
    for part in cloud.split(few):
        gram = kernel.gram(part, part)
        pairs = gram.sum((1, 2), dtype=torch.float64)
        alone = gram.diagonal(dim1=1, dim2=2).sum(-1, dtype=torch.float64)
        within.append(pairs / size**2)
        noise.append((alone / size - (pairs - alone) / (size * (size - 1))) / size)
    return torch.cat(within), torch.cat(noise)


def in_double(q: Dirichlet) -> Dirichlet:
    """The same answers with twice the digits."""
    return Dirichlet.from_logits(q.log_mean.double(), q.log_precision.double())
