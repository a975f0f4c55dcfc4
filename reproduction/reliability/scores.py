"""Attacks on p-values and predictions: ties, few calibration inputs, values that are no numbers, large offsets."""

import math
import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import opu
from opu.export import write
from opu.novelty import Blend
from opu.students import Student
from opu.students.impute import Prepare
from reproduction.reliability.attack import Outcome, calibrated, logistic_normals

Outputs = dict[str, np.ndarray]


def ties() -> list[Outcome]:
    """Students of three binary columns: no fresh row is like no other, so none has a p-value below 0.01."""
    broken = {"float32": 0, "float64": 0, "ONNX": 0, "int8": 0}
    for seed in range(12):
        torch.manual_seed(seed)
        student = opu.students.mlp(3, 2, (32, 32))
        with torch.no_grad():
            for weight in student.parameters():
                weight.mul_(3)
        rows, fresh = _binary(400), _binary(400)
        calibrated(student, rows)
        files = {name: _runtime(student, rows, int8=name == "int8") for name in ("ONNX", "int8")}
        for name in broken:
            for size in (1, 7, 400):
                if name in files and files[name] is None:
                    broken[name] += 1
                    continue
                if name in files:
                    parts = [_run(files[name], part)["novelty_p_value"] for part in fresh.split(size)]
                else:
                    student.to(getattr(torch, name))
                    parts = [student.predict(part).columns()["novelty_p_value"] for part in fresh.split(size)]
                    student.float()
                broken[name] += int(np.mean(np.concatenate(parts) < 0.01) > 0)
    return [Outcome(f"rows that tie are not novel, {name}", 36, count) for name, count in broken.items()]


def rates() -> list[Outcome]:
    """A threshold at 1 % and p-values up to 5 % flag no more fresh inputs than that, beyond four standard errors."""
    sizes, repeats = (20, 60, 99, 200, 1000), 200
    broken = {"a threshold of 1 % holds, 20 to 1000 inputs": 0, "a p-value of 5 % holds, 20 to 1000 inputs": 0}
    for size in sizes:
        by_threshold, by_p_value = [], []
        for seed in range(repeats):
            torch.manual_seed(seed)
            novelty = opu.Novelty.fit(_predictions(size))
            fresh = _predictions(200)
            try:
                by_threshold.append(float((novelty(fresh) > novelty.threshold(0.01)).double().mean()))
            except ValueError:  # refused, since so few inputs cannot tell
                by_threshold.append(0.0)
            by_p_value.append(float((novelty.p_value(fresh) <= 0.05).double().mean()))
        for name, found, rate in zip(broken, (by_threshold, by_p_value), (0.01, 0.05), strict=True):
            error = 4 * (rate * (1 - rate) / repeats * (1 / 200 + 1 / size)) ** 0.5
            broken[name] += int(np.mean(found) > rate + error)
    return [Outcome(name, len(sizes), count) for name, count in broken.items()]


def blends() -> list[Outcome]:
    """With ten calibration inputs, no p-value flags more than it says, beyond four standard errors, whatever is blended."""
    repeats, cases, broken = 1000, 0, 0
    for blend in (Blend(0.5, 0.5), Blend(0.5, 0.0), Blend(0.5, 1.0), Blend(0.1, 0.0), Blend(0.9, 1.0)):
        torch.manual_seed(0)
        p = torch.stack([opu.Novelty.fit(_opposed(10), blend).p_value(_opposed(100)) for _ in range(repeats)])
        for rate in (1 / 11, 3 / 11, 5 / 11):
            flagged = (p <= rate + 1e-12).double().mean(1)
            error = 4 * float(flagged.std()) / repeats**0.5
            cases, broken = cases + 1, broken + int(float(flagged.mean()) > rate + error)
    return [Outcome("p-values hold for equal and other shares of the blend, 10 inputs", cases, broken)]


def _opposed(count: int) -> opu.Dirichlet:
    """Predictions whose precision falls as their entropy does, so that the two parts of novelty disagree."""
    u = torch.randn(count, dtype=torch.float64)
    return opu.Dirichlet.from_logits(torch.stack([u.exp(), 0 * u], -1), -3 * u)


def sure() -> list[Outcome]:
    """Logistic-normals next to certainty: rows have one p-value in float32, float64 and ONNX."""
    if logistic_normals() is None:
        return []
    broken, cases = {"float64": 0, "ONNX": 0}, 0
    rows = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    for seed, (gap, scale) in enumerate((gap, scale) for gap in (50.0, 78.0, 100.0) for scale in (0.3, 3.0)):
        torch.manual_seed(seed)
        student = _sure_student(gap, scale)
        calibrated(student, rows[torch.multinomial(torch.tensor([0.45, 0.45, 0.1]), 500, replacement=True)])
        expected = student.predict(rows).columns()["novelty_p_value"]
        runtime = _runtime(student, rows[2:].repeat(8, 1), int8=False)
        found = {
            "float64": deepcopy(student).double().predict(rows.double()).columns()["novelty_p_value"],
            "ONNX": np.full(3, np.nan) if runtime is None else _run(runtime, rows)["novelty_p_value"],
        }
        cases += len(rows)
        for name, p in found.items():
            broken[name] += int((~(np.abs(p - expected) < 1e-5)).sum())
    promise = "p-values of sure logistic-normals are those of float32"
    return [Outcome(f"{promise}, {name}", cases, count) for name, count in broken.items()]


