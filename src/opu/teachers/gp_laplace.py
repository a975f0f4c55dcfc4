"""The posterior of a sparse Gaussian-process classifier, and its Gaussian approximation where a chain can begin."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from opu.teachers.gp_kernel import whitened_features
from opu.teachers.gp_likelihood import Nodes, expected_curvature, expected_log_likelihood
from opu.teachers.hmc import differentiated

FINITE_DIFFERENCE = 0.02  # in log hyperparameters, over which the evidence is close to a parabola


@dataclass(frozen=True)
class SparsePosterior:
    r"""Of whitened inducing values and log hyperparameters (Hensman et al., 2015).

    .. math:: \log p(v, \theta \mid y) = \sum_n \mathbb{E} \log p(y_n \mid f_n) - \tfrac12 |v|^2 + \log p(\theta) + c,
              \qquad f_n \sim \mathcal{N}(A_n v, k_{nn} - |A_n|^2)
    """

    x: Float[Tensor, "N D"]
    labels: Int64[Tensor, " N"]
    inducing: Float[Tensor, "M D"]
    rule: Nodes
    prior_mean: Float[Tensor, " P"]
    prior_spread: Float[Tensor, " P"]

    def features(self, hyper: Float[Tensor, " P"]) -> tuple[Float[Tensor, "N M"], Float[Tensor, "N 1"]]:
        """``A`` and the conditional variances at the training inputs."""
        return whitened_features(self.x, self.inducing, hyper)

    def fit(
        self, features: Float[Tensor, "N M"], variance: Float[Tensor, "N 1"], whitened: Float[Tensor, "M C"]
    ) -> Float[Tensor, ""]:
        """The log-density of the whitened values given the hyperparameters."""
        terms = expected_log_likelihood(features @ whitened, variance, self.labels, self.rule)
        return terms.sum() - 0.5 * whitened.square().sum()

    def log_prior(self, hyper: Float[Tensor, " P"]) -> Float[Tensor, ""]:
        """Of the log hyperparameters, which are normal."""
        return -0.5 * ((hyper - self.prior_mean) / self.prior_spread).square().sum()

    def log_density(self, hyper: Float[Tensor, " P"], whitened: Float[Tensor, "M C"]) -> Float[Tensor, ""]:
        """Of everything."""
        features, variance = self.features(hyper)
        return self.fit(features, variance, whitened) + self.log_prior(hyper)

    def curvature(
        self, features: Float[Tensor, "N M"], variance: Float[Tensor, "N 1"], whitened: Float[Tensor, "M C"]
    ) -> Float[Tensor, "N C"]:
        """Of the likelihood, at each input and for each function."""
        return expected_curvature(features @ whitened, variance, self.rule)


def precision_root(features: Float[Tensor, "N M"], curvature: Float[Tensor, "N C"]) -> Float[Tensor, "C M M"]:
    """Lower factor of ``I + A' W A`` for each function; what ties different functions together is left out."""
    identity = torch.eye(features.shape[1], dtype=features.dtype, device=features.device)
    scaled = features * curvature.T.sqrt()[..., None]
    root: Tensor = torch.linalg.cholesky_ex(identity + scaled.mT @ scaled).L
    return root


def solve_precision(root: Float[Tensor, "C M M"], values: Float[Tensor, "M C"]) -> Float[Tensor, "M C"]:
    """The inverse of ``I + A' W A`` on each function's values."""
    return torch.cholesky_solve(values.T[..., None], root).squeeze(-1).T


def find_mode(
    posterior: SparsePosterior,
    features: Float[Tensor, "N M"],
    variance: Float[Tensor, "N 1"],
    start: Float[Tensor, "M C"],
) -> Float[Tensor, "M C"]:
    """The most likely whitened values given the hyperparameters, by Newton steps that are halved until they climb."""
    density = differentiated(lambda whitened: posterior.fit(features, variance, whitened))
    mode = start
    value, slope = density(mode)
    for _ in range(100):
        direction = solve_precision(precision_root(features, posterior.curvature(features, variance, mode)), slope)
        if float((slope * direction).sum()) < 1e-10:
            break
        size = 1.0
        candidate, (better, steepness) = mode + direction, density(mode + direction)
        while not bool(better > value) and size > 1e-6:
            size /= 2
            candidate, (better, steepness) = mode + size * direction, density(mode + size * direction)
        if not bool(better > value):
            break
        mode, value, slope = candidate, better, steepness
    return mode


