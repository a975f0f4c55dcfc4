r"""Monte Carlo for sparse Gaussian processes (Hensman, Matthews, Filippone and Ghahramani, 2015), for classification.

Whitened values at inducing points and the kernel's hyperparameters are sampled by Hamiltonian Monte Carlo, in two blocks.
The paper draws inducing points from the inputs at random; here they are the centres of a k-means clustering.

Both blocks use coordinates :math:`z` of the values :math:`v` in which Laplace's approximation is a standard normal,

.. math:: v = m(\theta) + R(\theta)^{-\top} z, \qquad R R^\top = I + A(\theta)^\top W A(\theta)

with the mode :math:`m` linear in the hyperparameters and :math:`W` fixed at the start. A sweep moves first the
hyperparameters at fixed :math:`z`, so that the values follow them, and then :math:`z`.
"""

import warnings
from dataclasses import asdict, dataclass, field, replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from rich.progress import track
from torch import Tensor

from opu.checks import check_at_least, check_positive, check_weights
from opu.files import write_state
from opu.teachers import gp_kernel as gp
from opu.teachers.base import BaseTeacher, choose, chunk_sizes, read_saved
from opu.teachers.diagnostics import FEWEST_DRAWS, effective_sample_size, split_r_hat
from opu.teachers.gp_posterior import Laplace, SparsePosterior, laplace, laplace_at, precision_root
from opu.teachers.hmc import StepSize, differentiated, hmc_move, quarter_turn

KIND = "gp_samples"
MOST_LOGITS = 1000  # training inputs whose logits are checked for mixing


