r"""Bayesian logistic regression by Polya-Gamma Gibbs sampling (Polson, Scott and Windle, 2013).

With prior :math:`\mathcal N(0, \Lambda^{-1})` on the coefficients, two conditionals are drawn in turn:

.. math:: \omega_n \sim \mathrm{PG}(1, x_n^\top\theta), \qquad \theta \sim \mathcal N(m, V), \qquad
          V = (X^\top\Omega X + \Lambda)^{-1}, \quad m = V X^\top(y - \tfrac12).

The paper writes :math:`\Lambda^{-1}` for :math:`\Lambda` in :math:`V`, and :math:`V^{-1}` for :math:`V` in :math:`m`.

Two classes have one logit, :math:`\pi = (\sigma(-\psi), \sigma(\psi))`. More classes use a broken stick: :math:`\psi_k` is
the logit of being above class ``k`` for a row of class ``k`` or above, so that
:math:`\pi_k = \sigma(-\psi_k)\prod_{j<k}\sigma(\psi_j)`, and the last class has the rest. The posterior is then a product
of ``K - 1`` binary ones, each of which can be sampled exactly. The order of the classes is a part of the model.

A row of weight :math:`w` counts as :math:`w` rows: its likelihood is raised to the power :math:`w`, so that
:math:`\omega_n \sim \mathrm{PG}(w_n, x_n^\top\theta)` and :math:`m = V X^\top w (y - \tfrac12)`, exact for any weight.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor
from torch.nn.functional import logsigmoid

from opu.checks import (
    check_at_least,
    check_features,
    check_inputs,
    check_labels,
    check_positive,
    check_weights,
    optional,
)
from opu.files import write_state
from opu.teachers.base import BaseTeacher, as_tensor, choose, read_saved
from opu.teachers.diagnostics import FEWEST_DRAWS, Mixing, mixing

Array = NDArray[np.float64]

KIND = "opu logistic samples"
FEWEST_ESS = 100.0  # the error of a posterior mean is then a tenth of the posterior standard deviation
LARGEST_R_HAT = 1.05
_MOST_LOGITS = 1000  # training rows whose logits are checked for mixing
_LARGE = 40.0  # largest logit that is passed to the package
_LARGE_WEIGHTED = 20.0  # the same for shapes other than 1: from 35 on version 2.0.2 is wrong by a factor of e for some


@dataclass(frozen=True)
class GibbsSettings:
    """Settings of the Gibbs sampler.

    Attributes:
        prior_variance: Variance of the Gaussian prior on every coefficient; features should be standardised to suit it.
        intercept: Whether to add a constant feature. It has the same prior, so that its posterior is proper even if one
            class has no rows.
        burn_in: Number of sweeps of each chain before its first sample.
        thinning: Number of sweeps from one sample to the next. Features with long tails, as in Spambase, need 50 or more.
        num_samples: Number of samples to keep from all chains together; a multiple of the number of chains.
        num_chains: Number of independent chains, each started at a draw from the prior.
    """

    prior_variance: float = 1.0
    intercept: bool = True
    burn_in: int = 1000
    thinning: int = 20
    num_samples: int = 500
    num_chains: int = 4

    def __post_init__(self) -> None:
        check_positive(prior_variance=self.prior_variance)
        check_at_least(1, thinning=self.thinning, num_chains=self.num_chains)
        check_at_least(0, burn_in=self.burn_in)
        if self.num_samples % self.num_chains or self.num_samples < FEWEST_DRAWS * self.num_chains:
            raise ValueError(
                f"num_samples must be a multiple of num_chains and at least {FEWEST_DRAWS} for each, so that chains can be "
                f"compared; got {self.num_samples} samples for {self.num_chains} chains."
            )


def polya_gamma(
    x: Tensor | NDArray[Any],
    labels: Tensor | NDArray[Any],
    settings: GibbsSettings | None = None,
    *,
    num_classes: int | None = None,
    weights: Tensor | NDArray[Any] | None = None,
    progress: bool = False,
) -> "LogisticSamples":
    """Posterior samples of a logistic regression given labelled data, as a teacher.

    Random numbers follow torch's global state, so ``torch.manual_seed`` makes a fit repeatable. Poor mixing causes a warning:
    an effective sample size below 100 (below half the samples if there are fewer than 200) or a split R-hat above 1.05, for
    any coefficient or for the logit of any of up to 1,000 training rows.

    Args:
        x: Features ``(N, F)``.
        labels: Classes ``(N,)``, integers from 0.
        settings: Settings of the sampler.
        num_classes: Number of classes; needed only if a class has no rows.
        weights: Weight of each row, ``(N,)``: one of weight 2 counts as two rows. By default all weights are 1.
        progress: Whether to show a progress bar.
    """
    settings = settings or GibbsSettings()
    rows = as_tensor(x)
    check_inputs(rows)
    check_features(rows)
    features = rows.detach().cpu().double().numpy()
    checked, num_classes = check_labels(as_tensor(labels), len(features), num_classes)
    classes = checked.cpu().numpy()
    counts = np.ones(len(features)) if weights is None else check_weights(as_tensor(weights), len(features)).numpy()
    design = np.pad(features, ((0, 0), (0, 1)), constant_values=1.0) if settings.intercept else features
    # The package needs a generator of numpy, which is seeded by a number from torch.
    rng = np.random.default_rng(int(torch.randint(2**63 - 1, ())))
    logits = range(num_classes - 1)
    left = [classes >= k for k in logits]  # rows of class k or above
    fits = [_gibbs(design[i], classes[i] > k, counts[i], settings, rng, progress) for k, i in enumerate(left)]
    draws = np.stack(fits, 2)
    found = {"coefficients": mixing(draws[:, :, k] for k in logits), "logits": _mixing_of_logits(draws, design)}
    _warn_of_poor_mixing(found, settings)
    # Chains alternate in the pool, so that its first samples represent all of them.
    pooled = torch.from_numpy(draws.swapaxes(0, 1).reshape(settings.num_samples, len(logits), -1).copy())
    coefficients, rest = pooled.split([features.shape[1], pooled.shape[2] - features.shape[1]], -1)
    return LogisticSamples(coefficients.contiguous(), rest.sum(-1), found)


@dataclass(frozen=True)
class LogisticSamples(BaseTeacher):
    """Coefficients of many logistic regressions, from any sampler, as a teacher: one matrix product evaluates them all.

    Attributes:
        coefficients: Coefficients of each sample and logit, ``(S, K - 1, F)``.
        intercepts: Intercepts of each sample and logit, ``(S, K - 1)``.
        diagnostics: Mixing of the ``"coefficients"`` and of the ``"logits"`` of training rows, if known.
    """

    coefficients: Tensor
    intercepts: Tensor
    diagnostics: Mapping[str, Mixing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = tuple(self.coefficients.shape)
        if len(shape) != 3 or 0 in shape or tuple(self.intercepts.shape) != shape[:2]:
            raise ValueError(
                "coefficients must have shape (S, K - 1, F) and intercepts (S, K - 1), with at least one of each; got "
                f"{shape} and {tuple(self.intercepts.shape)}. Two classes have one logit: K - 1 = 1."
            )
        if not bool(torch.isfinite(self.coefficients).all() and torch.isfinite(self.intercepts).all()):
            raise ValueError("coefficients and intercepts must be finite; got NaN or infinite ones. Check the sampler.")

    @property
    def num_samples(self) -> int:
        """Number of samples, S."""
        return len(self.coefficients)

    @property
    def num_classes(self) -> int:
        """Number of classes, K."""
        return self.coefficients.shape[1] + 1

    def __call__(self, x: Tensor, num_particles: int) -> Float[Tensor, "S B K"]:
        """Log-probabilities under a random subset of the samples, or all of them; in float32, on the samples' device."""
        check_features(x, self.coefficients.shape[2])
        index = choose(self.num_samples, num_particles, self.coefficients.device)
        with torch.no_grad():
            weights = self.coefficients[index].float()
            logits = x.to(weights) @ weights.flatten(0, 1).T
            logits = logits.unflatten(1, weights.shape[:2]).transpose(0, 1) + self.intercepts[index].float()[:, None]
            return broken_stick(logits)

    def take(self, index: Int64[Tensor, " S"]) -> "LogisticSamples":
        """Some of the samples, as a teacher without diagnostics."""
        return LogisticSamples(self.coefficients[index], self.intercepts[index])

    def to(self, device: torch.device | str) -> "LogisticSamples":
        """The same samples on another device, on which particles are then computed."""
        return replace(self, coefficients=self.coefficients.to(device), intercepts=self.intercepts.to(device))

    def save(self, path: str | Path) -> None:
        """Write all samples and their diagnostics into one safetensors file."""
        found = {name: asdict(found) for name, found in self.diagnostics.items()}
        write_state(Path(path), {"kind": KIND, **vars(self), "diagnostics": found})

    @classmethod
    def load(cls, path: str | Path) -> "LogisticSamples":
        """Read samples that :meth:`save` wrote."""
        parts = read_saved(path, KIND)
        found = {name: Mixing(**values) for name, values in parts["diagnostics"].items()}
        return cls(parts["coefficients"], parts["intercepts"], found)


