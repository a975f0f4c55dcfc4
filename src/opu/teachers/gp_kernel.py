"""Parts that Gaussian-process teachers share: the kernel, the inducing points, and the link from functions to classes.

Everything is computed in float64. Hyperparameters are one vector of logarithms: the lengthscales (one, or one per feature)
and then the variance.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from opu.checks import check_at_least, check_features, check_inputs, check_labels

JITTER = 1e-6  # added to the diagonal of the inducing points' covariance, as a fraction of the variance


@dataclass(frozen=True)
class SparseSettings:
    """Settings that all sparse Gaussian processes share.

    Attributes:
        inducing_fraction: Number of inducing points, as a fraction of the training inputs.
        num_inducing: Number of inducing points; it replaces the fraction if given.
        ard: Whether each feature has a lengthscale of its own (automatic relevance determination).
    """

    inducing_fraction: float = 0.1
    num_inducing: int | None = None
    ard: bool = False

    def __post_init__(self) -> None:
        if self.num_inducing is not None:
            check_at_least(1, num_inducing=self.num_inducing)
        elif not 0 < self.inducing_fraction <= 1:
            raise ValueError(f"inducing_fraction must be above 0 and at most 1; got {self.inducing_fraction:g}.")


def rbf(a: Float[Tensor, "N D"], b: Float[Tensor, "M D"], hyper: Float[Tensor, "*S P"]) -> Float[Tensor, "*S N M"]:
    r"""The squared-exponential kernel :math:`\sigma^2 \exp(-\frac12 \sum_d (a_d - b_d)^2 / \ell_d^2)`.

    Args:
        a: First inputs.
        b: Second inputs.
        hyper: One or ``D`` log lengthscales, then the log variance; leading axes are kept.
    """
    centre = b.mean(0)  # a common shift leaves distances as they are and reduces rounding errors
    a, b = a - centre, b - centre
    if hyper.shape[-1] == 2:  # with one lengthscale the distances need no gradient and are the same for all samples
        squared = _squared_distances(a, b) * (-2 * hyper[..., :1, None]).exp()
    else:
        scale = hyper[..., None, :-1].exp()
        squared = _squared_distances(a / scale, b / scale)
    return (hyper[..., -1, None, None] - 0.5 * squared).exp()


def _squared_distances(a: Float[Tensor, "*S N D"], b: Float[Tensor, "*S M D"]) -> Float[Tensor, "*S N M"]:
    squares = a.square().sum(-1)[..., :, None] + b.square().sum(-1)[..., None, :]
    return (squares - 2 * a @ b.mT).clamp(min=0.0)


class Conditional(NamedTuple):
    r"""Function values at some inputs, given whitened values :math:`v` at the inducing points.

    With :math:`K_{mm} = L L'` and values :math:`u = L v` at the inducing points, a function value has the conditional mean
    :math:`A v` with :math:`A = K_{nm} L^{-\top}`, and the variance :math:`k_{nn} - \sum_m A_{nm}^2` around it.
    """

    features: Tensor  # A, (*S, N, M)
    variance: Tensor  # (*S, N, 1)


def conditional(x: Float[Tensor, "N D"], inducing: Float[Tensor, "M D"], hyper: Float[Tensor, "*S P"]) -> Conditional:
    """The conditional at these inputs."""
    variance = hyper[..., -1].exp()[..., None, None]
    noise = JITTER * variance * torch.eye(len(inducing), dtype=x.dtype, device=x.device)
    # A failed factorisation gives NaN: a chain rejects such a state.
    root = torch.linalg.cholesky_ex(rbf(inducing, inducing, hyper) + noise).L
    features = torch.linalg.solve_triangular(root, rbf(inducing, x, hyper), upper=False).mT
    rest = variance - features.square().sum(-1, keepdim=True)
    return Conditional(features, torch.maximum(rest, 1e-10 * variance))


def inducing_points(x: Float[Tensor, "N D"], num_points: int) -> Float[Tensor, "M D"]:
    """Centres of a k-means clustering of the inputs, or all distinct inputs if there are no more of them."""
    from sklearn.cluster import KMeans  # takes a second to import

    distinct: Tensor = x.unique(dim=0)
    if num_points >= len(distinct):
        return distinct
    seed = int(torch.randint(2**31 - 1, ()))  # so that torch's random state determines the result
    clusters = KMeans(num_points, n_init=1, random_state=seed).fit(distinct.cpu().numpy())
    return torch.as_tensor(clusters.cluster_centers_, dtype=x.dtype, device=x.device)


def median_distance(x: Float[Tensor, "N D"], most: int = 1000) -> float:
    """Median distance between different inputs, from a random subset of at most ``most`` of them."""
    some = x[torch.randperm(len(x))[:most]]
    distances = nn.functional.pdist(some)
    distances = distances[distances > 0]
    return float(distances.median()) if len(distances) else 1.0


def class_log_probabilities(latents: Float[Tensor, "*S C"]) -> Float[Tensor, "*S K"]:
    """Class log-probabilities of function values: logistic for one function (of class 1), softmax for several."""
    if latents.shape[-1] > 1:
        return latents.log_softmax(-1)
    return nn.functional.logsigmoid(torch.cat([-latents, latents], -1))


def check_table(x: Tensor, labels: Tensor) -> tuple[Float[Tensor, "N D"], Int64[Tensor, " N"], int]:
    """Checked training inputs in float64, their labels, and the number of functions that the classes need."""
    x = check_rows(x)
    labels, num_classes = check_labels(labels, len(x))
    return x, labels.to(x.device), 1 if num_classes == 2 else num_classes


def check_rows(x: Tensor, num_features: int | None = None) -> Float[Tensor, "N D"]:
    """Checked inputs in float64."""
    check_features(x, num_features)
    check_inputs(x)
    return x.detach().double()


def check_hyper(hyper: Float[Tensor, " P"], num_features: int) -> None:
    """Refuse log hyperparameters of the wrong number, or that are not finite."""
    if hyper.numel() not in (2, num_features + 1) or not bool(torch.isfinite(hyper).all()):
        raise ValueError(
            "hyperparameters are the logarithms of one lengthscale, or of one for each feature, and of the variance: 2 or "
            f"{num_features + 1} finite numbers; got {hyper.tolist()[:10]}."
        )
