"""The posterior of a sparse Gaussian-process classifier, and Laplace's approximation of it, from which inference starts."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor, nn

from opu.teachers.gp_kernel import Conditional, SparseSettings, class_log_probabilities, conditional, inducing_points
from opu.teachers.hmc import differentiated

FINITE_DIFFERENCE = 0.02  # step in log hyperparameters; the log-evidence is close to quadratic over it
NUM_NODES = 20  # Gauss-Hermite nodes for one function
NUM_PAIRS = 32  # least number of pairs of quasi-random nodes for several functions

Pair = tuple[float, float]


@dataclass(frozen=True)
class Nodes:
    """A quadrature rule for independent standard normals: points, and weights that sum to 1."""

    points: Float[Tensor, "Q C"]
    weights: Float[Tensor, " Q"]


def nodes(num_functions: int, device: torch.device | None = None) -> Nodes:
    """Gauss-Hermite nodes for one function; for several, fixed Sobol points through the normal quantile.

    The Sobol points come in pairs of opposite signs and are transformed to have the identity as covariance, so that the
    averages of cubic polynomials are exact. For 3 to 40 functions the average of ``logsumexp`` is off by less than 0.01 at
    variance 1 and by less than 0.05 at variance 4.
    """
    if num_functions == 1:
        points, weights = np.polynomial.hermite_e.hermegauss(NUM_NODES)
        return Nodes(torch.tensor(points[:, None], device=device), torch.tensor(weights / weights.sum(), device=device))
    num_pairs = max(NUM_PAIRS, 2 ** (4 * num_functions - 1).bit_length())
    sobol = torch.quasirandom.SobolEngine(num_functions).draw(num_pairs, dtype=torch.float64)
    half = torch.special.ndtri(sobol + 0.5 / num_pairs)  # the first point is 0, whose quantile would be infinite
    both = torch.cat([half, -half])
    root = torch.linalg.cholesky(both.T @ both / len(both))
    points = torch.linalg.solve_triangular(root, both.T, upper=False).T
    return Nodes(points.to(device), torch.full((len(points),), 1 / len(points), dtype=torch.float64, device=device))


def expected_log_likelihood(
    mean: Float[Tensor, "N C"], variance: Float[Tensor, "N #C"], labels: Int64[Tensor, " N"], rule: Nodes
) -> Float[Tensor, " N"]:
    """Expected log-likelihood of each label over independent Gaussian function values."""
    latents = mean[:, None] + variance.sqrt()[:, None] * rule.points
    if mean.shape[1] == 1:
        signs = (2 * labels - 1).to(mean.dtype)
        return nn.functional.logsigmoid(signs[:, None] * latents.squeeze(-1)) @ rule.weights
    own = mean.gather(1, labels[:, None]).squeeze(1)  # the average of this term needs no nodes
    return own - latents.logsumexp(-1) @ rule.weights


def expected_curvature(
    mean: Float[Tensor, "N C"], variance: Float[Tensor, "N #C"], rule: Nodes
) -> Float[Tensor, "N C"]:
    """Minus the second derivative of the expected log-likelihood in each mean: the average of ``p (1 - p)``."""
    latents = mean[:, None] + variance.sqrt()[:, None] * rule.points
    p = class_log_probabilities(latents).exp()[..., -mean.shape[1] :]
    return torch.einsum("nqc,q->nc", p * (1 - p), rule.weights)


@dataclass(frozen=True)
class SparsePosterior:
    r"""The posterior of whitened inducing values and log hyperparameters (Hensman et al., 2015).

    .. math:: \log p(v, \theta \mid y) = \sum_n \mathbb{E} \log p(y_n \mid f_n) - \tfrac12 |v|^2 + \log p(\theta) + c,
              \qquad f_n \sim \mathcal{N}(A_n v, k_{nn} - |A_n|^2)

    With weights the terms of the sum are multiplied by them: a row of weight 2 counts as two rows.
    """

    x: Float[Tensor, "N D"]
    labels: Int64[Tensor, " N"]
    inducing: Float[Tensor, "M D"]
    rule: Nodes
    prior_mean: Float[Tensor, " P"]
    prior_spread: Float[Tensor, " P"]
    weights: Float[Tensor, " N"] | None = None

    @classmethod
    def with_prior(
        cls, x: Tensor, labels: Tensor, num_functions: int, settings: SparseSettings, means: Pair, spreads: Pair
    ) -> "SparsePosterior":
        """The posterior under a normal prior with these means and spreads of the log lengthscales and the log variance."""
        rule = nodes(num_functions, x.device)
        inducing = inducing_points(x, settings.num_inducing or max(1, round(settings.inducing_fraction * len(x))))
        counts = torch.tensor([x.shape[1] if settings.ard else 1, 1], device=x.device)
        return cls(
            x, labels, inducing, rule, *(x.new_tensor(pair).repeat_interleave(counts) for pair in (means, spreads))
        )

    @property
    def zeros(self) -> Float[Tensor, "M C"]:
        """Whitened values of zero, the mean of their prior."""
        return self.x.new_zeros(len(self.inducing), self.rule.points.shape[1])

    def given(self, hyper: Float[Tensor, " P"]) -> Conditional:
        """The function values at the training inputs, given the hyperparameters and the whitened values."""
        return conditional(self.x, self.inducing, hyper)

    def fit(self, functions: Conditional, whitened: Float[Tensor, "M C"]) -> Float[Tensor, ""]:
        """The log-density of the whitened values given the hyperparameters."""
        mean = functions.features @ whitened
        terms = expected_log_likelihood(mean, functions.variance, self.labels, self.rule)
        terms = terms if self.weights is None else self.weights * terms
        return terms.sum() - 0.5 * whitened.square().sum()

    def log_prior(self, hyper: Float[Tensor, " P"]) -> Float[Tensor, ""]:
        """The log-density of the hyperparameters' prior, a normal on their logarithms."""
        return -0.5 * ((hyper - self.prior_mean) / self.prior_spread).square().sum()

    def curvature(self, functions: Conditional, whitened: Float[Tensor, "M C"]) -> Float[Tensor, "N C"]:
        """The curvature of the likelihood at each input, for each function."""
        found = expected_curvature(functions.features @ whitened, functions.variance, self.rule)
        return found if self.weights is None else self.weights[:, None] * found

    def precision_root(self, functions: Conditional, whitened: Float[Tensor, "M C"]) -> Float[Tensor, "C M M"]:
        """Cholesky factor of the precision that Laplace's approximation at these whitened values has."""
        return precision_root(functions.features, self.curvature(functions, whitened))


