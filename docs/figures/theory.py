"""Draws the two figures of the theory pages: ``python docs/figures/theory.py`` writes them to ``docs/images``."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from opu import Dirichlet
from opu.distributions.kernels import Exponential
from opu.objectives import ExactMMD, SampledMMD
from opu.plotting import STUDENT, TEACHER, describe, figure, finish, legend

IMAGES = Path(__file__).parent.parent / "images"


def sampled_and_exact() -> None:
    """The sampled estimate of one squared MMD against the number of draws, and the exact value."""
    torch.manual_seed(0)
    kernel, counts = Exponential(), [10, 30, 100, 300, 1000]
    particles = torch.distributions.Dirichlet(torch.tensor([6.0, 3.0, 1.0])).sample((100, 1)).log()
    q = Dirichlet(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([1.5]))
    exact = ExactMMD(kernel)(torch.zeros(1, 1), particles, q).item()
    drawn = []
    for count in counts:
        objective = SampledMMD(kernel, num_samples=count)
        drawn.append(torch.stack([objective(torch.zeros(1, 1), particles, q)[0] for _ in range(200)]))
    spread = torch.stack([torch.quantile(each, torch.tensor([0.05, 0.5, 0.95])) for each in drawn])
    drawing = figure(5.2, 2.8)
    axes = drawing.add_subplot()
    axes.fill_between(counts, spread[:, 0], spread[:, 2], color=TEACHER, alpha=0.25, lw=0, label="sampled, 5 to 95 %")
    axes.plot(counts, spread[:, 1], color=TEACHER, label="sampled, median of 200")
    axes.axhline(exact, color=STUDENT, label="exact, no draws")
    axes.set_xscale("log")
    describe(axes, "", "draws from the student", "squared MMD")
    legend(axes)
    finish(drawing, IMAGES / "sampled-mmd.png")


def two_best_dirichlets() -> None:
    """The least squared MMD at each mean, two classes, for a wide and a narrow Gaussian kernel."""
    edges = np.linspace(0, 1, 401)
    middles = (edges[:-1] + edges[1:]) / 2
    cloud = _histogram(stats.norm(0.3, 0.02), edges) / 2 + _histogram(stats.norm(0.7, 0.02), edges) / 2
    means, precisions = np.linspace(0.1, 0.9, 81), np.exp(np.linspace(-2, 9, 111))
    laws = [[_histogram(stats.beta(mean * a, (1 - mean) * a), edges) for a in precisions] for mean in means]
    off = np.array(laws) - cloud
    drawing = figure(8.6, 2.7)
    axes = drawing.add_subplot(1, 3, 1)
    axes.fill_between(middles, cloud, color=TEACHER, label="particles")
    describe(axes, "particles in two clusters", "probability of the first class", "density")
    axes.set(yticks=[], ylim=(0, 1.4 * cloud.max()))  # room for the legend
    legend(axes, loc="upper center")
    for place, bandwidth, expected in ((2, 0.5, [0.5]), (3, 0.01, [0.3, 0.7])):
        gram = np.exp(-((middles[:, None] - middles) ** 2) / (2 * bandwidth**2))
        least = ((off @ gram) * off).sum(-1).min(-1)  # over precisions, for each mean
        best = means[least <= least.min() + 1e-9]
        np.testing.assert_allclose(best, expected)  # what the page says about this figure
        axes = drawing.add_subplot(1, 3, place)
        axes.plot(means, least, color=STUDENT, label="best precision for each mean")
        closest = "closest Dirichlet" if len(best) == 1 else "closest Dirichlets"
        axes.plot(best, [least.min()] * len(best), "o", color=STUDENT, ms=5, label=closest)
        describe(axes, f"kernel of bandwidth {bandwidth}", "mean of the Dirichlet", "squared MMD")
        axes.set(yticks=[], ylim=(None, least.min() + 1.4 * (least.max() - least.min())))
        legend(axes, loc="upper center")
    drawing.tight_layout()
    finish(drawing, IMAGES / "two-best-dirichlets.png")


def _histogram(law: Any, edges: Any) -> Any:
    """The probability of each cell."""
    return np.diff(law.cdf(edges))


if __name__ == "__main__":
    sampled_and_exact()
    two_best_dirichlets()
