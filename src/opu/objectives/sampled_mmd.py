"""The squared MMD as the paper computes it: from samples of teacher and student, for any kernel."""

import torch
from jaxtyping import Float
from torch import Tensor

from opu.batches import Batch
from opu.distributions import SimplexDistribution
from opu.distributions.kernels import RBF, Kernel, Polynomial
from opu.objectives.base import BaseObjective

_FOR_BANDWIDTH = 32  # points of either cloud, whose distances set the scale


class SampledMMD(BaseObjective):
    """Unbiased squared MMD from reparameterised samples of the student.

    Bandwidths that follow the data are those of both clouds together (:func:`squared_mmd`), so that value and gradient are
    0 in expectation where teacher and student agree, whatever the number of particles.

    Args:
        kernel: Any kernel; by default the paper's, an RBF plus polynomials of degree 3 and 4.
        num_samples: Number of draws from the student per input; by default the number of particles.
    """

    def __init__(self, kernel: Kernel | None = None, num_samples: int | None = None) -> None:
        self.kernel = kernel or RBF() + 0.5 * Polynomial(3) + 0.5 * Polynomial(4)
        if num_samples is not None and num_samples < 2:
            raise ValueError(f"the unbiased MMD needs num_samples of at least 2; got {num_samples}.")
        self.num_samples = num_samples

    def __call__(self, x: Batch, log_particles: Float[Tensor, "S B K"], q: SimplexDistribution) -> Float[Tensor, " B"]:
        """One value per input; differentiable in the Dirichlet through its samples."""
        samples = q.rsample(self.num_samples or max(len(log_particles), 2))
        return squared_mmd(log_particles.detach().exp().to(samples), samples, self.kernel)

    def __repr__(self) -> str:
        return f"SampledMMD({self.kernel})"


def squared_mmd(
    particles: Float[Tensor, "S B K"], samples: Float[Tensor, "T B K"], kernel: Kernel
) -> Float[Tensor, " B"]:
    r"""Unbiased squared MMD between two clouds on the simplex, per input.

    .. math::
        \frac{\sum_{m \ne n} k(\pi_m, \pi_n)}{S(S-1)} + \frac{\sum_{m \ne n} k(\rho_m, \rho_n)}{T(T-1)}
        - \frac{2}{S T} \sum_{m, n} k(\pi_m, \rho_n)

    The paper's algorithm divides the cross term by ``S(S-1)`` too, and writes ``k(pi_m, pi_m)`` where ``k(pi_m, pi_n)``
    is meant. We divide by the number of pairs, so that two clouds from the same distribution score 0 in expectation.

    Bandwidths that follow the data (:class:`~opu.distributions.kernels.RBF`) come from up to 32 points of either cloud.
    Bandwidths of the particles alone would fit the particles better than the samples: with 4 particles, two clouds from
    the same distribution would score 0.005 to 0.02 on average, and the gradient would push the precision up. As a
    symmetric function of both clouds they leave no bias.

    Args:
        particles: The teacher's particles as probabilities.
        samples: Reparameterised draws from the student as probabilities.
        kernel: Any kernel on the simplex.

    Returns:
        One value per input, differentiable in ``samples``; an estimate may be slightly negative.
    """
    left, right = particles.permute(1, 0, 2), samples.permute(1, 0, 2)
    kernel = kernel.settled(torch.cat([left[:, :_FOR_BANDWIDTH], right[:, :_FOR_BANDWIDTH]], 1))
    between = kernel.gram(left, right).mean((1, 2))
    return _mean_off_diagonal(kernel, left) + _mean_off_diagonal(kernel, right) - 2 * between


def _mean_off_diagonal(kernel: Kernel, cloud: Float[Tensor, "B S K"]) -> Float[Tensor, " B"]:
    count = cloud.shape[1]
    gram = kernel.gram(cloud, cloud)
    if count == 1:  # a single particle has no pairs; any constant will do
        return gram[:, 0, 0]
    diagonal = gram.diagonal(dim1=1, dim2=2).sum(-1)
    return (gram.sum((1, 2)) - diagonal) / (count * (count - 1))