def broken_stick(logits: Float[Tensor, "S B L"]) -> Float[Tensor, "S B L+1"]:
    """Log-probabilities of all ``K = L + 1`` classes; each logit takes a fraction of what those before it have left."""
    left = logsigmoid(logits).cumsum(-1)
    first = torch.zeros_like(left[..., :1])
    pieces = torch.cat([first, left[..., :-1]], -1) + logsigmoid(-logits)
    return torch.cat([pieces, left[..., -1:]], -1)


def polya_gamma_source(rng: np.random.Generator, shape: Array | None = None) -> Callable[[Array], Array]:
    r"""A function that draws :math:`\mathrm{PG}(b, z)` for an array of ``z``, with :math:`b` 1 or one for each column."""
    random_polyagamma = optional("polyagamma", "Polya-Gamma sampling", "blr").random_polyagamma

    border = _LARGE if shape is None else _LARGE_WEIGHTED

    def draw(z: Array) -> Array:
        size = np.abs(z)
        near = np.minimum(size, border)
        if shape is None:
            omega: Array = random_polyagamma(1.0, near, method="devroye", random_state=rng)
        else:  # the package chooses a method by the shape
            omega = random_polyagamma(np.broadcast_to(shape, near.shape), near, random_state=rng)
        # Version 2.0.2 returns 0.16 for every logit beyond 177, where the mean is 1 / 2z. For large z, PG(1, z) is a quarter
        # of an inverse Gaussian with mean 2 / z and shape 1, up to a relative error of e^-z; a sum of b of these is one with
        # mean 2b / z and shape b^2.
        far = size > border
        if far.any():
            b = 1.0 if shape is None else np.broadcast_to(shape, size.shape)[far]
            omega[far] = rng.wald(2 * b / size[far], np.square(b)) / 4
        return omega

    return draw


