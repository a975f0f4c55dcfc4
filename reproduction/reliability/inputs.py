"""Attacks with inputs of unusual types: integers, indices that a table lacks, and rows that tie in a cascade."""

import math
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import opu
from opu import measures
from opu.export import write
from opu.students import Student
from reproduction.reliability.attack import Outcome, calibrated, logistic_normals
from reproduction.reliability.scores import session


def unsigned() -> list[Outcome]:
    """Unsigned integers that signed ones cannot hold are predicted as the same numbers in float64 are."""
    cases = broken = 0
    for seed in range(4):
        torch.manual_seed(seed)
        student = calibrated(opu.students.mlp(2, 3, (16,)), 10 * torch.randn(200, 2))
        rows = np.random.default_rng(seed).integers(2**64 - 20, 2**64 - 1, (40, 2), dtype=np.uint64, endpoint=True)
        found, expected = (student.predict(x).novelty_p_value for x in (rows, rows.astype(np.float64)))
        cases, broken = cases + len(rows), broken + int((np.asarray(found) != np.asarray(expected)).sum())
    return [Outcome("unsigned integers of 64 bits do not become negative", cases, broken)]


class _Looking(nn.Module):
    """A classifier that looks indices up in a table of 20 rows."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.words, self.drop, self.last = nn.Embedding(20, 8), nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.how == "one-hot":
            held = nn.functional.one_hot(tokens, 20).float().mean(1)[:, :8]
        elif self.how == "floats":
            held = self.words(tokens.long()).mean(1)
        elif self.how == "flattened":
            held = self.words(tokens.reshape(-1)).reshape(*tokens.shape, 8).mean(1)
        elif self.how == "selected":
            held = self.words.weight.index_select(0, tokens.reshape(-1)).reshape(*tokens.shape, 8).mean(1)
        else:
            held = self.words(tokens + (self.how == "shifted")).mean(1)
        logits: Tensor = self.last(self.drop(held))
        return logits


def lookups() -> list[Outcome]:
    """A row with an index that the table lacks has the least p-value in a file, since the library refuses it."""
    cases = broken = 0
    for seed, how in enumerate(("plain", "shifted", "one-hot", "floats", "flattened", "selected")):
        torch.manual_seed(seed)
        x = torch.randint(19, (200, 5)).to(torch.float32 if how == "floats" else torch.int64)
        student = opu.students.from_teacher(opu.teachers.MCDropout(_Looking(how)), example=x)
        opu.calibrate(student, x)
        with tempfile.TemporaryDirectory() as folder:
            runtime = session(write(student, Path(folder) / "s.onnx", x[:8]).path)
        for value in (-2, -100, 20, 1000):
            rows = x[:40].numpy().copy()
            rows[np.arange(40), np.arange(40) % 5] = value
            cases, broken = cases + len(rows), broken + _not_novel(runtime, rows)
    return [Outcome("indices that a table lacks are novel, ONNX", cases, broken)]


def _not_novel(runtime: object, rows: np.ndarray) -> int:
    """How many rows have a p-value of 0.01 or more; 0 where the runtime refuses them all."""
    names = [output.name for output in runtime.get_outputs()]  # type: ignore[attr-defined]
    try:
        found = dict(zip(names, runtime.run(None, {"inputs": rows}), strict=True))  # type: ignore[attr-defined]
    except Exception:  # a runtime's own error is a word
        return 0
    return int((~(found["novelty_p_value"] < 0.01)).sum())


class _Counts(nn.Module):
    """A classifier of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 16), nn.Dropout(0.3), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.drop(torch.relu(self.first(x.float() / 50))))
        return logits


