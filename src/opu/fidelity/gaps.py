r"""The distance of a student from its teacher, split into Monte-Carlo noise, family gap and amortisation gap.

All of them are exact distances (MMD, not squared) between the empirical distribution :math:`\hat p` of the teacher's
particles at an input, the student's prediction :math:`q`, and the nearest member :math:`q^*` of the student's family:

.. math::
    \mathrm{MMD}(q, \hat p) \ge \mathrm{MMD}(q^*, \hat p) \ge 0, \qquad
    0 \le \mathrm{MMD}(q, \hat p) - \mathrm{MMD}(q^*, \hat p) \le \mathrm{MMD}(q, q^*).

The difference is the amortisation gap, and the last inequality is the paper's bound on it. The noise is the distance of
:math:`\hat p`, which has finitely many particles, from the teacher's own distribution.

The nearest Dirichlet is found by minimising the MMD. For logistic-normals, it is the one with the moments of the particles'
log-ratios, or the student's own where that is closer; distances are those of its fixed points. So the family gap of
logistic-normals is an upper bound, and their amortisation gap a lower one.
"""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from opu.checks import check_particles
from opu.distributions import SimplexDistribution
from opu.distributions.dirichlet import Dirichlet
from opu.distributions.kernels import Exponential, Kernel
from opu.distributions.log_ratio_fit import fit_logistic_normal
from opu.distributions.logistic_normal import LogisticNormal
from opu.distributions.moments import kernel_to_points, kernel_within
from opu.distributions.pointwise import minimum_mmd, moment_match
from opu.objectives import squared_mmd_between

TOLERANCE = 1e-7  # in squared MMD: with 500 particles, this finds the nearest Dirichlet within 1/50 of the noise
MAX_STEPS = 60
ROWS_AT_ONCE = 500
# Points for each logistic-normal. Their squared distance from it is below a quarter of the noise of 500 particles; that of
# the 64 points by which students are trained would be up to four times the noise.
NUM_POINTS = 512
_NUMBERS_AT_ONCE = 2**22  # of these points


@dataclass(frozen=True)
class Gaps:
    """Distances in MMD, one per input.

    Attributes:
        total: Distance of the student's prediction from the teacher's particles.
        best: Distance of the nearest member of the student's family from the particles.
        noise: Distance of the particles from the distribution that they were drawn from, as an estimate.
        bound: Distance of the student's prediction from that nearest member: an upper bound of the amortisation gap.
    """

    total: Float[Tensor, " B"]
    best: Float[Tensor, " B"]
    noise: Float[Tensor, " B"]
    bound: Float[Tensor, " B"]

    @property
    def amortisation(self) -> Float[Tensor, " B"]:
        """Amortisation gap: how much further the student is from the particles than its family's nearest member."""
        return self.total - self.best

    @property
    def family(self) -> Float[Tensor, " B"]:
        """Family gap: the distance of the family's nearest member from the particles, without their noise."""
        return (self.best.square() - self.noise.square()).clamp(min=0).sqrt()

    def squared_parts(self) -> dict[str, float]:
        """The mean squared distance as a sum of noise, family and amortisation.

        The nearest member of the family is fitted to the particles, and may be closer to them than the noise. A student
        cannot follow that noise, so its amortisation gap is measured from the noise on.
        """
        total, best, noise = (float(d.square().mean()) for d in (self.total, self.best, self.noise))
        noise = min(noise, total)
        reached = max(best, noise)
        return {"noise": noise, "family": reached - noise, "amortisation": total - reached}


@torch.no_grad()
def gaps(q: SimplexDistribution, log_particles: Float[Tensor, "S B K"], kernel: Kernel | None = None) -> Gaps:
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
    few = ROWS_AT_ONCE if isinstance(q, Dirichlet) else max(1, _NUMBERS_AT_ONCE // (NUM_POINTS * q.num_classes))
    for start in range(0, len(q), few):
        rows = slice(start, start + few)
        parts.append(_gaps(q[rows], log_particles[:, rows], kernel))
    return Gaps(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Gaps)))