def _gibbs(
    design: Array,
    above: NDArray[np.bool_],
    counts: Array,
    settings: GibbsSettings,
    rng: np.random.Generator,
    progress: bool,
) -> Array:
    """Draws of one binary regression, ``(chains, draws, features)``; all chains take each sweep together."""
    draw = polya_gamma_source(rng, None if np.all(counts == 1) else counts)
    chains, features = settings.num_chains, design.shape[1]
    prior_precision = np.eye(features) / settings.prior_variance
    slope = design.T @ (counts * (above - 0.5))
    transposed = np.ascontiguousarray(design.T)
    theta = np.sqrt(settings.prior_variance) * rng.standard_normal((chains, features))
    kept = np.empty((chains, settings.num_samples // chains, features))
    sweeps = range(settings.burn_in + settings.thinning * kept.shape[1])
    for sweep in track(sweeps, "Gibbs sampling", disable=not progress, transient=True):
        omega = draw(theta @ transposed)
        # numpy computes a product with its own transpose in half the time.
        scaled = (transposed * row for row in np.sqrt(omega))
        precision = np.stack([part @ part.T for part in scaled]) + prior_precision
        theta = _draw_gaussians(precision, slope, rng)
        after = sweep + 1 - settings.burn_in
        if after > 0 and after % settings.thinning == 0:
            kept[:, after // settings.thinning - 1] = theta
    return kept


def _draw_gaussians(precision: Array, slope: Array, rng: np.random.Generator) -> Array:
    """One draw for each precision matrix ``P``, with mean ``P^-1 slope`` and covariance ``P^-1``."""
    # With P = L L' and standard normal e, P^-1 L e has covariance P^-1 L L' P^-1 = P^-1.
    try:
        noise = np.linalg.cholesky(precision) @ rng.standard_normal((*precision.shape[:2], 1))
        draws = np.linalg.solve(precision, slope[:, None] + noise)
    except np.linalg.LinAlgError:
        raise ValueError(
            "features must be of similar size, or their products drown the prior in rounding; standardise them: "
            "(x - x.mean(0)) / x.std(0)."
        ) from None
    return draws[:, :, 0].astype(np.float64, copy=False)


def _mixing_of_logits(draws: Array, design: Array) -> Mixing:
    rows = design[np.unique(np.linspace(0, len(design) - 1, _MOST_LOGITS).astype(int))]
    parts = np.array_split(rows, 1 + len(rows) // 256)
    return mixing(draws[:, :, k] @ part.T for k in range(draws.shape[2]) for part in parts)


def _warn_of_poor_mixing(found: Mapping[str, Mixing], settings: GibbsSettings) -> None:
    ess = min(each.min_ess for each in found.values())
    r_hat = max(each.max_r_hat for each in found.values())
    if ess < min(FEWEST_ESS, settings.num_samples / 2) or r_hat > LARGEST_R_HAT:
        warnings.warn(
            f"the chains have mixed too little: the smallest effective sample size of {settings.num_samples} is {ess:.0f} "
            f"and the largest R-hat {r_hat:.3f}; raise thinning (now {settings.thinning}) or burn_in "
            f"(now {settings.burn_in}).",
            stacklevel=3,
        )
