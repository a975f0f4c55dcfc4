"""Forward KL: maximum likelihood of the particles, amortised."""

from jaxtyping import Float
from torch import Tensor

from opu.dirichlet import Dirichlet
from opu.objectives.base import BaseObjective


class ForwardKL(BaseObjective):
    r"""Cross-entropy :math:`-E_{p_x} \ln q_x`: the forward KL without the teacher's entropy, which is constant.

    The particles enter through the mean of their log-probabilities alone, so the cost does not grow with their number
    beyond one average, and even a few particles a step give an unbiased gradient.
    """

    def __call__(self, x: Tensor, log_particles: Float[Tensor, "S B K"], q: Dirichlet) -> Float[Tensor, " B"]:
        """One value per input; it may be negative, as densities may exceed 1."""
        return -q.log_prob(log_particles.double().mean(0))