@torch.no_grad()
def _sure_student(gap: float, scale: float) -> Student:
    """A student of two columns: the first decides the class, with one difference of logits, and the second adds 4 to it."""
    student = opu.students.mlp(2, 2, (8,), family="logistic_normal")
    for weight in student.parameters():
        weight.zero_()
    first, last = (layer for layer in student.mean_net.modules() if isinstance(layer, nn.Linear))
    first.weight[0, 0] = first.weight[1, 1] = 1
    last.weight[0, 0], last.weight[0, 1] = gap, 4.0
    list(student.precision_net.parameters())[-1].fill_(math.log(scale))
    return student


_MAKERS: tuple[Callable[[], Student], ...] = (
    lambda: opu.students.mlp(256, 3, (16,)),
    lambda: opu.students.lenet(3, (1, 16, 16)),
)


def not_finite() -> list[Outcome]:
    """A row with NaN or infinity has a p-value below 0.01."""
    counts = {"PyTorch": [0, 0], "ONNX": [0, 0], "int8": [0, 0]}
    for seed in range(6):
        for make in _MAKERS:
            torch.manual_seed(seed)
            x = torch.rand(300, 1, 16, 16)
            student = calibrated(make(), x)
            rows = x[:60].clone()
            for number, row in enumerate(rows):
                row.view(-1)[int(torch.randint(256, ()))] = (torch.nan, torch.inf, -torch.inf)[number % 3]
            for name, count in counts.items():
                count[0] += len(rows)
                try:
                    if name == "PyTorch":
                        p = student.predict(rows).novelty_p_value
                    else:
                        p = _run(_runtime(student, x, int8=name == "int8"), rows)["novelty_p_value"]
                    count[1] += int((~(np.asarray(p) < 0.01)).sum())
                except ValueError:  # the whole batch is refused
                    count[1] += len(rows)
    return [Outcome(f"inputs that are not finite are novel, {name}", *count) for name, count in counts.items()]


def prepared() -> list[Outcome]:
    """A row with NaN or infinity has a p-value below 0.01, also where the file prepares its inputs by a bounded function."""
    cases = broken = 0
    for prepare in (torch.tanh, torch.sigmoid, torch.relu):
        torch.manual_seed(0)
        x = torch.rand(300, 12)
        student = calibrated(opu.students.mlp(12, 3, (16,)), prepare(x))
        rows = x[:60].clone()
        for number, row in enumerate(rows):
            row[number % 12] = (torch.nan, torch.inf, -torch.inf)[number % 3]
        with tempfile.TemporaryDirectory() as folder:
            runtime = session(write(student, Path(folder) / "s.onnx", x[:8], prepare=prepare).path)
        p = _run(runtime, rows)["novelty_p_value"]
        cases, broken = cases + len(p), broken + int((~(p < 0.01)).sum())
    return [Outcome("inputs that are not finite are novel behind a preparation, ONNX", cases, broken)]


def far() -> list[Outcome]:
    """Inputs a hundred times as large as those of calibration are novel in int8."""
    cases = broken = 0
    for seed in range(6):
        torch.manual_seed(seed)
        x = torch.rand(300, 20)
        student = calibrated(opu.students.mlp(20, 3, (32, 32)), x)
        p = _run(_runtime(student, x, int8=True), 100 * x[:100])["novelty_p_value"]
        cases, broken = cases + len(p), broken + int((~(p < 0.01)).sum())
    return [Outcome("inputs a hundred times too large are novel, int8", cases, broken)]


def offsets() -> list[Outcome]:
    """A file predicts the class that the student predicts, for columns with large offsets."""
    cases = broken = 0
    for seed, offset in enumerate((0.0, 1e6, 1.7e9, 1e12)):
        torch.manual_seed(seed)
        raw = torch.tensor(np.random.default_rng(seed).normal(size=(800, 4)) * 100 + offset)
        prepare = Prepare.fit(raw[:400].numpy())
        student = calibrated(opu.students.mlp(4, 3, (32,)).double(), prepare(raw[:400]))
        expected = student.predict(prepare(raw[400:])).probabilities.argmax(1)
        with tempfile.TemporaryDirectory() as folder:
            path = write(student, Path(folder) / "s.onnx", raw[:64], prepare=prepare).path
            found = _run(session(path), raw[400:])["probabilities"].argmax(1)
        cases, broken = cases + len(found), broken + int((found != expected).sum())
    return [Outcome("classes of rows with large offsets are the student's, ONNX", cases, broken)]


def _binary(count: int) -> Tensor:
    return torch.randint(2, (count, 3)).float()


def _predictions(count: int) -> opu.Dirichlet:
    logits = torch.randn(count, 4, dtype=torch.float64) * torch.rand(count, 1, dtype=torch.float64) * 4
    return opu.Dirichlet.from_logits(logits, 3 - torch.randn(count, dtype=torch.float64).exp())


def _runtime(student: Student, x: Tensor, *, int8: bool) -> object:
    """A session of the exported file; None if a good student was not exported."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = write(student, Path(folder) / "s.onnx", x[:8], int8=int8, calibration=x if int8 else None).path
        except (ValueError, RuntimeError):
            return None
        return session(path)


def session(path: Path) -> object:
    """The file in ONNX Runtime, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(path.read_bytes(), options)


def _run(runtime: object, x: Tensor) -> Outputs:
    (taken,) = runtime.get_inputs()  # type: ignore[attr-defined]
    kind = np.float64 if "double" in taken.type else np.float32
    names = [output.name for output in runtime.get_outputs()]  # type: ignore[attr-defined]
    found = runtime.run(None, {taken.name: x.numpy().astype(kind)})  # type: ignore[attr-defined]
    return dict(zip(names, found, strict=True))


ATTACKS = (ties, rates, blends, sure, not_finite, prepared, far, offsets)
