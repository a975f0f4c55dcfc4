"""The Laplace bridge: a Dirichlet in closed form from Gaussian logits, without sampling or training."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from opu.distributions.dirichlet import Dirichlet


def bridge(mean: Float[Tensor, "B K"], covariance: Float[Tensor, "B K K"], *, normed: bool) -> Dirichlet:
    r"""The Dirichlet whose own Laplace approximation in logit space has these moments (Hobbhahn et al., 2022).

    .. math:: \alpha_k = \frac{1}{\sigma^2_k}\Bigl(1 - \frac2K + \frac{e^{\mu_k}}{K^2} \sum_l e^{-\mu_l}\Bigr)

    It holds for logits that sum to 0, so the Gaussian is first conditioned on that.

    Args:
        mean: Mean of the logits.
        covariance: Covariance of the logits.
        normed: Scale mean and variances together, so that the variances are the same on average for every input, as the
            authors advise for the mean; the precision then says nothing.
    """
    mean, covariance = mean.double(), covariance.double()
    classes = mean.shape[-1]
    to_sum = covariance.sum(-1)
    total = to_sum.sum(-1, keepdim=True)
    mean = mean - to_sum * mean.sum(-1, keepdim=True) / total
    variance = covariance.diagonal(dim1=-2, dim2=-1) - to_sum.square() / total
    if normed:
        scale = variance.mean(-1, keepdim=True) / (classes / 2) ** 0.5
        mean, variance = mean / scale.sqrt(), variance / scale
    rest = mean + (-mean).logsumexp(-1, keepdim=True) - 2 * math.log(classes)
    first = math.log(1 - 2 / classes) if classes > 2 else -math.inf
    log_numerator = torch.logaddexp(rest, torch.full_like(rest, first))
    return Dirichlet.from_log_concentration(log_numerator - variance.log())
