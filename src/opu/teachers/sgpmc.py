r"""Monte Carlo for sparse Gaussian processes (Hensman, Matthews, Filippone and Ghahramani, 2015), for classification.

Whitened values at inducing points and the kernel's hyperparameters are sampled by Hamiltonian Monte Carlo, in two blocks.
The paper draws inducing points from the inputs at random; here they are the centres of a k-means clustering.

Both blocks see the values :math:`v` in coordinates :math:`z` in which Laplace's approximation is a standard normal,

.. math:: v = m(\theta) + R(\theta)^{-\top} z, \qquad R R^\top = I + A(\theta)^\top W A(\theta)

with the mode :math:`m` followed along its tangent and :math:`W` from the start. A sweep moves the hyperparameters with
:math:`z` held still, so that the values go along, and then :math:`z`.
"""

import warnings
from dataclasses import dataclass
from math import log

import numpy as np
import torch
from jaxtyping import Float
from rich.progress import track
from torch import Tensor

from opu.teachers.diagnostics import effective_sample_size, split_r_hat
from opu.teachers.gp_kernel import (
    check_hyper,
    check_inducing,
    check_table,
    count_inducing,
    inducing_points,
    median_distance,
)
from opu.teachers.gp_laplace import Laplace, SparsePosterior, laplace, laplace_at, precision_root
from opu.teachers.gp_likelihood import nodes
from opu.teachers.gp_samples import GPMixing, GPSamples
from opu.teachers.hmc import StepSize, differentiated, hmc_move, quarter_turn

MOST_LOGITS = 1000  # training inputs whose logits are watched


@dataclass(frozen=True)
class SGPMCSettings:
    """Of the model and its chain.

    Attributes:
        inducing_fraction: Inducing points, as a share of the training inputs.
        num_inducing: Their number, where it should not be a share.
        ard: A lengthscale for each feature in place of one for all.
        lengthscale_spread: Standard deviation of log lengthscales around the log of the median distance of inputs.
        variance_centre: Median of the prior of the kernel's variance.
        variance_spread: Standard deviation of the log variance.
        num_samples: Samples to keep.
        burn_in: Sweeps before the first sample, in which step sizes are found.
        thinning: Sweeps from one sample to the next.
        leapfrog_steps: At most, of a trajectory of the whitened values; as many are taken as a quarter turn needs.
        hyper_leapfrog_steps: The same for the hyperparameters, where each step costs a decomposition.
        target_acceptance: That burn-in seeks.
    """

    inducing_fraction: float = 0.1
    num_inducing: int | None = None
    ard: bool = False
    lengthscale_spread: float = 1.0
    variance_centre: float = 4.0
    variance_spread: float = 1.5
    num_samples: int = 500
    burn_in: int = 100
    thinning: int = 1
    leapfrog_steps: int = 10
    hyper_leapfrog_steps: int = 4
    target_acceptance: float = 0.8

    def __post_init__(self) -> None:
        check_inducing(self.inducing_fraction, self.num_inducing)
        counts = (self.thinning, self.leapfrog_steps, self.hyper_leapfrog_steps)
        if min(counts) < 1 or self.num_samples < 4 or self.burn_in < 0:
            raise ValueError(
                "a chain needs thinning, leapfrog_steps and hyper_leapfrog_steps of at least 1, a num_samples of at least "
                f"4 and a burn_in of at least 0; got {counts}, {self.num_samples} and {self.burn_in}."
            )
        if min(self.lengthscale_spread, self.variance_centre, self.variance_spread) <= 0:
            raise ValueError(
                "lengthscale_spread, variance_centre and variance_spread must be positive; got "
                f"{self.lengthscale_spread:g}, {self.variance_centre:g} and {self.variance_spread:g}."
            )
        if not 0 < self.target_acceptance < 1:
            raise ValueError(f"target_acceptance must lie between 0 and 1; got {self.target_acceptance:g}.")


@dataclass(frozen=True)
class _Scaled:
    """Whitened values in coordinates in which they are close to standard normal, for certain hyperparameters."""

    features: Float[Tensor, "N M"]
    variance: Float[Tensor, "N 1"]
    centre: Float[Tensor, "M C"]
    root: Float[Tensor, "C M M"]

    def values(self, position: Float[Tensor, "M C"]) -> Float[Tensor, "M C"]:
        """The whitened values at a position."""
        away: Tensor = torch.linalg.solve_triangular(self.root.mT, position.T[..., None], upper=True)
        return self.centre + away.squeeze(-1).T


