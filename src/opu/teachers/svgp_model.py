"""The variational Gaussian process as GPyTorch models it; only training needs it."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from opu.teachers.gp_kernel import JITTER
from opu.teachers.gp_likelihood import Nodes, expected_log_likelihood

try:
    import gpytorch
except ImportError as error:
    raise ImportError(
        'a variational Gaussian process needs GPyTorch; install it with: pip install "opu[gp]".'
    ) from error


class SparseGP(gpytorch.models.ApproximateGP):  # type: ignore[misc]
    """Independent functions with one kernel and one set of inducing points.

    Args:
        inducing: Where the inducing points begin.
        mean: Of the whitened values to begin with, for one function (two classes) or one for each class.
        root: Lower factors of their covariances to begin with.
        hyper: Log lengthscales and log variance to begin with.
    """

    def __init__(
        self,
        inducing: Float[Tensor, "M D"],
        mean: Float[Tensor, "M C"],
        root: Float[Tensor, "C M M"],
        hyper: Float[Tensor, " P"],
    ) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing), torch.Size([len(root)]))
        strategy = gpytorch.variational.VariationalStrategy(
            self,
            inducing.clone(),
            distribution,
            learn_inducing_locations=True,
            jitter_val=JITTER * float(hyper[-1].exp()),
        )
        super().__init__(strategy)
        num_lengthscales = len(hyper) - 1
        kernel = gpytorch.kernels.RBFKernel(ard_num_dims=num_lengthscales if num_lengthscales > 1 else None)
        self.covariance = gpytorch.kernels.ScaleKernel(kernel)
        self.to(inducing)
        kernel.lengthscale = hyper[:-1].exp()
        self.covariance.outputscale = hyper[-1].exp()
        distribution.variational_mean.data.copy_(mean.T)
        distribution.chol_variational_covar.data.copy_(root)
        strategy.variational_params_initialized.fill_(1)  # or the first call would put the prior in place of these

    def forward(self, x: Tensor) -> Any:
        """The prior at some inputs: mean 0."""
        return gpytorch.distributions.MultivariateNormal(x.new_zeros(x.shape[:-1]), self.covariance(x))

    def elbo(self, x: Tensor, labels: Tensor, num_rows: int, rule: Nodes) -> Float[Tensor, ""]:
        """The evidence's lower bound for each row, estimated from a batch of them."""
        marginal = self(x)
        fit = expected_log_likelihood(marginal.mean.T, marginal.variance.T, labels, rule).mean()
        bound: Tensor = fit - self.variational_strategy.kl_divergence().sum() / num_rows
        return bound

    def state(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What marginals are made of: inducing points, mean and factor of the whitened values, log hyperparameters."""
        inducing = self.variational_strategy.inducing_points
        whitened = self.variational_strategy._variational_distribution
        hyper = torch.cat([self.covariance.base_kernel.lengthscale.flatten(), self.covariance.outputscale.reshape(1)])
        parts = (inducing, whitened.variational_mean.T, whitened.chol_variational_covar.tril(), hyper.log())
        return tuple(part.detach().clone() for part in parts)  # type: ignore[return-value]