def evidence(
    posterior: SparsePosterior, hyper: Float[Tensor, " P"], start: Float[Tensor, "M C"]
) -> tuple[float, Float[Tensor, " P"], Float[Tensor, "M C"]]:
    """Laplace's log-evidence of the hyperparameters plus their log-prior, its slope, and the mode it rests on."""
    hyper = hyper.detach().requires_grad_()
    with torch.enable_grad():
        features, variance = posterior.features(hyper)
        mode = find_mode(posterior, features.detach(), variance.detach(), start)
        root = precision_root(features.detach(), posterior.curvature(features.detach(), variance.detach(), mode))
        at = mode.clone().requires_grad_()
        (slope,) = torch.autograd.grad(posterior.fit(features, variance, at), at, create_graph=True)
        # One more Newton step stays where it is, but tells the slope how the mode follows the hyperparameters.
        moved = mode + solve_precision(root, slope)
        volume = precision_root(features, posterior.curvature(features, variance, moved)).diagonal(dim1=-2, dim2=-1)
        value = posterior.fit(features, variance, moved) - volume.log().sum() + posterior.log_prior(hyper)
        (gradient,) = torch.autograd.grad(value, hyper)
    return float(value.detach()), gradient, mode


@dataclass(frozen=True)
class Laplace:
    """A Gaussian picture of the posterior around the maximum of the evidence."""

    hyper: Float[Tensor, " P"]
    mode: Float[Tensor, "M C"]
    ridge: Float[Tensor, "P M C"]  # how the mode moves with each hyperparameter
    hyper_root: Float[Tensor, "P P"]  # a factor of the hyperparameters' covariance
    curvature: Float[Tensor, "N C"]  # of the likelihood at the mode


def laplace(posterior: SparsePosterior, num_functions: int) -> Laplace:
    """Maximise the evidence over the hyperparameters, and measure its curvature there."""
    hyper, mode = maximise_evidence(posterior, num_functions)
    slopes, modes = [], []
    for shift in FINITE_DIFFERENCE * torch.eye(len(hyper), dtype=hyper.dtype, device=hyper.device):
        _, up, mode_up = evidence(posterior, hyper + shift, mode)
        _, down, mode_down = evidence(posterior, hyper - shift, mode)
        slopes.append((up - down) / (2 * FINITE_DIFFERENCE))
        modes.append((mode_up - mode_down) / (2 * FINITE_DIFFERENCE))
    root = _covariance_root(-torch.stack(slopes), posterior.prior_spread)
    features, variance = posterior.features(hyper)
    return Laplace(hyper, mode, torch.stack(modes), root, posterior.curvature(features, variance, mode))


def laplace_at(posterior: SparsePosterior, num_functions: int, hyper: Float[Tensor, " P"]) -> Laplace:
    """The same for hyperparameters that are fixed and will not move."""
    features, variance = posterior.features(hyper)
    mode = find_mode(posterior, features, variance, hyper.new_zeros(len(posterior.inducing), num_functions))
    still = hyper.new_zeros(len(hyper), *mode.shape), hyper.new_zeros(len(hyper), len(hyper))
    return Laplace(hyper, mode, *still, posterior.curvature(features, variance, mode))


def maximise_evidence(
    posterior: SparsePosterior, num_functions: int
) -> tuple[Float[Tensor, " P"], Float[Tensor, "M C"]]:
    """The most likely hyperparameters, and the most likely whitened values given them."""
    from scipy.optimize import minimize  # slow to import

    mode = posterior.x.new_zeros(len(posterior.inducing), num_functions)

    def objective(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        nonlocal mode
        value, slope, mode = evidence(posterior, torch.as_tensor(values).to(mode), mode)
        return -value, -slope.cpu().numpy()

    start, spread = posterior.prior_mean.cpu().numpy(), posterior.prior_spread.cpu().numpy()
    bounds = list(zip(start - 4 * spread, start + 4 * spread, strict=True))
    best = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 50, "gtol": 1e-2})
    hyper = torch.as_tensor(best.x).to(mode)
    features, variance = posterior.features(hyper)
    return hyper, find_mode(posterior, features, variance, mode)


def _covariance_root(precision: Float[Tensor, "P P"], spread: Float[Tensor, " P"]) -> Float[Tensor, "P P"]:
    # Away from a proper maximum a direction may look flat or even upwards; the prior says how far it can be to go there.
    values, vectors = torch.linalg.eigh((precision + precision.T) / 2)
    root: Tensor = vectors / values.clamp(min=float(spread.max()) ** -2).sqrt()
    return root