def precision_root(features: Float[Tensor, "N M"], curvature: Float[Tensor, "N C"]) -> Float[Tensor, "C M M"]:
    """Cholesky factor of ``I + A' W A`` for each function; the curvature between different functions is left out."""
    identity = torch.eye(features.shape[1], dtype=features.dtype, device=features.device)
    scaled = features * curvature.T.sqrt()[..., None]
    root: Tensor = torch.linalg.cholesky_ex(identity + scaled.mT @ scaled).L
    return root


def solve_precision(root: Float[Tensor, "C M M"], values: Float[Tensor, "M C"]) -> Float[Tensor, "M C"]:
    """``(I + A' W A)^-1`` times each function's values."""
    return torch.cholesky_solve(values.T[..., None], root).squeeze(-1).T


def find_mode(posterior: SparsePosterior, functions: Conditional, start: Float[Tensor, "M C"]) -> Float[Tensor, "M C"]:
    """The most likely whitened values given the hyperparameters, by Newton steps that are halved until the density rises."""
    density = differentiated(lambda whitened: posterior.fit(functions, whitened))
    mode = start
    value, slope = density(mode)
    for _ in range(100):
        direction = solve_precision(posterior.precision_root(functions, mode), slope)
        if float((slope * direction).sum()) < 1e-10:
            break
        for halvings in range(21):
            candidate = mode + 0.5**halvings * direction
            better, steepness = density(candidate)
            if bool(better > value):
                break
        else:
            break
        mode, value, slope = candidate, better, steepness
    return mode