class _Chain:
    """A point in the posterior, and the two moves that it makes."""

    def __init__(self, posterior: SparsePosterior, start: Laplace, settings: SGPMCSettings, fixed: bool) -> None:
        self.posterior, self.start, self.settings, self.fixed = posterior, start, settings, fixed
        self.step = StepSize(len(start.mode) ** -0.25, settings.target_acceptance)
        self.hyper_step = StepSize(1.0, settings.target_acceptance)
        self.hyper, self.scaled = start.hyper, self._scaled(start.hyper)
        self.position = torch.zeros_like(start.mode)

    def sweep(self) -> tuple[float, float]:
        """Move everything once; returns the two acceptance rates."""
        hyper_rate = 1.0 if self.fixed else self._move_hyper()
        return self._move_whitened(), hyper_rate

    def adapt(self, rates: tuple[float, float]) -> None:
        """Learn the step sizes from a sweep's acceptance rates."""
        self.step.update(rates[0])
        self.hyper_step.update(rates[1])

    def _move_hyper(self) -> float:
        start = self.start

        def target(position: Tensor) -> Tensor:
            hyper = start.hyper + start.hyper_root @ position
            scaled = self._scaled(hyper)
            volume = scaled.root.diagonal(dim1=-2, dim2=-1).log().sum()
            fit = self.posterior.fit(scaled.features, scaled.variance, scaled.values(self.position))
            return fit + self.posterior.log_prior(hyper) - volume

        position = torch.linalg.solve(start.hyper_root, self.hyper - start.hyper)
        turn = quarter_turn(self.hyper_step.value, self.settings.hyper_leapfrog_steps)
        moved, rate = hmc_move(position, differentiated(target), *turn)
        if moved is not position:
            self.hyper = start.hyper + start.hyper_root @ moved
            self.scaled = self._scaled(self.hyper)
        return rate

    def _move_whitened(self) -> float:
        scaled = self.scaled
        density = differentiated(
            lambda position: self.posterior.fit(scaled.features, scaled.variance, scaled.values(position))
        )
        turn = quarter_turn(self.step.value, self.settings.leapfrog_steps)
        self.position, rate = hmc_move(self.position, density, *turn)
        return rate

    def _scaled(self, hyper: Float[Tensor, " P"]) -> _Scaled:
        # Only the hyperparameters may decide on the coordinates; where the values are now may not, or the chain is biased.
        features, variance = self.posterior.features(hyper)
        centre = self.start.mode + torch.einsum("p,pmc->mc", hyper - self.start.hyper, self.start.ridge)
        return _Scaled(features, variance, centre, precision_root(features, self.start.curvature))


def sgpmc(
    x: Tensor,
    labels: Tensor,
    settings: SGPMCSettings | None = None,
    *,
    hyper: Float[Tensor, " P"] | None = None,
    progress: bool = False,
) -> GPSamples:
    """Samples of a sparse Gaussian process given labelled data, as a teacher.

    Two classes have one function with a logistic link, more have one function each with a softmax and one kernel for all.
    Expected log-likelihoods are taken with 20 Gauss-Hermite nodes for one function and with 64 or more fixed quasi-random
    nodes for several.

    Args:
        x: Training inputs, ``(N, D)``. One lengthscale serves all features unless ``ard``: scale them first.
        labels: Integers ``0 .. K-1``.
        settings: Of the model and its chain.
        hyper: Log lengthscales and log variance to be held fixed in place of being sampled.
        progress: Whether to show a bar.
    """
    settings = settings or SGPMCSettings()
    x, labels, num_functions = check_table(x, labels)
    if hyper is not None:
        check_hyper(hyper, x.shape[1])
        hyper = hyper.to(x)
    posterior = _posterior(x, labels, num_functions, settings)
    start = laplace(posterior, num_functions) if hyper is None else laplace_at(posterior, num_functions, hyper)
    chain = _Chain(posterior, start, settings, fixed=hyper is not None)
    for _ in track(range(settings.burn_in), "burn-in", disable=not progress, transient=True):
        chain.adapt(chain.sweep())
    if settings.burn_in:
        chain.step.freeze()
        chain.hyper_step.freeze()
    return _collect(chain, progress)


def _posterior(x: Tensor, labels: Tensor, num_functions: int, settings: SGPMCSettings) -> SparsePosterior:
    num_lengthscales = x.shape[1] if settings.ard else 1
    centres = [log(median_distance(x))] * num_lengthscales + [log(settings.variance_centre)]
    spreads = [settings.lengthscale_spread] * num_lengthscales + [settings.variance_spread]
    number = count_inducing(settings.inducing_fraction, settings.num_inducing, len(x))
    rule = nodes(num_functions, x.device)
    inducing = inducing_points(x, number)
    return SparsePosterior(x, labels, inducing, rule, x.new_tensor(centres), x.new_tensor(spreads))


def _collect(chain: _Chain, progress: bool) -> GPSamples:
    settings = chain.settings
    watched = torch.randperm(len(chain.posterior.x))[:MOST_LOGITS].to(chain.posterior.x.device)
    whitened, hyper, logits, rates = [], [], [], []
    for _ in track(range(settings.num_samples), "samples", disable=not progress, transient=True):
        rates += [chain.sweep() for _ in range(settings.thinning)]
        whitened.append(chain.scaled.values(chain.position))
        hyper.append(chain.hyper)
        logits.append((chain.scaled.features[watched] @ whitened[-1]).flatten())
    moving = torch.stack(logits if chain.fixed else [torch.cat(pair) for pair in zip(logits, hyper, strict=True)])
    mixing = _mixing(moving, len(logits[0]), torch.tensor(rates).mean(0))
    complaint = mixing.complaint(settings.num_samples)
    if complaint:
        warnings.warn(complaint, stacklevel=3)
    return GPSamples(chain.posterior.inducing, torch.stack(whitened), torch.stack(hyper), mixing)


def _mixing(moving: Float[Tensor, "S Q"], num_logits: int, rates: Float[Tensor, "2"]) -> GPMixing:
    draws = moving[None].cpu().numpy()
    sizes = effective_sample_size(draws)
    return GPMixing(
        acceptance=float(rates[0]),
        hyper_acceptance=float(rates[1]),
        logit_ess=float(np.median(sizes[:num_logits])),
        least_ess=float(sizes.min()),
        r_hat=float(split_r_hat(draws).max()),
    )
