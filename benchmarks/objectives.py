"""Exact against sampled MMD: time of one forward and backward pass, and whether the values agree.

python -m benchmarks.objectives [--inputs 64] [--particles 500] [--classes 10] [--out results/bench-objectives.json]
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from opu.distributions.dirichlet import Dirichlet
from opu.distributions.kernels import Exponential, Kernel, Polynomial
from opu.environment import environment
from opu.files import write_json
from opu.objectives import ExactMMD, ForwardKL, Objective, SampledMMD
from opu.timing import median_seconds

KERNELS: dict[str, Kernel] = {
    "polynomial": 0.5 * Polynomial(3) + 0.5 * Polynomial(4),
    "exponential": Exponential(1.0),
    "exponential, default": Exponential(),
}


def main() -> None:
    options = _options()
    torch.manual_seed(options.seed)
    shape = (options.particles, options.inputs, options.classes)
    log_particles = (2 * torch.randn(shape)).log_softmax(-1)
    logits = torch.randn(shape[1:], requires_grad=True)
    log_precision = torch.randn(options.inputs, requires_grad=True)
    x = torch.zeros(options.inputs, 1)

    def step(objective: Objective) -> Callable[[], object]:
        return lambda: objective(x, log_particles, Dirichlet.from_logits(logits, log_precision)).mean().backward()

    rows = {}
    for name, kernel in KERNELS.items():
        exact, sampled = ExactMMD(kernel), SampledMMD(kernel)
        rounds = [(median_seconds(step(exact), 15), median_seconds(step(sampled), 2)) for _ in range(options.rounds)]
        ratios = sorted(slow / fast for fast, slow in rounds)
        rows[name] = {
            "terms": len(kernel.power_series()),
            "exact_seconds": statistics.median(fast for fast, _ in rounds),
            "sampled_seconds": statistics.median(slow for _, slow in rounds),
            "ratio": statistics.median(ratios),
            "ratio_range": [ratios[0], ratios[-1]],
            **_agreement(exact, sampled, x, log_particles, Dirichlet.from_logits(logits, log_precision).detach()),
        }
    kl = median_seconds(step(ForwardKL()), 30)
    settings = {key: value for key, value in vars(options).items() if key != "out"}
    result = {"settings": settings, "kernels": rows, "kl_seconds": kl, "environment": environment()}
    write_json(options.out, result)
    _show(result, options.out)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("inputs", 64), ("particles", 500), ("classes", 10), ("rounds", 5), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path, default=Path("results/bench-objectives.json"))
    return parser.parse_args()


@torch.no_grad()
def _agreement(
    exact: Objective, sampled: Objective, x: torch.Tensor, log_particles: torch.Tensor, q: Dirichlet
) -> dict[str, float]:
    """The mean over inputs of exact less sampled values, in standard errors of repeated sampled estimates."""
    estimates = torch.stack([sampled(x, log_particles, q).double().mean() for _ in range(12)])
    error = float(estimates.std() / len(estimates) ** 0.5)
    value = float(exact(x, log_particles, q).double().mean())
    return {"exact_value": value, "sampled_value": float(estimates.mean()), "standard_error": error}


def _show(result: dict[str, Any], out: Path) -> None:
    settings = result["settings"]
    size = f"{settings['inputs']} inputs x {settings['particles']} particles x {settings['classes']} classes"
    title = f"forward and backward, {size}"
    table = Table("kernel", "terms", "sampled", "exact", "ratio (range)", "exact value", "sampled value", title=title)
    for name, row in result["kernels"].items():
        low, high = row["ratio_range"]
        table.add_row(
            name,
            str(row["terms"]),
            f"{1e3 * row['sampled_seconds']:.0f} ms",
            f"{1e3 * row['exact_seconds']:.1f} ms",
            f"{row['ratio']:.0f}x ({low:.0f} to {high:.0f})",
            f"{row['exact_value']:.5f}",
            f"{row['sampled_value']:.5f} +- {row['standard_error']:.5f}",
        )
    console = Console()
    console.print(table)
    console.print(f"forward KL: {1e3 * result['kl_seconds']:.1f} ms. Written to {out}.")


if __name__ == "__main__":
    main()