def evidence(
    posterior: SparsePosterior, hyper: Float[Tensor, " P"], start: Float[Tensor, "M C"]
) -> tuple[float, Float[Tensor, " P"], Float[Tensor, "M C"]]:
    """Laplace's log-evidence of the hyperparameters plus their log-prior, its gradient, and the mode it was taken at."""
    hyper = hyper.detach().requires_grad_()
    with torch.enable_grad():
        functions = posterior.given(hyper)
        fixed = Conditional(*(part.detach() for part in functions))
        mode = find_mode(posterior, fixed, start)
        root = posterior.precision_root(fixed, mode)
        at = mode.clone().requires_grad_()
        (slope,) = torch.autograd.grad(posterior.fit(functions, at), at, create_graph=True)
        # One more Newton step does not move the mode, but lets the gradient see how the mode depends on the hyperparameters.
        moved = mode + solve_precision(root, slope)
        volume = posterior.precision_root(functions, moved).diagonal(dim1=-2, dim2=-1)
        value = posterior.fit(functions, moved) - volume.log().sum() + posterior.log_prior(hyper)
        (gradient,) = torch.autograd.grad(value, hyper)
    return float(value.detach()), gradient, mode


class WhitenedGaussian(NamedTuple):
    """A Gaussian over the whitened values at inducing points, and the hyperparameters of the kernel."""

    inducing: Tensor  # (M, D)
    mean: Tensor  # (M, C)
    root: Tensor  # Cholesky factors of the covariances, (C, M, M)
    hyper: Tensor  # log lengthscales and log variance, (P,)


@dataclass(frozen=True)
class Laplace:
    """A Gaussian approximation of the posterior around the maximum of the evidence."""

    hyper: Float[Tensor, " P"]
    mode: Float[Tensor, "M C"]
    ridge: Float[Tensor, "P M C"]  # derivative of the mode in each hyperparameter
    hyper_root: Float[Tensor, "P P"]  # a factor of the hyperparameters' covariance
    curvature: Float[Tensor, "N C"]  # curvature of the likelihood at the mode


def laplace(posterior: SparsePosterior) -> Laplace:
    """The approximation around the maximum of the evidence over the hyperparameters."""
    hyper, mode = maximise_evidence(posterior)
    slopes, modes = [], []
    for shift in FINITE_DIFFERENCE * torch.eye(len(hyper), dtype=hyper.dtype, device=hyper.device):
        _, up, mode_up = evidence(posterior, hyper + shift, mode)
        _, down, mode_down = evidence(posterior, hyper - shift, mode)
        slopes.append((up - down) / (2 * FINITE_DIFFERENCE))
        modes.append((mode_up - mode_down) / (2 * FINITE_DIFFERENCE))
    root = _covariance_root(-torch.stack(slopes), posterior.prior_spread)
    return Laplace(hyper, mode, torch.stack(modes), root, posterior.curvature(posterior.given(hyper), mode))


def laplace_at(posterior: SparsePosterior, hyper: Float[Tensor, " P"]) -> Laplace:
    """The approximation for fixed hyperparameters."""
    functions = posterior.given(hyper)
    mode = find_mode(posterior, functions, posterior.zeros)
    still = hyper.new_zeros(len(hyper), *mode.shape), hyper.new_zeros(len(hyper), len(hyper))
    return Laplace(hyper, mode, *still, posterior.curvature(functions, mode))


def maximise_evidence(posterior: SparsePosterior) -> tuple[Float[Tensor, " P"], Float[Tensor, "M C"]]:
    """The most likely hyperparameters, and the most likely whitened values given them."""
    from scipy.optimize import minimize  # slow to import

    mode = posterior.zeros

    def objective(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        nonlocal mode
        value, slope, mode = evidence(posterior, torch.as_tensor(values).to(mode), mode)
        return -value, -slope.cpu().numpy()

    start, spread = posterior.prior_mean.cpu().numpy(), posterior.prior_spread.cpu().numpy()
    bounds = list(zip(start - 4 * spread, start + 4 * spread, strict=True))
    best = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 50, "gtol": 1e-2})
    hyper = torch.as_tensor(best.x).to(mode)
    return hyper, find_mode(posterior, posterior.given(hyper), mode)


def _covariance_root(precision: Float[Tensor, "P P"], spread: Float[Tensor, " P"]) -> Float[Tensor, "P P"]:
    # Away from a proper maximum the curvature may vanish or have the wrong sign; the prior then bounds the covariance.
    values, vectors = torch.linalg.eigh((precision + precision.T) / 2)
    root: Tensor = vectors / values.clamp(min=float(spread.max()) ** -2).sqrt()
    return root
