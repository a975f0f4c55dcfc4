"""Where the time of a student in bfloat16 goes on a GPU: plain PyTorch, the first layer, the kernel, a call.

python -m benchmarks.kernel [--rows 10000] [--out results/bench-kernel.json]    (needs a GPU)

All but the calls is recorded as a CUDA graph and replayed with its inputs in place. Calls follow one another without a
pause, as a busy server's do.
"""

import argparse
import copy
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import opu
from opu.acceleration.fused import Fused
from opu.acceleration.stacked import Stacked
from opu.environment import environment
from opu.files import write_json

REPLAYS, ROUNDS = 100, 10


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path("results/bench-kernel.json"))
    options = parser.parse_args()
    torch.manual_seed(0)
    student = opu.students.mlp(784, 10, (400, 400)).eval().cuda()
    halved = copy.deepcopy(student).bfloat16()
    x = torch.rand(options.rows, 784, device="cuda")
    short, layers = x.bfloat16(), Stacked(student, torch.bfloat16)
    fused, (weight, bias) = Fused(layers), layers.first
    found: dict[str, Any] = {"rows": options.rows, "microseconds": {}}
    seconds = found["microseconds"]
    for words, precision in (("float32", "highest"), ("TF32", "high")):
        torch.set_float32_matmul_precision(precision)
        seconds[f"plain, {words}"] = _microseconds(lambda: student.heads(x))
    seconds["plain, bfloat16"] = _microseconds(lambda: halved.heads(short))
    seconds["side by side, bfloat16"] = _microseconds(lambda: layers(short))
    seconds["first layer, with bias and ReLU inside"] = _microseconds(
        lambda: torch._addmm_activation(bias, short, weight)
    )
    seconds["first layer, with bias, and ReLU by itself"] = _microseconds(
        lambda: torch.addmm(bias, short, weight).relu_()
    )
    seconds["first layer, the product alone"] = _microseconds(lambda: torch.mm(short, weight))
    room = fused.room(x)
    seconds["first layer, the product with a bias inside"] = _microseconds(lambda: torch.mm(room, fused.first))
    seconds["first layer and kernel"] = _microseconds(lambda: fused.packed(room))
    way = fused.recorded(x)
    for words, inputs in (("bfloat16", short), ("float32", x)):
        seconds[f"inputs in {words} put in place"] = _microseconds(lambda inputs=inputs: way.place.copy_(inputs))  # type: ignore[misc]
    for words, inputs in (("bfloat16", short), ("float32", x)):
        seconds[f"a call with inputs in {words}"] = _calls(lambda inputs=inputs: way(inputs))  # type: ignore[misc]
    found["chosen"] = str(fused.kernel.best_config)
    exact, (mean, log_precision, _) = student(x), fused(short)
    found["off_by"] = {
        "mean": float((mean - exact.mean).abs().max()),
        "log_precision": float((log_precision - exact.log_precision).abs().max()),
    }
    write_json(options.out, {**found, "environment": environment()})
    print(found)


def _microseconds(work: Callable[[], object]) -> float:
    """The median over rounds of many replays."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return _calls(graph.replay)


def _calls(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS + 1):  # the first is not counted
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(REPLAYS):
            work()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * start.elapsed_time(end) / REPLAYS)
    return round(statistics.median(times[1:]), 1)


if __name__ == "__main__":
    main()
