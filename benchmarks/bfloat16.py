"""What bfloat16 costs in quality: AUROC of every measure on every OOD set of MNIST's table, in float32 and in bfloat16.

python -m benchmarks.bfloat16 [--record]    (needs a GPU)

Teacher and student are trained half as long as in the tables.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import opu
from benchmarks import options
from opu import measures
from opu.choices import Precision
from opu.export.drift import Predict, drift
from opu.students import Student
from reproduction.paper.domains import Domain, mnist
from reproduction.paper.models import Models, Scale
from reproduction.paper.rows import select


def main(arguments: Sequence[str] | None = None) -> None:
    _, out = options.parse("bfloat16", __doc__, arguments)
    result = compare(mnist(), Scale(teacher_epochs=20, fraction_of_epochs=0.5), torch.device("cuda"))
    print(f"{result['backend']}: accuracy {result['accuracy']}, largest change of an AUROC {result['worst']:.3f}")
    options.write(out, result)


def compare(domain: Domain, scale: Scale, device: torch.device, precision: Precision = "bfloat16") -> dict[str, Any]:
    """Train the robust student of MNIST's table, and compare its predictions in both precisions."""
    (row,) = select("mnist-robust", ["OPU-MCDP (robust)"])
    with tempfile.TemporaryDirectory() as folder:
        models = Models(domain.to(device), scale, 0, Path(folder), device, progress=False)
        student = models.make(row.for_classes(domain.num_classes))
    assert isinstance(student, Student)
    fast = opu.optimize(student, domain.test.to(device), precision=precision)
    before, after = (_predictions(model, student, device) for model in (student, fast))
    ood = {name: x.numpy() for name, x in domain.ood.items()}
    found = drift(before, after, domain.test.numpy(), domain.test_labels.numpy(), ood)
    auroc = {f"{measure}/{name}": entry[name] for measure, entry in found["measures"].items() for name in ood}
    worst = max(abs(first - second) for first, second in auroc.values())
    return {"backend": fast.backend, "accuracy": found["accuracy"], "auroc": auroc, "worst": worst}


def _predictions(model: nn.Module, student: Student, device: torch.device) -> Predict:
    @torch.no_grad()
    def predict(x: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        q = model(torch.from_numpy(x).to(device))
        found = {"probabilities": q.mean, **measures.all_measures(q, student.novelty)}
        return {name: value.double().cpu().numpy() for name, value in found.items()}

    return predict


if __name__ == "__main__":
    main()
