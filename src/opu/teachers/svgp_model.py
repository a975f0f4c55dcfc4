"""The variational Gaussian process as a model of GPyTorch, for training only."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from opu.checks import optional
from opu.teachers.gp_kernel import JITTER
from opu.teachers.gp_posterior import Nodes, WhitenedGaussian, expected_log_likelihood

gpytorch = optional("gpytorch", "a variational Gaussian process", "gp")
ApproximateGP: Any = gpytorch.models.ApproximateGP


class SparseGP(ApproximateGP):  # type: ignore[misc]
    """Independent functions with one kernel and one set of inducing points.

    Args:
        start: Inducing points, variational distribution and hyperparameters to start from.
    """

    def __init__(self, start: WhitenedGaussian) -> None:
        inducing, mean, root, hyper = start
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing), torch.Size([len(root)]))
        jitter = JITTER * float(hyper[-1].exp())
        strategy = gpytorch.variational.VariationalStrategy(self, inducing.clone(), distribution, jitter_val=jitter)
        super().__init__(strategy)
        kernel = gpytorch.kernels.RBFKernel(ard_num_dims=len(hyper) - 1 if len(hyper) > 2 else None)
        self.covariance = gpytorch.kernels.ScaleKernel(kernel)
        self.to(inducing)
        kernel.lengthscale = hyper[:-1].exp()
        self.covariance.outputscale = hyper[-1].exp()
        distribution.variational_mean.data.copy_(mean.T)
        distribution.chol_variational_covar.data.copy_(root)
        strategy.variational_params_initialized.fill_(1)  # otherwise the first call would replace these by the prior

    def forward(self, x: Tensor) -> Any:
        """The prior at some inputs, with mean 0."""
        return gpytorch.distributions.MultivariateNormal(x.new_zeros(x.shape[:-1]), self.covariance(x))

    def elbo(self, x: Tensor, labels: Tensor, num_rows: int, rule: Nodes) -> Float[Tensor, ""]:
        """The evidence lower bound per row, estimated from a batch."""
        marginal = self(x)
        fit = expected_log_likelihood(marginal.mean.T, marginal.variance.T, labels, rule).mean()
        bound: Tensor = fit - self.variational_strategy.kl_divergence().sum() / num_rows
        return bound

    def state(self) -> WhitenedGaussian:
        """The trained parts, as copies."""
        inducing = self.variational_strategy.inducing_points
        whitened = self.variational_strategy._variational_distribution
        hyper = torch.cat([self.covariance.base_kernel.lengthscale.flatten(), self.covariance.outputscale.reshape(1)])
        parts = (inducing, whitened.variational_mean.T, whitened.chol_variational_covar.tril(), hyper.log())
        return WhitenedGaussian(*(part.detach().clone() for part in parts))
