"""Where the time of a student in bfloat16 goes on a GPU: plain PyTorch, the first layer, the Triton kernel, a whole call.

python -m benchmarks.kernel [--rows 10000] [--rounds 10] [--record]    (needs a GPU)

Everything but the whole calls is captured as a CUDA graph and replayed on inputs that are in place already.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from rich.console import Console

import opu
from benchmarks import options
from benchmarks.clock import matmul_precision, take_turns
from opu.acceleration.fused import Fused
from opu.acceleration.stacked import Stacked
from opu.cuda_graph import CudaGraph
from opu.tables import print_table


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> None:
    sizes, out = options.parse("kernel", __doc__, arguments, rows=10_000, rounds=10)
    torch.manual_seed(0)
    student = opu.students.mlp(784, 10, (400, 400)).eval().cuda()
    x = torch.rand(sizes["rows"], 784, device="cuda")
    fused = Fused(Stacked(student, torch.bfloat16))
    timed = take_turns(_calls(student, fused, x), sizes["rounds"])
    exact, (mean, log_precision, _) = student(x), fused(x.bfloat16())
    result: dict[str, Any] = {
        "rows": sizes["rows"],
        "microseconds": {name: round(1e6 * each.median, 1) for name, each in timed.items()},
        "chosen": str(fused.kernel.best_config),
        "off_by": {
            "mean": float((mean - exact.mean).abs().max()),
            "log_precision": float((log_precision - exact.log_precision).abs().max()),
        },
    }
    rows = [(name, f"{found:.1f} us") for name, found in result["microseconds"].items()]
    print_table(Console(), (f"{sizes['rows']:,} inputs", "time"), rows)
    options.write(out, result)


def _calls(student: opu.students.Student, fused: Fused, x: torch.Tensor) -> dict[str, Callable[[], object]]:
    layers, short, halved = fused.layers, x.bfloat16(), copy.deepcopy(student).bfloat16()
    (weight, bias), rows, captured = layers.first, fused.rows(x), fused.captured(x)
    calls: dict[str, Callable[[], object]] = {}
    for name, precision in (("float32", "highest"), ("TF32", "high")):
        with matmul_precision(precision):  # the graph keeps the precision of its capture
            calls[f"plain, {name}"] = _replay(lambda: student.heads(x))
    calls["plain, bfloat16"] = _replay(lambda: halved.heads(short))
    calls["stacked, bfloat16"] = _replay(lambda: layers(short))
    first = "first layer, "
    calls[first + "with bias and ReLU inside"] = _replay(lambda: torch._addmm_activation(bias, short, weight))
    calls[first + "with bias, and ReLU by itself"] = _replay(lambda: torch.addmm(bias, short, weight).relu_())
    calls[first + "the product alone"] = _replay(lambda: torch.mm(short, weight))
    calls[first + "the product with a bias inside"] = _replay(lambda: torch.mm(rows, fused.first))
    calls["first layer and kernel"] = _replay(lambda: fused.packed(rows))
    for name, inputs in (("bfloat16", short), ("float32", x)):
        calls[f"inputs in {name} put in place"] = _replay(partial(captured.placeholder.copy_, inputs))
    for name, inputs in (("bfloat16", short), ("float32", x)):
        calls[f"a call with inputs in {name}"] = partial(captured, inputs)
    return calls


def _replay(work: Callable[[], object]) -> Callable[[], None]:
    return CudaGraph(work).capture().replay


if __name__ == "__main__":
    main()
