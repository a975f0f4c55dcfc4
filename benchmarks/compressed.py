"""What compression gains in size and time, and costs in quality: a shared trunk, int8, pruned weights, binary weights.

python -m benchmarks.compressed [--inputs 20000] [--epochs 15] [--record]

20,000 digits of MNIST, and MC dropout as the teacher. Every student is distilled by the default recipe and written as an
ONNX file; the files are compared.
"""

import copy
import gzip
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch
from rich.console import Console

import opu
from benchmarks import options
from benchmarks.clock import take_turns
from benchmarks.show import in_words
from opu.export import write
from opu.export.drift import drift
from opu.export.onnx_file import runner
from opu.students import Student
from opu.tables import print_table
from opu.teachers import Teacher
from reproduction.paper.domains import Domain, mnist
from reproduction.paper.models import Models, Scale

OOD = ("omniglot_matched", "letters", "semeion")
PRUNED = (0.5, 0.8, 0.9, 0.95)
MOST_OOD = 2000


def main(arguments: Sequence[str] | None = None) -> None:
    sizes, out = options.parse(
        "compressed", __doc__, arguments, inputs=20_000, epochs=15, rounds=5, seed=0, test=10_000, teacher_epochs=20
    )
    domain = mnist().small(sizes["inputs"], sizes["test"], MOST_OOD)
    with tempfile.TemporaryDirectory() as folder:
        scale = Scale(teacher_epochs=sizes["teacher_epochs"])
        models = Models(domain, scale, sizes["seed"], Path(folder), torch.device("cpu"), progress=False)
        students = _students(models.teacher("mc_dropout"), domain, sizes["epochs"])
        files = _files(students, domain.held_out, Path(folder))
        rows = _compare(files, students, domain, sizes["rounds"])
    _show(rows, Console())
    options.write(out, {"settings": sizes, "rows": rows})


def _students(teacher: Teacher, domain: Domain, epochs: int) -> dict[str, Student]:
    """Pruned students are distilled further from the whole one for a third of its epochs; all others start alike."""

    def distilled(student: Student, epochs: int) -> Student:
        recipe = opu.Recipe(num_particles=16, epochs=epochs)
        opu.distill(teacher, student, domain.x, recipe=recipe, held_out=domain.held_out, progress=False)
        return student

    def started(make: Callable[..., Student], **settings: bool) -> Student:
        return distilled(make(784, 10, **settings).start_mean_from(teacher), epochs)

    whole = started(opu.students.mlp)
    students = {"float32": whole, "one trunk": started(opu.students.mlp, shared_trunk=True)}
    for fraction in PRUNED:
        pruned = opu.students.prune(copy.deepcopy(whole), fraction)
        students[f"{fraction:.0%} pruned"] = distilled(pruned, max(1, epochs // 3))
    students["one bit"] = started(opu.students.binary_mlp)
    return students


def _files(students: dict[str, Student], held_out: torch.Tensor, folder: Path) -> dict[str, Path]:
    """A file of each student, and two of them in int8, calibrated on held-out digits."""
    files = {name: folder / f"{number}.onnx" for number, name in enumerate(students)}
    for name, student in students.items():
        write(student, files[name], held_out[:64])
    for name, short in (("float32", "int8"), ("one trunk", "one trunk, int8")):
        files[short] = folder / f"{short}.onnx"
        write(students[name], files[short], held_out[:64], int8=True, calibration=held_out[:1000])
    return files


def _compare(
    files: dict[str, Path], students: dict[str, Student], domain: Domain, rounds: int
) -> dict[str, dict[str, Any]]:
    predict = {name: runner(onnx.load(path), torch.get_num_threads()) for name, path in files.items()}
    x, labels = domain.test.numpy(), domain.test_labels.numpy()
    ood = {name: domain.ood[name].numpy() for name in OOD}
    timed = take_turns({name: partial(each, x) for name, each in predict.items()}, rounds)
    rows = {}
    for name, path in files.items():
        times = timed[name].summary()
        rows[name] = {
            **drift(predict["float32"], predict[name], x, labels, ood),
            "kilobytes": path.stat().st_size / 1000,
            "gzipped_kilobytes": len(gzip.compress(path.read_bytes())) / 1000,
            "zeros": _zeros(students[name]) if name in students else None,
            **{key: times[key] for key in ("seconds", "least", "most")},
        }
    return rows


def _show(rows: dict[str, dict[str, Any]], console: Console) -> None:
    lines = [
        (
            name,
            f"{row['accuracy'][1]:.2f}",
            *(f"{row['measures']['novelty'][each][1]:.1f}" for each in OOD),
            f"{row['gzipped_kilobytes']:,.0f} kB",
            in_words(row["seconds"]),
        )
        for name, row in rows.items()
    ]
    print_table(console, ("student", "accuracy", *(f"{each} by N" for each in OOD), "gzipped", "time"), lines)


def _zeros(student: Student) -> float:
    """Fraction of the student's weights, biases apart, that are zero."""
    weights = [w for name, w in student.named_parameters() if name.endswith("weight")]
    return sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)


if __name__ == "__main__":
    main()
