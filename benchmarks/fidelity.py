"""How long a fidelity report takes at the size of MNIST's test set: 10,000 inputs, 500 particles, 10 classes.

python -m benchmarks.fidelity [--inputs 10000] [--particles 500] [--classes 10] [--out results/bench-fidelity.json]
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

import opu
from opu import fidelity
from opu.environment import environment
from opu.files import write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--particles", type=int, default=500)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("results/bench-fidelity.json"))
    options = parser.parse_args()
    torch.manual_seed(0)
    # As of a classifier that is sure of four inputs in five: logits of a class, and a posterior that moves them.
    x = torch.randn(options.inputs, options.classes)
    x[torch.arange(len(x)), torch.randint(options.classes, (len(x),))] += torch.where(
        torch.rand(len(x)) < 0.8, 8.0, 2.0
    )

    def teacher(inputs: Tensor, num_particles: int) -> Tensor:
        return (inputs + torch.randn(num_particles, *inputs.shape)).log_softmax(-1)

    student = opu.students.mlp(options.classes, options.classes, (64,))
    began = time.perf_counter()
    found = fidelity.report(student, teacher, x, num_particles=options.particles)
    seconds = time.perf_counter() - began
    print(f"{seconds:.1f} s; {found.sentence}")
    sizes = {"inputs": options.inputs, "particles": options.particles, "classes": options.classes}
    write_json(
        options.out, {**sizes, "seconds": round(seconds, 1), "mmd": found.summary["mmd"], "environment": environment()}
    )


if __name__ == "__main__":
    main()
