r"""Scalable variational Gaussian processes (Hensman, Matthews and Ghahramani, 2015), for classification.

A Gaussian :math:`\mathcal{N}(m, R R')` stands for the posterior of the whitened values at the inducing points. It is trained
with GPyTorch; the marginal of a function value is then a Gaussian in closed form, so class probabilities are
logistic-normal and particles are exact draws, as many as are asked for.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf, log
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from rich.progress import track
from torch import Tensor

from opu.files import read_state, write_state
from opu.teachers.base import BaseTeacher
from opu.teachers.gp_kernel import (
    check_inducing,
    check_rows,
    check_table,
    class_log_probabilities,
    count_inducing,
    inducing_points,
    median_distance,
    rows_within,
    whitened_features,
)
from opu.teachers.gp_laplace import SparsePosterior, maximise_evidence, precision_root
from opu.teachers.gp_likelihood import nodes


@dataclass(frozen=True)
class SVGPSettings:
    """Of the model and its training.

    Attributes:
        inducing_fraction: Inducing points, as a share of the training inputs.
        num_inducing: Their number, where it should not be a share.
        ard: A lengthscale for each feature in place of one for all.
        batch_size: Rows of each step, at most; all of them where there are no more.
        learning_rate: Of Adam, to begin with; it falls tenfold whenever the bound stands still.
        num_falls: How often it may fall before training ends.
        window: Steps whose average bound is compared with the best average so far.
        tolerance: Gain of the bound for each row, over a window, below which it counts as standing still.
        max_steps: After which training ends in any case.
    """

    inducing_fraction: float = 0.1
    num_inducing: int | None = None
    ard: bool = False
    batch_size: int = 1024
    learning_rate: float = 0.05
    num_falls: int = 2
    window: int = 100
    tolerance: float = 1e-4
    max_steps: int = 10_000

    def __post_init__(self) -> None:
        check_inducing(self.inducing_fraction, self.num_inducing)
        if min(self.batch_size, self.window, self.max_steps) < 1 or self.num_falls < 0:
            raise ValueError(
                "batch_size, window and max_steps must be at least 1 and num_falls at least 0; got "
                f"{self.batch_size}, {self.window}, {self.max_steps} and {self.num_falls}."
            )
        if min(self.learning_rate, self.tolerance) <= 0:
            raise ValueError(
                f"learning_rate and tolerance must be positive; got {self.learning_rate:g} and {self.tolerance:g}."
            )


class SVGP(BaseTeacher):
    """A variational Gaussian process, as a teacher.

    Args:
        inducing: Inducing points.
        mean: Of the whitened values there, for one function (two classes) or one for each class.
        root: Lower factors of their covariances.
        hyper: The log lengthscales and the log variance.
        elbo: The bound for each row, step by step.
        converged: Whether training ended because the bound stood still.
        memory_budget: Bytes that one chunk of rows may take.
    """

    def __init__(
        self,
        inducing: Float[Tensor, "M D"],
        mean: Float[Tensor, "M C"],
        root: Float[Tensor, "C M M"],
        hyper: Float[Tensor, " P"],
        elbo: Float[Tensor, " T"],
        converged: bool,
        *,
        memory_budget: int = 2**29,
    ) -> None:
        self.inducing, self.mean, self.root, self.hyper = inducing, mean, root, hyper
        self.elbo, self.converged, self.memory_budget = elbo, converged, memory_budget

    def marginals(self, x: Tensor) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B C"]]:
        """Mean and variance of each function at each input."""
        x = check_rows(x, self.inducing.shape[1]).to(self.inducing.device)
        rows = rows_within(self.memory_budget, 8 * (4 + 2 * len(self.root)) * len(self.inducing))
        parts = []
        with torch.no_grad():
            for part in x.split(rows):
                features, rest = whitened_features(part, self.inducing, self.hyper)
                parts.append((features @ self.mean, rest + (features @ self.root).square().sum(-1).T))
        means, variances = zip(*parts, strict=True)
        return torch.cat(means), torch.cat(variances)

    def __call__(self, x: Tensor, num_particles: int) -> Float[Tensor, "S B K"]:
        """Log-probabilities of functions that are drawn anew, at each input for itself."""
        if num_particles < 1:
            raise ValueError(f"num_particles must be at least 1; got {num_particles}.")
        mean, variance = self.marginals(x)
        noise = torch.randn(num_particles, *mean.shape, dtype=mean.dtype, device=mean.device)
        return class_log_probabilities(mean + variance.sqrt() * noise).float()

    def save(self, path: str | Path) -> None:
        """Write the process into one safetensors file."""
        tensors = {"inducing": self.inducing, "mean": self.mean, "root": self.root, "hyper": self.hyper}
        write_state(Path(path), {"kind": "svgp", **tensors, "elbo": self.elbo, "converged": self.converged})

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> "SVGP":
        """Read what :meth:`save` wrote."""
        state = read_state(Path(path))
        if state.pop("kind", None) != "svgp":
            raise ValueError(f"{path} does not hold a variational Gaussian process; give a file that SVGP.save wrote.")
        return cls(**state, **options)


def svgp(x: Tensor, labels: Tensor, settings: SVGPSettings | None = None, *, progress: bool = False) -> SVGP:
    """A variational Gaussian process fitted to labelled data, as a teacher.

    Two classes have one function with a logistic link, more have one function each with a softmax and one kernel for all.
    Inducing points and hyperparameters are trained with the rest.

    Args:
        x: Training inputs, ``(N, D)``. One lengthscale serves all features unless ``ard``: scale them first.
        labels: Integers ``0 .. K-1``.
        settings: Of the model and its training.
        progress: Whether to show a bar.
    """
    from opu.teachers.svgp_model import SparseGP  # needs an extra

    settings = settings or SVGPSettings()
    x, labels, num_functions = check_table(x, labels)
    unit = median_distance(x)  # steps of one size suit inducing points only where distances are about 1
    x = x / unit
    model = SparseGP(*_start(x, labels, num_functions, settings))
    trace, converged = _train(model, x, labels, num_functions, settings, progress)
    if not converged:
        warnings.warn(
            f"the variational Gaussian process was still improving after {len(trace)} steps: raise max_steps.",
            stacklevel=2,
        )
    inducing, mean, root, hyper = model.state()
    hyper[:-1] += log(unit)
    return SVGP(inducing * unit, mean, root, hyper, torch.tensor(trace, dtype=torch.float64), converged)


def _start(
    x: Tensor, labels: Tensor, num_functions: int, settings: SVGPSettings
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Laplace's approximation, from which Adam has a short way to go."""
    number = count_inducing(settings.inducing_fraction, settings.num_inducing, len(x))
    num_lengthscales = x.shape[1] if settings.ard else 1
    centres = x.new_tensor([0.0] * num_lengthscales + [log(4.0)])
    spreads = x.new_tensor([1.0] * num_lengthscales + [1.5])
    rule = nodes(num_functions, x.device)
    posterior = SparsePosterior(x, labels, inducing_points(x, number), rule, centres, spreads)
    hyper, mode = maximise_evidence(posterior, num_functions)
    features, variance = posterior.features(hyper)
    precision = precision_root(features, posterior.curvature(features, variance, mode))
    return posterior.inducing, mode, torch.linalg.cholesky(torch.cholesky_inverse(precision)), hyper