def whole_numbers() -> list[Outcome]:
    """Whole numbers a hundred times as large as those of calibration are novel in int8."""
    cases = broken = 0
    for seed, kind in enumerate((torch.int64, torch.int32, torch.int16)):
        torch.manual_seed(seed)
        x = torch.randint(-100, 100, (400, 6)).to(kind)
        student = opu.students.from_teacher(opu.teachers.MCDropout(_Counts()), example=x)
        opu.calibrate(student, x)
        with tempfile.TemporaryDirectory() as folder:
            runtime = session(write(student, Path(folder) / "s.onnx", x[:8], int8=True, calibration=x).path)
        rows = 100 * x[:100].numpy()
        cases, broken = cases + len(rows), broken + _not_novel(runtime, rows)
    return [Outcome("whole numbers a hundred times too large are novel, int8", cases, broken)]


def cascades() -> list[Outcome]:
    """A budget of 5 % is kept within twice its size where rows tie, one by one and in float64."""
    cases = broken = 0
    for seed in range(20):
        torch.manual_seed(seed)
        student = opu.students.mlp(2, 2, (32, 32)).eval()
        with torch.no_grad():
            for weight in student.parameters():
                weight.mul_(3)
        rows, fresh = torch.randint(2, (2, 400, 2)).float()
        teacher = opu.teachers.Ensemble([nn.Linear(2, 2), nn.Linear(2, 2)])
        cascade = opu.Cascade(student, teacher, 0.05, num_particles=2).calibrate(rows)
        alone = float(np.mean([np.asarray(cascade(row[None]).by_teacher)[0] for row in fresh[:200]]))
        student.double()
        cases, broken = cases + 2, broken + int(alone > 0.1) + int(cascade(fresh).fraction > 0.1)
    return [Outcome("a cascade keeps its budget where rows tie", cases, broken)]


def budgets() -> list[Outcome]:
    """A budget of 5 % is kept with every score where rows tie, in small batches and all at once, however small the spread."""
    makers: dict[str, Callable[[float], Student]] = {"Dirichlets": _dirichlets}
    if logistic_normals() is not None:
        makers["logistic-normals"] = _logistic_normals
    found = []
    for name, make in makers.items():
        cases = broken = 0
        for seed, shift, score in product(range(3), (0.0, -4.0, -9.0), measures.MEASURES):
            torch.manual_seed(seed)
            over = _over_budget(make(shift), score)
            cases, broken = cases + len(over), broken + sum(over)
        found.append(Outcome(f"a cascade keeps its budget with every score, {name}", cases, broken))
    return found


@torch.no_grad()
def _dirichlets(shift: float) -> Student:
    """A student with the spread of its distributions smaller by the exponential of ``shift``."""
    student = opu.students.mlp(3, 3, (32, 32)).eval()
    for weight in student.parameters():
        weight.mul_(3)
    list(student.precision_net.parameters())[-1].sub_(2 * shift)
    return student


@torch.no_grad()
def _logistic_normals(shift: float) -> Student:
    """The same of logistic-normals: three scales, and factors."""
    student = opu.students.mlp(3, 3, (16,), family="logistic_normal").eval()
    list(student.mean_net.parameters())[-2].mul_(6)
    weight, bias = list(student.precision_net.parameters())[-2:]
    bias[:3] += shift
    weight[3:] *= math.exp(shift)
    bias[3:] *= math.exp(shift)
    return student


def _over_budget(student: Student, score: str) -> list[bool]:
    """Whether more than twice the budget is spent on rows in small batches, and on all at once."""
    rows, fresh = torch.randint(2, (2, 700, 3)).float()
    if score == "novelty":
        opu.calibrate(student, torch.randint(2, (200, 3)).float())
    teacher = opu.teachers.Ensemble([nn.Linear(3, 3), nn.Linear(3, 3)])
    cascade = opu.Cascade(student, teacher, 0.05, score=score, num_particles=2).calibrate(rows)
    few = float(np.mean([np.asarray(cascade(batch).by_teacher).mean() for batch in fresh.split(7)]))
    return [few > 0.1, cascade(fresh).fraction > 0.1]


ATTACKS = (unsigned, lookups, whole_numbers, cascades, budgets)
