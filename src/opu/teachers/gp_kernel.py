"""What Gaussian-process teachers share: the kernel, the inducing points, and the link from functions to classes.

Everything is computed in float64. Hyperparameters travel as one vector of logarithms: the lengthscales (one, or one for
each feature) and then the variance.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from opu.checks import check_inputs, check_labels

JITTER = 1e-6  # added to the inducing points' covariance, as a share of the variance


def rbf(a: Float[Tensor, "N D"], b: Float[Tensor, "M D"], hyper: Float[Tensor, "*S P"]) -> Float[Tensor, "*S N M"]:
    r"""The squared-exponential kernel :math:`\sigma^2 \exp(-\frac12 \sum_d (a_d - b_d)^2 / \ell_d^2)`.

    Args:
        a: Inputs.
        b: Other inputs.
        hyper: Log lengthscales, one or ``D`` of them, then the log variance; leading axes are kept.
    """
    centre = b.mean(0)  # a common shift changes no distance and saves digits in the expansion below
    a, b = a - centre, b - centre
    if hyper.shape[-1] == 2:  # one lengthscale: the distances are the same for all samples, and have no slope
        squared = _squared_distances(a, b) * (-2 * hyper[..., :1, None]).exp()
    else:
        scale = hyper[..., None, :-1].exp()
        squared = _squared_distances(a / scale, b / scale)
    return (hyper[..., -1, None, None] - 0.5 * squared).exp()


def _squared_distances(a: Float[Tensor, "*S N D"], b: Float[Tensor, "*S M D"]) -> Float[Tensor, "*S N M"]:
    squares = a.square().sum(-1)[..., :, None] + b.square().sum(-1)[..., None, :]
    return (squares - 2 * a @ b.mT).clamp(min=0.0)


def whitened_features(
    x: Float[Tensor, "N D"], inducing: Float[Tensor, "M D"], hyper: Float[Tensor, "*S P"]
) -> tuple[Float[Tensor, "*S N M"], Float[Tensor, "*S N 1"]]:
    r"""What a whitened Gaussian process needs to know of its inputs.

    With :math:`K_{mm} = L L'` and values :math:`u = L v` at the inducing points, a function value has the conditional mean
    :math:`A v` with :math:`A = K_{nm} L^{-\top}`, and the variance :math:`k_{nn} - \sum_m A_{nm}^2` around it.

    Returns:
        ``A``, and the variances.
    """
    variance = hyper[..., -1].exp()[..., None, None]
    noise = JITTER * variance * torch.eye(len(inducing), dtype=x.dtype, device=x.device)
    # A failed factor is left as NaN: a chain refuses such a place, and no sample lies there.
    root = torch.linalg.cholesky_ex(rbf(inducing, inducing, hyper) + noise).L
    features = torch.linalg.solve_triangular(root, rbf(inducing, x, hyper), upper=False).mT
    rest = variance - features.square().sum(-1, keepdim=True)
    return features, torch.maximum(rest, 1e-10 * variance)


def inducing_points(x: Float[Tensor, "N D"], num_points: int) -> Float[Tensor, "M D"]:
    """Centres of a k-means clustering of the inputs, or the distinct inputs themselves where there are no more."""
    from sklearn.cluster import KMeans  # a second of import time, which others need not wait for

    distinct: Tensor = x.unique(dim=0)
    if num_points >= len(distinct):
        return distinct
    seed = int(torch.randint(2**31 - 1, ()))  # so that torch's random state decides here too
    clusters = KMeans(num_points, n_init=1, random_state=seed).fit(distinct.cpu().numpy())
    return torch.as_tensor(clusters.cluster_centers_, dtype=x.dtype, device=x.device)


def count_inducing(fraction: float, number: int | None, num_rows: int) -> int:
    """How many inducing points: a number, or a share of the rows."""
    return number or max(1, round(fraction * num_rows))


def median_distance(x: Float[Tensor, "N D"], most: int = 1000) -> float:
    """Between different inputs, from a random choice of them where there are many."""
    some = x[torch.randperm(len(x))[:most]]
    distances = nn.functional.pdist(some)
    distances = distances[distances > 0]
    return float(distances.median()) if len(distances) else 1.0


def class_log_probabilities(latents: Float[Tensor, "*S C"]) -> Float[Tensor, "*S K"]:
    """Function values through the link: logistic for one function (of class 1), softmax for several."""
    if latents.shape[-1] > 1:
        return latents.log_softmax(-1)
    return nn.functional.logsigmoid(torch.cat([-latents, latents], -1))


def check_table(x: Tensor, labels: Tensor) -> tuple[Float[Tensor, "N D"], Int64[Tensor, " N"], int]:
    """Training inputs in float64, their labels, and how many functions the classes need; or a complaint."""
    x = check_rows(x)
    labels, num_classes = check_labels(labels, len(x))
    return x, labels.to(x.device), 1 if num_classes == 2 else num_classes


def check_rows(x: Tensor, num_features: int | None = None) -> Float[Tensor, "N D"]:
    """Inputs in float64, or a complaint."""
    if x.ndim != 2:
        raise ValueError(
            f"a Gaussian process takes inputs with two axes (rows, features); got shape {tuple(x.shape)}. Flatten each "
            "example to one row: x.flatten(1)."
        )
    check_inputs(x)
    if num_features is not None and x.shape[1] != num_features:
        raise ValueError(f"the teacher was fitted to {num_features} features; got inputs with {x.shape[1]}.")
    return x.detach().double()


def check_inducing(fraction: float, number: int | None) -> None:
    """Refuse settings that leave no inducing points, or more than rows."""
    if number is None and not 0 < fraction <= 1:
        raise ValueError(f"inducing_fraction must be above 0 and at most 1; got {fraction:g}.")
    if number is not None and number < 1:
        raise ValueError(f"num_inducing must be at least 1, or None for a fraction; got {number}.")


def check_hyper(hyper: Float[Tensor, " P"], num_features: int) -> None:
    """Refuse a vector of log hyperparameters that fits no kernel on so many features."""
    if hyper.numel() not in (2, num_features + 1) or not bool(torch.isfinite(hyper).all()):
        raise ValueError(
            "hyperparameters are the logarithms of one lengthscale, or of one for each feature, and of the variance: 2 or "
            f"{num_features + 1} finite numbers; got {hyper.tolist()[:10]}."
        )


def rows_within(memory_budget: int, bytes_per_row: int, fixed: int = 0) -> int:
    """How many rows may be computed at once; always at least one."""
    return max(1, (memory_budget - fixed) // bytes_per_row)