def _train(
    model: Any, x: Tensor, labels: Tensor, num_functions: int, settings: SVGPSettings, progress: bool
) -> tuple[list[float], bool]:
    rule, batches = nodes(num_functions, x.device), _batches(len(x), settings.batch_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    trace: list[float] = []
    plateau, falls = _Plateau(settings.window, settings.tolerance), 0
    for _ in track(range(settings.max_steps), "training", disable=not progress, transient=True):
        rows = next(batches).to(x.device)
        bound = model.elbo(x[rows], labels[rows], len(x), rule)
        optimizer.zero_grad()
        (-bound).backward()
        optimizer.step()
        trace.append(float(bound.detach()))
        if plateau.reached(trace):
            falls += 1
            if falls > settings.num_falls:
                return trace, True
            for group in optimizer.param_groups:
                group["lr"] /= 10
    return trace, False


class _Plateau:
    """Says when a trace has stood still: its average over a window has not risen above the best one before."""

    def __init__(self, window: int, tolerance: float) -> None:
        self.window, self.tolerance, self.best = window, tolerance, -inf

    def reached(self, trace: list[float]) -> bool:
        """Looks once for each window."""
        if len(trace) % self.window:
            return False
        average = sum(trace[-self.window :]) / self.window
        still = average < self.best + self.tolerance
        self.best = max(self.best, average)
        return still


def _batches(num_rows: int, batch_size: int) -> Iterator[Int64[Tensor, " B"]]:
    """Rows of one batch after the other, for ever; each epoch in a new order, in batches of one size or one less."""
    num_batches = ceil(num_rows / batch_size)
    while True:
        order = torch.arange(num_rows) if num_batches == 1 else torch.randperm(num_rows)
        yield from order.tensor_split(num_batches)
