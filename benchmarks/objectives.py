"""Exact against sampled MMD: time of one forward and backward pass, and whether the values agree.

python -m benchmarks.objectives [--inputs 64] [--particles 500] [--classes 10] [--record]
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console

from benchmarks import options
from benchmarks.clock import take_turns
from benchmarks.show import in_words
from opu.distributions.dirichlet import Dirichlet
from opu.distributions.kernels import Exponential, Kernel, Polynomial
from opu.objectives import ExactMMD, ForwardKL, Objective, SampledMMD
from opu.tables import print_table
from opu.terminal import say
from opu.timing import median_seconds

KERNELS: dict[str, Kernel] = {
    "polynomial": 0.5 * Polynomial(3) + 0.5 * Polynomial(4),
    "exponential": Exponential(1.0),
    "exponential, default": Exponential(),
}


def main(arguments: Sequence[str] | None = None) -> None:
    sizes, out = options.parse("objectives", __doc__, arguments, inputs=64, particles=500, classes=10, rounds=5, seed=0)
    torch.manual_seed(sizes["seed"])
    shape = (sizes["particles"], sizes["inputs"], sizes["classes"])
    log_particles = (2 * torch.randn(shape)).log_softmax(-1)
    logits = torch.randn(shape[1:], requires_grad=True)
    log_precision = torch.randn(sizes["inputs"], requires_grad=True)
    x = torch.zeros(sizes["inputs"], 1)

    def step(objective: Objective) -> Callable[[], object]:
        return lambda: objective(x, log_particles, Dirichlet.from_logits(logits, log_precision)).mean().backward()

    rows = {}
    for name, kernel in KERNELS.items():
        exact, sampled = ExactMMD(kernel), SampledMMD(kernel)
        found = take_turns({"exact": step(exact), "sampled": step(sampled)}, sizes["rounds"])
        fast, slow = found["exact"], found["sampled"]
        # A sampled MMD that takes seconds is timed once.
        ratios = sorted(s / f for f, s in zip(fast.seconds, slow.seconds, strict=False))
        rows[name] = {
            "terms": len(kernel.power_series()),
            "exact_seconds": fast.median,
            "sampled_seconds": slow.median,
            "ratio": statistics.median(ratios),
            "ratio_range": [ratios[0], ratios[-1]],
            **_agreement(exact, sampled, x, log_particles, Dirichlet.from_logits(logits, log_precision).detach()),
        }
    result = {"settings": sizes, "kernels": rows, "kl_seconds": median_seconds(step(ForwardKL()), 30)}
    _show(result, Console())
    options.write(out, result)


@torch.no_grad()
def _agreement(
    exact: Objective, sampled: Objective, x: torch.Tensor, log_particles: torch.Tensor, q: Dirichlet
) -> dict[str, float]:
    """Means over inputs of the exact and of repeated sampled values, and the standard error of the latter."""
    estimates = torch.stack([sampled(x, log_particles, q).double().mean() for _ in range(12)])
    error = float(estimates.std() / len(estimates) ** 0.5)
    value = float(exact(x, log_particles, q).double().mean())
    return {"exact_value": value, "sampled_value": float(estimates.mean()), "standard_error": error}


def _show(result: dict[str, Any], console: Console) -> None:
    sizes = result["settings"]
    size = f"{sizes['inputs']} inputs x {sizes['particles']} particles x {sizes['classes']} classes"
    rows = [
        (
            name,
            str(row["terms"]),
            in_words(row["sampled_seconds"]),
            in_words(row["exact_seconds"]),
            f"{row['ratio']:.0f}x ({row['ratio_range'][0]:.0f} to {row['ratio_range'][1]:.0f})",
            f"{row['exact_value']:.5f}",
            f"{row['sampled_value']:.5f} +- {row['standard_error']:.5f}",
        )
        for name, row in result["kernels"].items()
    ]
    header = ("kernel", "terms", "sampled", "exact", "ratio (range)", "exact value", "sampled value")
    print_table(console, header, rows, title=f"forward and backward, {size}")
    say(console, f"Forward KL: {in_words(result['kl_seconds'])}.")


if __name__ == "__main__":
    main()
