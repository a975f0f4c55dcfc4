"""What a logistic-normal costs beside a Dirichlet: all measures of students on MNIST's network, in PyTorch and ONNX Runtime.

python -m benchmarks.families [--rounds 11] [--largest 10000] [--record]
"""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import opu
from benchmarks import options
from benchmarks.clock import take_turns
from benchmarks.predict import onnx_call
from opu import measures
from opu.export import write

FEATURES, HIDDEN, CLASSES = 784, (400, 400), (10, 47)
FAMILIES = ("dirichlet", "logistic_normal")


def main(arguments: Sequence[str] | None = None) -> None:
    sizes, out = options.parse("families", __doc__, arguments, rounds=11, largest=10_000)
    torch.manual_seed(0)
    inputs, found = torch.rand(sizes["largest"], FEATURES), {}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for classes in CLASSES:
        calls = {name: call for family in FAMILIES for name, call in _calls(family, classes, device).items()}
        for batch in sorted({1, min(100, sizes["largest"]), sizes["largest"]}):
            rows = inputs[:batch].to(device)
            timed = take_turns({name: partial(call, rows) for name, call in calls.items()}, sizes["rounds"])
            seconds = {name: each.summary() for name, each in timed.items()}
            found[f"{classes} classes, batch of {batch}"] = seconds
            for runtime in dict.fromkeys(name.split(", ")[1] for name in calls):
                ratio = _ratio(seconds, runtime)
                print(f"{classes} classes, batch of {batch}, {runtime}: {ratio:.2f} times as long", flush=True)
    options.write(out, {**sizes, "device": device, "seconds": found})


def _ratio(seconds: dict[str, Any], runtime: str) -> float:
    ours, theirs = (seconds[f"{family}, {runtime}"]["seconds"] for family in reversed(FAMILIES))
    return float(ours / theirs)


def _calls(family: str, classes: int, device: str) -> dict[str, Callable[[Tensor], object]]:
    """Students of one family with all measures and novelty, by runtime."""
    student = opu.students.mlp(FEATURES, classes, HIDDEN, family=family).to(device).eval()
    opu.calibrate(student, torch.rand(1000, FEATURES).to(device))
    calls: dict[str, Callable[[Tensor], object]] = {f"{family}, PyTorch": partial(_all_measures, student)}
    if device == "cpu":
        with tempfile.TemporaryDirectory() as folder:
            write(student, Path(folder) / "student.onnx", torch.rand(200, FEATURES))
            calls[f"{family}, ONNX Runtime"] = onnx_call(Path(folder) / "student.onnx")
    return calls


@torch.no_grad()
def _all_measures(student: opu.students.Student, x: Tensor) -> dict[str, Tensor]:
    q = student(x)
    return {"probabilities": q.mean, **measures.all_measures(q, student.novelty)}


if __name__ == "__main__":
    main()
