"""What compression costs: one trunk, eight bits, weights left out, weights of one bit; drift, size and time of each.

python -m benchmarks.compressed [--inputs 20000] [--epochs 15] [--out results/bench-compressed.json]

20,000 digits of MNIST and a teacher by MC dropout; every student is distilled by the default recipe. All of them are written
as ONNX files, and it is those that are compared.
"""

import argparse
import copy
import gzip
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch

import opu
from benchmarks.clock import take_turns
from opu.environment import environment
from opu.export import write
from opu.export.drift import drift
from opu.export.onnx_file import runner
from opu.files import write_json
from opu.students import Student
from opu.students.compressed import zeros
from reproduction.paper.domains import Domain, mnist
from reproduction.paper.models import Models, Scale

STRANGERS = ("omniglot_matched", "letters", "semeion")
PRUNED = (0.5, 0.8, 0.9, 0.95)


def main() -> None:
    options = _options()
    torch.manual_seed(options.seed)
    domain = mnist().small(options.inputs, 10_000, 2000)
    with tempfile.TemporaryDirectory() as folder:
        models = Models(
            domain, Scale(teacher_epochs=20), options.seed, Path(folder), torch.device("cpu"), progress=False
        )
        teacher = models.teacher("mc_dropout")
        distil = partial(_distil, teacher, domain)
        students = _students(teacher, distil, options.epochs)
        files = _files(students, domain, Path(folder))
        said = {name: runner(onnx.load(path), torch.get_num_threads()) for name, path in files.items()}
        x, labels = domain.test.numpy(), domain.test_labels.numpy()
        ood = {name: domain.ood[name].numpy() for name in STRANGERS}
        times = take_turns({name: partial(each, x) for name, each in said.items()}, options.rounds)
        rows: dict[str, Any] = {}
        for name, path in files.items():
            found = drift(said["float32"], said[name], x, labels, ood)
            student = students.get(name)
            rows[name] = {
                **found,
                "kilobytes": path.stat().st_size / 1000,
                "gzipped_kilobytes": len(gzip.compress(path.read_bytes())) / 1000,
                "zeros": None if student is None else zeros(student),
                "seconds": times[name]["seconds"],
                "least": times[name]["least"],
                "most": times[name]["most"],
            }
            print(
                name,
                {k: v for k, v in rows[name].items() if k != "measures"},
                rows[name]["measures"]["novelty"],
                flush=True,
            )
    settings = {key: value for key, value in vars(options).items() if key != "out"}
    write_json(options.out, {"settings": settings, "rows": rows, "environment": environment()})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("inputs", 20_000), ("epochs", 15), ("rounds", 5), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path, default=Path("results/bench-compressed.json"))
    return parser.parse_args()


def _students(teacher: Any, distil: Callable[[Student, int], Student], epochs: int) -> dict[str, Student]:
    """Pruned ones go on from the whole one for a third of its epochs; a binary one starts from the teacher as all do."""
    whole = distil(opu.students.mlp(784, 10).start_mean_from(teacher), epochs)
    students = {
        "float32": whole,
        "one trunk": distil(opu.students.mlp(784, 10, shared_trunk=True).start_mean_from(teacher), epochs),
    }
    for share in PRUNED:
        students[f"{share:.0%} left out"] = distil(opu.students.prune(copy.deepcopy(whole), share), max(1, epochs // 3))
    students["one bit"] = distil(opu.students.binary_mlp(784, 10).start_mean_from(teacher), epochs)
    return students


def _distil(teacher: Any, domain: Domain, student: Student, epochs: int) -> Student:
    opu.distill(teacher, student, domain.x, num_particles=16, epochs=epochs, held_out=domain.held_out, progress=False)
    return student


def _files(students: dict[str, Student], domain: Domain, folder: Path) -> dict[str, Path]:
    """All as they are, and two in eight bits, calibrated on held-out digits."""
    files = {}
    for name, student in students.items():
        files[name] = folder / f"{name.replace('%', '').replace(' ', '-')}.onnx"
        write(student, files[name], domain.held_out[:64])
    for name in ("float32", "one trunk"):
        short = "int8" if name == "float32" else f"{name}, int8"
        files[short] = folder / f"{name.replace(' ', '-')}-int8.onnx"
        write(students[name], files[short], domain.held_out[:64], int8=True, calibration=domain.held_out[:1000])
    return files


if __name__ == "__main__":
    main()
