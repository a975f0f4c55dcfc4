r"""Scalable variational Gaussian processes (Hensman, Matthews and Ghahramani, 2015), for classification.

A Gaussian :math:`\mathcal{N}(m, R R')` approximates the posterior of the whitened values at the inducing points. It is
trained with GPyTorch. The marginal of a function value is then a Gaussian in closed form, so class probabilities are
logistic-normal, and any number of particles can be drawn exactly.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, inf, log
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from rich.progress import track
from torch import Tensor

from opu.checks import check_at_least, check_positive
from opu.files import write_state
from opu.teachers import gp_kernel as gp
from opu.teachers.base import BaseTeacher, chunk_sizes, read_saved
from opu.teachers.gp_posterior import SparsePosterior, WhitenedGaussian, maximise_evidence

KIND = "svgp"


@dataclass(frozen=True)
class SVGPSettings(gp.SparseSettings):
    """Settings of the model and its training, besides those of :class:`SparseSettings`.

    Attributes:
        batch_size: Largest number of rows per step.
        learning_rate: Learning rate of Adam at the start; it falls tenfold whenever the bound stops rising.
        num_falls: Number of such falls before training ends.
        window: Number of steps whose average bound is compared with the best average so far.
        tolerance: Gain of the bound per row, over a window, below which the bound counts as no longer rising.
        max_steps: Largest number of steps.
    """

    batch_size: int = 1024
    learning_rate: float = 0.05
    num_falls: int = 2
    window: int = 100
    tolerance: float = 1e-4
    max_steps: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, batch_size=self.batch_size, window=self.window, max_steps=self.max_steps)
        check_at_least(0, num_falls=self.num_falls)
        check_positive(learning_rate=self.learning_rate, tolerance=self.tolerance)


def svgp(x: Tensor, labels: Tensor, settings: SVGPSettings | None = None, *, progress: bool = False) -> "SVGP":
    """A variational Gaussian process fitted to labelled data, as a teacher.

    Two classes need one function with a logistic link; more need one function each, with a softmax and a common kernel.
    Inducing points and hyperparameters are trained too.

    Args:
        x: Training inputs ``(N, D)``. Scale them first: by default all features have one lengthscale.
        labels: Classes of the inputs, ``0 .. K-1``.
        settings: Settings of the model and its training.
        progress: Whether to show a progress bar.
    """
    from opu.teachers.svgp_model import SparseGP  # needs an extra

    settings = settings or SVGPSettings()
    x, labels, num_functions = gp.check_table(x, labels)
    unit = gp.median_distance(x)  # Adam's step size suits inducing points whose distances are about 1
    means, spreads = (0.0, log(4.0)), (1.0, 1.5)
    posterior = SparsePosterior.with_prior(x / unit, labels, num_functions, settings, means, spreads)
    model = SparseGP(_start(posterior))
    trace, converged = _train(model, posterior, settings, progress)
    if not converged:
        warnings.warn(
            f"the variational Gaussian process was still improving after {len(trace)} steps: raise max_steps.",
            stacklevel=2,
        )
    inducing, mean, root, hyper = model.state()
    hyper[:-1] += log(unit)
    return SVGP(inducing * unit, mean, root, hyper, torch.tensor(trace, dtype=torch.float64), converged)


@dataclass(frozen=True, eq=False)
class SVGP(BaseTeacher):
    """A variational Gaussian process, as a teacher.

    Attributes:
        inducing: Inducing points.
        mean: Mean of the whitened values there, for one function (two classes) or one per class.
        root: Cholesky factors of the covariances of the whitened values.
        hyper: Log lengthscales and log variance.
        elbo: Evidence lower bound per row, for each training step.
        converged: Whether training ended because the bound had stopped rising.
        memory_budget: Largest number of bytes for one chunk of rows.
    """

    inducing: Float[Tensor, "M D"]
    mean: Float[Tensor, "M C"]
    root: Float[Tensor, "C M M"]
    hyper: Float[Tensor, " P"]
    elbo: Float[Tensor, " T"]
    converged: bool
    memory_budget: int = field(default=2**29, kw_only=True)

    def marginals(self, x: Tensor) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B C"]]:
        """Mean and variance of each function at each input."""
        x = gp.check_rows(x, self.inducing.shape[1]).to(self.inducing.device)
        rows, _ = chunk_sizes(self.memory_budget, 8 * (4 + 2 * len(self.root)) * len(self.inducing), len(x))
        parts = []
        with torch.no_grad():
            for part in x.split(rows):
                features, rest = gp.conditional(part, self.inducing, self.hyper)
                parts.append((features @ self.mean, rest + (features @ self.root).square().sum(-1).T))
        means, variances = zip(*parts, strict=True)
        return torch.cat(means), torch.cat(variances)

    def __call__(self, x: Tensor, num_particles: int) -> Float[Tensor, "S B K"]:
        """Log-probabilities of function values that are drawn independently at each input."""
        check_at_least(1, num_particles=num_particles)
        mean, variance = self.marginals(x)
        noise = torch.randn(num_particles, *mean.shape, dtype=mean.dtype, device=mean.device)
        return gp.class_log_probabilities(mean + variance.sqrt() * noise).float()

    def save(self, path: str | Path) -> None:
        """Write the process into one safetensors file."""
        parts = {name: part for name, part in vars(self).items() if name != "memory_budget"}
        write_state(Path(path), {"kind": KIND, **parts})

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> "SVGP":
        """Read a process that :meth:`save` wrote."""
        return cls(**read_saved(path, KIND), **options)


def _start(posterior: SparsePosterior) -> WhitenedGaussian:
    """Laplace's approximation, which is close to the optimum."""
    hyper, mode = maximise_evidence(posterior)
    precision = posterior.precision_root(posterior.given(hyper), mode)
    root: Tensor = torch.linalg.cholesky(torch.cholesky_inverse(precision))
    return WhitenedGaussian(posterior.inducing, mode, root, hyper)


def _train(model: Any, data: SparsePosterior, settings: SVGPSettings, progress: bool) -> tuple[list[float], bool]:
    """Maximise the bound; returns its value at every step, and whether it has stopped rising."""
    batches = _batches(len(data.x), settings.batch_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    trace: list[float] = []
    best, falls = -inf, 0
    for _ in track(range(settings.max_steps), "training", disable=not progress, transient=True):
        rows = next(batches).to(data.x.device)
        bound = model.elbo(data.x[rows], data.labels[rows], len(data.x), data.rule)
        optimizer.zero_grad()
        (-bound).backward()
        optimizer.step()
        trace.append(float(bound.detach()))
        if len(trace) % settings.window:
            continue
        average = sum(trace[-settings.window :]) / settings.window
        if average < best + settings.tolerance:
            falls += 1
            if falls > settings.num_falls:
                return trace, True
            for group in optimizer.param_groups:
                group["lr"] /= 10
        best = max(best, average)
    return trace, False


def _batches(num_rows: int, batch_size: int) -> Iterator[Int64[Tensor, " B"]]:
    """Endless batches of row numbers; each epoch has a new order, and sizes differ by at most one."""
    num_batches = ceil(num_rows / batch_size)
    while True:
        order = torch.arange(num_rows) if num_batches == 1 else torch.randperm(num_rows)
        yield from order.tensor_split(num_batches)
