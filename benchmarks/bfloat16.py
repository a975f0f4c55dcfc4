"""Whether a student in bfloat16 finds strangers as well as in float32: AUROC of every measure on every set of MNIST's table.

python -m benchmarks.bfloat16 [--out results/bench-bfloat16.json]    (needs a GPU)

Teacher and student are trained half as long as in the tables.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import opu
from opu import measures
from opu.environment import environment
from opu.evaluation import metrics
from opu.files import write_json
from reproduction.paper.domains import mnist
from reproduction.paper.models import Models, Scale
from reproduction.paper.rows import select


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/bench-bfloat16.json"))
    out, device = parser.parse_args().out, torch.device("cuda")
    (row,) = select("mnist-robust", ["OPU-MCDP (robust)"])
    domain = mnist().to(device)
    with tempfile.TemporaryDirectory() as folder, torch.enable_grad():
        scale = Scale(teacher_epochs=20, share_of_epochs=0.5)
        models = Models(domain, scale, 0, Path(folder), device, progress=False)
        student = models.make(row.for_classes(domain.num_classes)).eval()
    fast = opu.optimize(student, domain.test, precision="bfloat16")  # type: ignore[arg-type]
    sets = {"test": domain.test, **domain.ood}
    said = [{name: _said(model, student, x) for name, x in sets.items()} for model in (student, fast)]
    labels = domain.test_labels.cpu()
    found: dict[str, Any] = {"how": fast.how, "auroc": {}}
    found["accuracy"] = [100 * float((each["test"]["mean"].argmax(-1) == labels).float().mean()) for each in said]
    for measure in (name for name in said[0]["test"] if name != "mean"):
        for name in domain.ood:
            found["auroc"][f"{measure}/{name}"] = [_apart(each["test"][measure], each[name][measure]) for each in said]
    found["worst"] = max(abs(before - after) for before, after in found["auroc"].values())
    write_json(out, {**found, "environment": environment()})
    print(fast.how, found["accuracy"], f"worst change of an AUROC: {found['worst']:.3f}")


def _said(model: nn.Module, student: Any, x: Tensor) -> dict[str, Tensor]:
    q = model(x)
    values = {**measures.all_measures(q), "novelty": student.novelty(q), "mean": q.mean}
    return {name: value.cpu() for name, value in values.items()}


def _apart(inside: Tensor, outside: Tensor) -> float:
    ood = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))]).bool()
    return metrics.auroc(torch.cat([inside, outside]).double().numpy(), ood.numpy())


if __name__ == "__main__":
    main()