def _gaps(q: SimplexDistribution, log_particles: Float[Tensor, "S B K"], kernel: Kernel) -> Gaps:
    if isinstance(q, Dirichlet):
        squares = _among_dirichlets(q, log_particles, kernel)
    else:
        squares = _among_logistic_normals(q, log_particles, kernel)
    return Gaps(*(square.clamp(min=0).sqrt() for square in squares))


def _among_dirichlets(q: Dirichlet, log_particles: Float[Tensor, "S B K"], kernel: Kernel) -> tuple[Tensor, ...]:
    """The squares of all four distances."""
    points, series = log_particles.exp(), kernel.power_series()
    within, noise = _within(kernel, points.permute(1, 0, 2).contiguous())

    def to_particles(each: Dirichlet) -> Tensor:
        return within - 2 * kernel_to_points(each, points, series) + kernel_within(each, series)

    fitted = nearest_dirichlet(log_particles, kernel).to(torch.float64)
    ours, theirs = to_particles(q), to_particles(fitted)
    # If the student is closer than the fit, it is the nearest Dirichlet known.
    q, closer = q.to(torch.float64), ours < theirs
    nearest = Dirichlet.from_logits(
        torch.where(closer.unsqueeze(-1), q.log_mean, fitted.log_mean),
        torch.where(closer, q.log_precision, fitted.log_precision),
    )
    return ours, torch.minimum(ours, theirs), noise, squared_mmd_between(q, nearest, kernel)


def nearest_dirichlet(log_particles: Float[Tensor, "S B K"], kernel: Kernel | None = None) -> Dirichlet:
    """The Dirichlet nearest to each input's particles in MMD, as exactly as reports need it."""
    # From matched moments: the most likely Dirichlet is further off, since it depends strongly on rare classes.
    start = moment_match(log_particles)
    return minimum_mmd(log_particles, kernel, MAX_STEPS, start=start, tolerance=TOLERANCE)


def _among_logistic_normals(
    q: LogisticNormal, log_particles: Float[Tensor, "S B K"], kernel: Kernel
) -> tuple[Tensor, ...]:
    """The squares of all four distances, exact between the particles and the fixed points."""
    log_particles = log_particles.double()
    cloud = log_particles.exp().permute(1, 0, 2).contiguous()
    within, noise = _within(kernel, cloud)
    fitted = fit_logistic_normal(log_particles, q.rank)
    ours, theirs = (each.to(torch.float64).log_points(NUM_POINTS).exp().movedim(0, 1) for each in (q, fitted))
    own, other = _mean_kernel(kernel, ours, ours), _mean_kernel(kernel, theirs, theirs)
    total = within - 2 * _mean_kernel(kernel, cloud, ours) + own
    best = within - 2 * _mean_kernel(kernel, cloud, theirs) + other
    apart = own + other - 2 * _mean_kernel(kernel, ours, theirs)
    # If the student is closer than the fit, it is the nearest logistic-normal known.
    return total, torch.minimum(total, best), noise, torch.where(total < best, 0.0, apart)


@torch.no_grad()
def squared_distance(
    q: SimplexDistribution, log_particles: Float[Tensor, "S B K"], kernel: Kernel
) -> Float[Tensor, " B"]:
    """Squared MMD of predictions from the distribution that the particles were drawn from: an estimate without bias."""
    points, series = log_particles.double().exp(), kernel.power_series()
    cloud = points.permute(1, 0, 2).contiguous()
    within, noise = _within(kernel, cloud)
    if isinstance(q, Dirichlet):
        return within - noise - 2 * kernel_to_points(q, points, series) + kernel_within(q, series)
    ours = q.to(torch.float64).log_points(NUM_POINTS).exp().movedim(0, 1)
    return within - noise - 2 * _mean_kernel(kernel, cloud, ours) + _mean_kernel(kernel, ours, ours)


def _mean_kernel(kernel: Kernel, left: Float[Tensor, "B S K"], right: Float[Tensor, "B T K"]) -> Float[Tensor, " B"]:
    """Mean kernel between all pairs of two clouds."""
    few = max(1, 2**19 // (left.shape[1] * right.shape[1]))  # inputs at a time, so that the pairs fit the cache
    pairs = zip(left.split(few), right.split(few), strict=True)
    return torch.cat([kernel.gram(*pair).mean((1, 2)) for pair in pairs])


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
