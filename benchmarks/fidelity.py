"""How long a fidelity report takes at the size of MNIST's test set: 10,000 inputs, 500 particles, 10 classes.

python -m benchmarks.fidelity [--inputs 10000] [--particles 500] [--classes 10] [--record]
"""

from collections.abc import Sequence

import torch
from torch import Tensor

import opu
from benchmarks import options
from opu import fidelity
from opu.timing import now


def main(arguments: Sequence[str] | None = None) -> None:
    sizes, out = options.parse("fidelity", __doc__, arguments, inputs=10_000, particles=500, classes=10)
    torch.manual_seed(0)
    # Logits of a classifier that is sure of four inputs in five. The posterior adds noise to them.
    inputs = torch.randn(sizes["inputs"], sizes["classes"])
    labels = torch.randint(sizes["classes"], (len(inputs),))
    inputs[torch.arange(len(inputs)), labels] += torch.where(torch.rand(len(inputs)) < 0.8, 8.0, 2.0)

    def teacher(x: Tensor, num_particles: int) -> Tensor:
        return (x + torch.randn(num_particles, *x.shape)).log_softmax(-1)

    student = opu.students.mlp(sizes["classes"], sizes["classes"], (64,))
    began = now()
    found = fidelity.report(student, teacher, inputs, num_particles=sizes["particles"])
    seconds = now() - began
    print(f"{seconds:.1f} s; {found.sentence}")
    options.write(out, {**sizes, "seconds": round(seconds, 1), "mmd": found.summary["mmd"]})


if __name__ == "__main__":
    main()