@dataclass(frozen=True)
class SGPMCSettings(gp.SparseSettings):
    """Settings of the model and its chain, besides those of :class:`SparseSettings`.

    Attributes:
        lengthscale_spread: Prior standard deviation of the log lengthscales around the log of the inputs' median distance.
        variance_centre: Prior median of the kernel's variance.
        variance_spread: Prior standard deviation of the log variance.
        num_samples: Number of samples to keep.
        burn_in: Number of sweeps before the first sample, in which step sizes are found.
        thinning: Number of sweeps from one sample to the next.
        leapfrog_steps: Largest number of leapfrog steps in a trajectory of the whitened values.
        hyper_leapfrog_steps: Largest number of leapfrog steps in a trajectory of the hyperparameters; they cost more.
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


def sgpmc(
    x: Tensor,
    labels: Tensor,
    settings: SGPMCSettings | None = None,
    *,
    hyper: Float[Tensor, " P"] | None = None,
    weights: Tensor | None = None,
    progress: bool = False,
) -> "GPSamples":
    """Posterior samples of a sparse Gaussian process given labelled data, as a teacher.

    Two classes need one function with a logistic link; more need one function each, with a softmax and a common kernel.

    Args:
        x: Training inputs ``(N, D)``. Scale them first: by default all features have one lengthscale.
        labels: Classes of the inputs, ``0 .. K-1``.
        settings: Settings of the model and its chain.
        hyper: Fixed log lengthscales and log variance; they are sampled by default.
        weights: Weight of each input, ``(N,)``: one of weight 2 counts as two inputs. By default all weights are 1.
        progress: Whether to show a progress bar.
    """
    settings = settings or SGPMCSettings()
    x, labels, num_functions = gp.check_table(x, labels)
    if hyper is not None:
        gp.check_hyper(hyper, x.shape[1])
        hyper = hyper.to(x)
    means = log(gp.median_distance(x)), log(settings.variance_centre)
    spreads = settings.lengthscale_spread, settings.variance_spread
    posterior = SparsePosterior.with_prior(x, labels, num_functions, settings, means, spreads)
    if weights is not None:
        posterior = replace(posterior, weights=check_weights(weights, len(x)).to(x))
    start = laplace(posterior) if hyper is None else laplace_at(posterior, hyper)
    chain = _Chain(posterior, start, settings, fixed=hyper is not None)
    for _ in track(range(settings.burn_in), "burn-in", disable=not progress, transient=True):
        chain.adapt(chain.sweep())
    if settings.burn_in:
        chain.step.freeze()
        chain.hyper_step.freeze()
    return _collect(chain, progress)


@dataclass(frozen=True)
class GPMixing:
    """How well a chain has mixed, judged by the functions' values at training inputs and by the hyperparameters.

    Attributes:
        acceptance: Acceptance rate of trajectories of the whitened values.
        hyper_acceptance: Acceptance rate of trajectories of the hyperparameters; 1 if those are fixed.
        logit_ess: Median effective sample size of the training logits.
        least_ess: Smallest effective sample size of training logits and hyperparameters.
        r_hat: Largest R-hat, from the halves of the chain.
    """

    acceptance: float
    hyper_acceptance: float
    logit_ess: float
    least_ess: float
    r_hat: float

    def complaint(self, num_samples: int) -> str | None:
        """One sentence about poor mixing, or None."""
        low = min(self.acceptance, self.hyper_acceptance)
        enough = self.logit_ess >= 0.1 * num_samples and self.least_ess >= 0.02 * num_samples
        if low >= 0.3 and enough and self.r_hat <= 1.2:
            return None
        return (
            f"the chain has mixed poorly (acceptance {low:.2f}, effective samples {self.logit_ess:.0f} of {num_samples} and "
            f"at least {self.least_ess:.0f}, R-hat {self.r_hat:.2f}): take a longer burn_in and a larger thinning."
        )


@dataclass(frozen=True, eq=False)
class GPSamples(BaseTeacher):
    """Posterior samples of a sparse Gaussian process, as a teacher.

    A particle belongs to one posterior sample. Given the sample, the function value at each input is drawn from its Gaussian
    conditional, independently of the other inputs; the link then gives class probabilities. The marginals are exact.

    Attributes:
        inducing: Inducing points.
        whitened: Samples of the whitened values there, for one function (two classes) or one per class.
        hyper: Samples of the log lengthscales and the log variance.
        mixing: How well the chain has mixed.
        memory_budget: Largest number of bytes for one chunk; samples, then rows, are chunked to fit.
    """

    inducing: Float[Tensor, "M D"]
    whitened: Float[Tensor, "S M C"]
    hyper: Float[Tensor, "S P"]
    mixing: GPMixing
    memory_budget: int = field(default=2**29, kw_only=True)

    @property
    def num_samples(self) -> int:
        """Number of posterior samples."""
        return len(self.whitened)

    def __call__(self, x: Tensor, num_particles: int) -> Float[Tensor, "S B K"]:
        """Log-probabilities under a random subset of the samples, or under all of them."""
        x = gp.check_rows(x, self.inducing.shape[1]).to(self.inducing.device)
        index = choose(self.num_samples, num_particles, x.device)
        (num_inducing, num_features), num_functions = self.inducing.shape, self.whitened.shape[-1]
        # All noise is drawn before chunking, so that the budget does not change the result.
        noise = torch.randn(len(index), len(x), num_functions, dtype=x.dtype, device=x.device)
        per_row = 8 * (4 * num_inducing + 2 * num_features + 4 * num_functions)
        rows, samples = chunk_sizes(self.memory_budget, per_row, len(x), fixed_bytes=8 * 4 * num_inducing**2)
        latents = [
            torch.cat([self._latents(*part, i) for part in zip(x.split(rows), n.split(rows, 1), strict=True)], 1)
            for i, n in zip(index.split(samples), noise.split(samples), strict=True)
        ]
        return gp.class_log_probabilities(torch.cat(latents)).float()

    def _latents(self, x: Tensor, noise: Tensor, index: Tensor) -> Tensor:
        with torch.no_grad():
            features, variance = gp.conditional(x, self.inducing, self.hyper[index])
            return features @ self.whitened[index] + variance.sqrt() * noise

    def save(self, path: str | Path) -> None:
        """Write all samples into one safetensors file."""
        tensors = {"inducing": self.inducing, "whitened": self.whitened, "hyper": self.hyper}
        write_state(Path(path), {"kind": KIND, **tensors, "mixing": asdict(self.mixing)})

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> "GPSamples":
        """Read samples that :meth:`save` wrote."""
        parts = read_saved(path, KIND)
        return cls(**parts | {"mixing": GPMixing(**parts["mixing"])}, **options)


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
            fit = self.posterior.fit(scaled.functions, scaled.values(self.position))
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
        density = differentiated(lambda position: self.posterior.fit(scaled.functions, scaled.values(position)))
        turn = quarter_turn(self.step.value, self.settings.leapfrog_steps)
        self.position, rate = hmc_move(self.position, density, *turn)
        return rate

    def _scaled(self, hyper: Float[Tensor, " P"]) -> "_Scaled":
        # The coordinates may depend on the hyperparameters only: depending on the current values would bias the chain.
        functions = self.posterior.given(hyper)
        centre = self.start.mode + torch.einsum("p,pmc->mc", hyper - self.start.hyper, self.start.ridge)
        return _Scaled(functions, centre, precision_root(functions.features, self.start.curvature))


@dataclass(frozen=True)
class _Scaled:
    """Coordinates of the whitened values, in which they are close to standard normal given the hyperparameters."""

    functions: gp.Conditional
    centre: Float[Tensor, "M C"]
    root: Float[Tensor, "C M M"]

    def values(self, position: Float[Tensor, "M C"]) -> Float[Tensor, "M C"]:
        """The whitened values at a position."""
        away: Tensor = torch.linalg.solve_triangular(self.root.mT, position.T[..., None], upper=True)
        return self.centre + away.squeeze(-1).T


def _collect(chain: _Chain, progress: bool) -> GPSamples:
    """Sample, and warn of poor mixing."""
    num_samples = chain.settings.num_samples
    watched = torch.randperm(len(chain.posterior.x))[:MOST_LOGITS].to(chain.posterior.x.device)
    whitened, hyper, logits, rates = [], [], [], []
    for _ in track(range(num_samples), "samples", disable=not progress, transient=True):
        rates += [chain.sweep() for _ in range(chain.settings.thinning)]
        whitened.append(chain.scaled.values(chain.position))
        hyper.append(chain.hyper)
        logits.append((chain.scaled.functions.features[watched] @ whitened[-1]).flatten())
    moving = torch.stack(logits if chain.fixed else [torch.cat(pair) for pair in zip(logits, hyper, strict=True)])
    draws = moving[None].cpu().numpy()
    ess, r_hat = effective_sample_size(draws), float(split_r_hat(draws).max())
    acceptance, hyper_acceptance = torch.tensor(rates).mean(0).tolist()
    logit_ess = float(np.median(ess[: len(logits[0])]))
    mixing = GPMixing(acceptance, hyper_acceptance, logit_ess, float(ess.min()), r_hat)
    complaint = mixing.complaint(num_samples)
    if complaint:
        warnings.warn(complaint, stacklevel=3)
    return GPSamples(chain.posterior.inducing, torch.stack(whitened), torch.stack(hyper), mixing)
