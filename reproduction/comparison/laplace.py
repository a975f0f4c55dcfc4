"""Laplace's approximation in the last layer, by laplace-torch (the extra ``adapters``), and the bridge to a Dirichlet."""

import math
import warnings
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from opu.distributions.dirichlet import Dirichlet
from reproduction.paper.models import Models

NUM_SAMPLES = 100


class LastLayer:
    """Gaussian logits of a network whose last layer has a posterior; as a teacher, samples of them."""

    def __init__(self, posterior: Any, num_parameters: int) -> None:
        self.posterior, self.num_parameters = posterior, num_parameters

    def logits(self, x: Tensor) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K K"]]:
        """Mean and covariance of the logits."""
        mean, covariance = self.posterior._glm_predictive_distribution(x)
        return mean.detach().double(), covariance.detach().double()

    def __call__(self, x: Tensor, num_particles: int) -> Float[Tensor, "S B K"]:
        """Log-probabilities of logits that are drawn jointly for each input."""
        mean, covariance = self.logits(x)
        jitter = 1e-9 * torch.eye(mean.shape[-1], dtype=torch.float64, device=mean.device)
        root = torch.linalg.cholesky(covariance + jitter)
        noise = torch.randn(num_particles, *mean.shape, dtype=torch.float64, device=mean.device)
        logits: Tensor = mean + torch.einsum("bij,sbj->sbi", root, noise)
        return logits.log_softmax(-1).float()


def required() -> Any:
    """The package's own entry, or one sentence that says how to get it."""
    try:
        from laplace import Laplace
    except ImportError as error:
        raise ImportError('two rivals need laplace-torch; install it with: pip install "opu[adapters]".') from error
    return Laplace


@lru_cache(maxsize=1)
def fit(models: Models) -> LastLayer:
    """A posterior for the last layer of the ordinary network, its prior by the marginal likelihood; two rivals use it."""
    Laplace = required()
    net, domain = models.member(0), models.domain
    posterior: Any = Laplace(net, "classification", subset_of_weights="last_layer", hessian_structure="kron")
    posterior.fit(DataLoader(TensorDataset(domain.x, domain.labels), batch_size=2048))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a link that the marginal likelihood does not use
        posterior.optimize_prior_precision(method="marglik")
    kept = [*posterior.H.eigenvectors, *posterior.H.eigenvalues]
    factors = sum(side.numel() for block in kept for side in block)
    return LastLayer(posterior, sum(p.numel() for p in net.parameters()) + factors)


def bridge(mean: Float[Tensor, "B K"], covariance: Float[Tensor, "B K K"], *, normed: bool) -> Dirichlet:
    r"""The Dirichlet whose own Laplace approximation in logit space has these moments (Hobbhahn et al., 2022).

    .. math:: \alpha_k = \frac{1}{\sigma^2_k}\Bigl(1 - \frac2K + \frac{e^{\mu_k}}{K^2} \sum_l e^{-\mu_l}\Bigr)

    It holds for logits that sum to 0, so that the Gaussian is first given that they do.

    Args:
        mean: Of the logits.
        covariance: Of the logits.
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
