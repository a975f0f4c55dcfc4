r"""Monte Carlo for sparse Gaussian processes (Hensman, Matthews, Filippone and Ghahramani, 2015), for classification.

Whitened values at inducing points and the kernel's hyperparameters are sampled by Hamiltonian Monte Carlo, in two blocks.
The paper draws inducing points from the inputs at random; here they are the centres of a k-means clustering.

Both blocks use coordinates :math:`z` of the values :math:`v` in which Laplace's approximation is a standard normal,

.. math:: v = m(\theta) + R(\theta)^{-\top} z, \qquad R R^\top = I + A(\theta)^\top W A(\theta)

with the mode :math:`m` linear in the hyperparameters and :math:`W` fixed at the start. A sweep moves first the
hyperparameters at fixed :math:`z`, so that the values follow them, and then :math:`z`.
"""

import warnings
from dataclasses import dataclass
from math import log

import numpy as np
import torch
from jaxtyping import Float
from rich.progress import track
from torch import Tensor

from opu.checks import check_at_least, check_positive
from opu.teachers.diagnostics import FEWEST_DRAWS, effective_sample_size, split_r_hat
from opu.teachers.gp_kernel import SparseSettings, check_hyper, check_table, median_distance
from opu.teachers.gp_posterior import Laplace, SparsePosterior, laplace, laplace_at, precision_root
from opu.teachers.gp_samples import GPMixing, GPSamples
from opu.teachers.hmc import StepSize, differentiated, hmc_move, quarter_turn

MOST_LOGITS = 1000  # training inputs whose logits are checked for mixing


@dataclass(frozen=True)
class SGPMCSettings(SparseSettings):
    """Settings of the model and its chain, besides those of :class:`SparseSettings`.

    Attributes:
        lengthscale_spread: Standard deviation of the log lengthscales around the log of the inputs' median distance.
        variance_centre: Prior median of the kernel's variance.
        variance_spread: Prior standard deviation of the log variance.
        num_samples: Number of samples to keep.
        burn_in: Number of sweeps before the first sample, in which step sizes are found.
        thinning: Number of sweeps from one sample to the next.
        leapfrog_steps: Largest number of steps of a trajectory of the whitened values; fewer are taken if they make a
            quarter turn.
        hyper_leapfrog_steps: The same for the hyperparameters, where each step costs a decomposition.
        target_acceptance: Acceptance rate that burn-in aims at.
    """

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
        super().__post_init__()
        steps = {"leapfrog_steps": self.leapfrog_steps, "hyper_leapfrog_steps": self.hyper_leapfrog_steps}
        check_at_least(1, thinning=self.thinning, **steps)
        check_at_least(FEWEST_DRAWS, num_samples=self.num_samples)
        check_at_least(0, burn_in=self.burn_in)
        check_positive(lengthscale_spread=self.lengthscale_spread)
        check_positive(variance_centre=self.variance_centre, variance_spread=self.variance_spread)
        if not 0 < self.target_acceptance < 1:
            raise ValueError(f"target_acceptance must lie between 0 and 1; got {self.target_acceptance:g}.")


@dataclass(frozen=True)
class _Scaled:
    """Coordinates of the whitened values, in which they are close to standard normal given the hyperparameters."""

    features: Float[Tensor, "N M"]
    variance: Float[Tensor, "N 1"]
    centre: Float[Tensor, "M C"]
    root: Float[Tensor, "C M M"]

    def values(self, position: Float[Tensor, "M C"]) -> Float[Tensor, "M C"]:
        """The whitened values at a position."""
        away: Tensor = torch.linalg.solve_triangular(self.root.mT, position.T[..., None], upper=True)
        return self.centre + away.squeeze(-1).T


class _Chain:
    """The state of the chain and its two moves."""

    def __init__(self, posterior: SparsePosterior, start: Laplace, settings: SGPMCSettings, fixed: bool) -> None:
        self.posterior, self.start, self.settings, self.fixed = posterior, start, settings, fixed
        self.step = StepSize(len(start.mode) ** -0.25, settings.target_acceptance)
        self.hyper_step = StepSize(1.0, settings.target_acceptance)
        self.hyper, self.scaled = start.hyper, self._scaled(start.hyper)
        self.position = torch.zeros_like(start.mode)

    def sweep(self) -> tuple[float, float]:
        """Make both moves once; returns their acceptance rates."""
        hyper_rate = 1.0 if self.fixed else self._move_hyper()
        return self._move_whitened(), hyper_rate

    def adapt(self, rates: tuple[float, float]) -> None:
        """Update the step sizes by a sweep's acceptance rates."""
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
        # The coordinates may depend on the hyperparameters only: depending on the current values would bias the chain.
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

    Two classes need one function with a logistic link; more need one function each, with a softmax and a common kernel.
    Expected log-likelihoods use 20 Gauss-Hermite nodes for one function and at least 64 fixed quasi-random nodes for
    several.

    Args:
        x: Training inputs ``(N, D)``. Scale them first, since all features have one lengthscale unless ``ard``.
        labels: Classes of the inputs, ``0 .. K-1``.
        settings: Settings of the model and its chain.
        hyper: Fixed log lengthscales and log variance; they are sampled unless given.
        progress: Whether to show a progress bar.
    """
    settings = settings or SGPMCSettings()
    x, labels, num_functions = check_table(x, labels)
    if hyper is not None:
        check_hyper(hyper, x.shape[1])
        hyper = hyper.to(x)
    lengthscale = log(median_distance(x)), settings.lengthscale_spread
    variance = log(settings.variance_centre), settings.variance_spread
    posterior = SparsePosterior.with_prior(x, labels, num_functions, settings, lengthscale, variance)
    start = laplace(posterior, num_functions) if hyper is None else laplace_at(posterior, num_functions, hyper)
    chain = _Chain(posterior, start, settings, fixed=hyper is not None)
    for _ in track(range(settings.burn_in), "burn-in", disable=not progress, transient=True):
        chain.adapt(chain.sweep())
    if settings.burn_in:
        chain.step.freeze()
        chain.hyper_step.freeze()
    return _collect(chain, progress)


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
