"""The squared MMD between particles and a Dirichlet, without samples from the student."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from opu.batches import Batch
from opu.distributions import SimplexDistribution
from opu.distributions.dirichlet import Dirichlet
from opu.distributions.kernels import Exponential, Kernel
from opu.distributions.logistic_normal import LogisticNormal
from opu.distributions.moments import kernel_between, kernel_to_points, kernel_within
from opu.objectives.base import BaseObjective


class ExactMMD(BaseObjective):
    r"""Squared MMD to a Dirichlet, exact in the student and unbiased in the teacher's particles.

    .. math:: \frac{1}{S(S-1)}\sum_{m \ne n} k(\pi_m, \pi_n) - \frac{2}{S}\sum_m E_q k(\pi_m, \rho) + E_q k(\rho, \rho')

    The paper draws samples from the student and compares all pairs. For a kernel that is a power series in the inner
    product, both expectations under the Dirichlet are known (:mod:`opu.distributions.moments`), so that the value and its
    gradient have no sampling noise from the student. An estimate may be slightly negative if the distributions are close.

    Rounding leaves errors of about 1e-16 (float64 particles) or 1e-7 (float32) times the kernel's size in the value. The
    gradient in the log-precision is computed in float64 from particles of either dtype; its error is 1e-16 times the
    kernel's size, and the gradient itself falls as :math:`1/\alpha_0`, so that it is lost above log-precision 30.

    Args:
        kernel: A kernel that is a power series in the inner product; by default the exponential one.
    """

    def __init__(self, kernel: Kernel | None = None) -> None:
        self.kernel = kernel or Exponential()
        self._coefficients = _without_constant(self.kernel.power_series())

    def __call__(self, x: Batch, log_particles: Float[Tensor, "S B K"], q: SimplexDistribution) -> Float[Tensor, " B"]:
        """One value per input; differentiable in the Dirichlet."""
        if isinstance(q, LogisticNormal):
            return squared_mmd_to_points(self.kernel, log_particles.detach().exp(), q.log_points().exp())
        particles = log_particles.detach().exp()
        to_particles = kernel_to_points(q, particles, self._coefficients)
        within = kernel_within(q, self._coefficients)
        value = _among_particles(self.kernel, particles).double() - 2 * to_particles + within
        return value.to(q.mean.dtype)

    def __repr__(self) -> str:
        return f"ExactMMD({self.kernel})"


def squared_mmd_to_points(
    kernel: Kernel, particles: Float[Tensor, "S B K"], points: Float[Tensor, "M B K"]
) -> Float[Tensor, " B"]:
    """Squared MMD between particles and the fixed points of a logistic-normal; differentiable in the points.

    Pairs of a point with itself count: the points are a rule for integrals, not a sample.
    """
    left, right = particles.permute(1, 0, 2).to(points), points.permute(1, 0, 2)
    constant = kernel.power_series()[0]
    within, between = kernel.gram(right, right) - constant, kernel.gram(left, right) - constant
    return _among_particles(kernel, particles) + within.mean((1, 2)) - 2 * between.mean((1, 2))


def squared_mmd_between(p: Dirichlet, q: Dirichlet, kernel: Kernel) -> Float[Tensor, " B"]:
    """Squared MMD between two batches of Dirichlets, without samples."""
    c = _without_constant(kernel.power_series())
    # The same formula for all three terms, so that rounding errors cancel if the Dirichlets are equal.
    value = kernel_between(p, p, c) + kernel_between(q, q, c) - 2 * kernel_between(p, q, c)
    return value.clamp(min=0).to(p.mean.dtype)


@torch.no_grad()
def teacher_term(kernel: Kernel, particles: Float[Tensor, "S B K"], block: int = 64) -> Float[Tensor, " B"]:
    """Mean kernel between different particles of each input.

    It does not depend on the student, but with it the MMD of equal distributions is 0. Polynomials up to degree 4 use all
    pairs of particles, by explicit features if there are few classes. Other kernels use the pairs within blocks of
    particles, which is unbiased too and costs less.
    """
    return kernel.power_series()[0] + _among_particles(kernel, particles, block)


@torch.no_grad()
def _among_particles(kernel: Kernel, particles: Float[Tensor, "S B K"], block: int = 64) -> Float[Tensor, " B"]:
    """The teacher's term without the kernel's constant, which cancels in an MMD but may be 1e6 times all the rest."""
    assert block >= 2, "a block of one particle has no pairs"
    constant, coefficients = kernel.power_series()[0], _without_constant(kernel.power_series())
    count, num_classes = len(particles), particles.shape[2]
    cloud = particles.permute(1, 0, 2)
    blocks = cloud.split(block, dim=1)
    if count > 1 and len(coefficients) > 5:
        grams = [kernel.gram(part, part) - constant for part in blocks]
        off_diagonal = [gram.sum((1, 2)) - gram.diagonal(dim1=1, dim2=2).sum(-1) for gram in grams]
        return torch.stack(off_diagonal).sum(0) / sum(gram.shape[1] * (gram.shape[1] - 1) for gram in grams)
    on_diagonal = _series(particles.square().sum(-1), coefficients).sum(0)
    if count == 1:  # a single particle has no pairs; any constant will do
        return on_diagonal
    if (num_classes * (num_classes + 1) // 2) ** 2 <= count * num_classes:
        total = _pair_sum_by_features(cloud.mT.contiguous(), coefficients)
    else:
        total = torch.stack([_series(part @ cloud.mT, coefficients).sum((1, 2)) for part in blocks]).sum(0)
    return (total - on_diagonal) / (count * (count - 1))


def _without_constant(coefficients: Sequence[float]) -> tuple[float, ...]:
    return (0.0, *coefficients[1:])


def _series(inner: Tensor, coefficients: Sequence[float]) -> Tensor:
    value = torch.full_like(inner, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = value * inner + c
    return value


def _pair_sum_by_features(columns: Float[Tensor, "B K S"], coefficients: Sequence[float]) -> Float[Tensor, " B"]:
    # sum_{s,t} <x_s, x_t>^j is the squared norm of the summed j-th tensor power. Up to the fourth power it follows from
    # the K (K + 1) / 2 products of two classes of each particle.
    num_classes = columns.shape[1]
    pairs = torch.cat([columns[:, i:] * columns[:, i : i + 1] for i in range(num_classes)], 1)
    # A product of two different classes occurs twice in the tensor.
    rows, others = torch.triu_indices(num_classes, num_classes, device=columns.device)
    twice = 1 + (rows != others).to(columns)
    first = columns.sum(-1)
    norms = [torch.full_like(first[:, 0], float(columns.shape[-1] ** 2)), first.square().sum(-1)]
    if len(coefficients) > 2:
        norms.append(pairs.sum(-1).square() @ twice)
    if len(coefficients) > 3:
        norms.append((columns @ pairs.mT).square().sum(1) @ twice)
    if len(coefficients) > 4:
        norms.append((pairs @ pairs.mT).square() @ twice @ twice)
    return torch.stack([c * norm for c, norm in zip(coefficients, norms, strict=True)]).sum(0)
