"""Attacks with inputs of unusual types: unsigned integers, negative tokens, and rows that tie in a cascade."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import opu
from opu.export import write
from reproduction.reliability.attack import Outcome, calibrated, refused
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


class _Tokens(nn.Module):
    """A classifier of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.drop, self.last = nn.Embedding(200, 8), nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.last(self.drop(self.words(tokens).mean(1)))
        return logits


def tokens() -> list[Outcome]:
    """A row with a negative token has the least p-value in a file, since the library refuses it."""
    cases = broken = 0
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randint(200, (200, 5))
        student = opu.students.from_teacher(opu.teachers.MCDropout(_Tokens()), example=x)
        opu.calibrate(student, x)
        with tempfile.TemporaryDirectory() as folder:
            runtime = session(write(student, Path(folder) / "s.onnx", x[:8]).path)
        rows = x[:40].numpy().copy()
        rows[:, seed] = np.where(np.arange(40) % 2, -1, -100)
        names = [output.name for output in runtime.get_outputs()]  # type: ignore[attr-defined]
        found = dict(zip(names, runtime.run(None, {"inputs": rows}), strict=True))  # type: ignore[attr-defined]
        cases, broken = cases + len(rows), broken + int((~(found["novelty_p_value"] < 0.01)).sum())
    return [Outcome("negative tokens are novel, ONNX", cases, broken)]


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


def small_changes() -> list[Outcome]:
    """A run is not resumed with a teacher function that differs by two percent."""
    torch.manual_seed(0)
    x, net = torch.randn(100, 4), nn.Linear(4, 3)

    def run(scale: float, noise: float, folder: str, *, resume: bool) -> None:
        def teacher(x: Tensor, num_particles: int) -> Tensor:
            logits: Tensor = scale * net(x) + noise * torch.randn(num_particles, len(x), 3)
            return logits.log_softmax(-1)

        torch.manual_seed(1)
        recipe = opu.Recipe(steps=4, num_particles=4)
        student = opu.students.mlp(4, 3, (8,))
        opu.distill(teacher, student, x, recipe=recipe, out=folder, resume=resume, progress=False)

    changes, broken = ((1.02, 0.1), (0.98, 0.1), (1.0, 0.105), (1.0, 0.095)), 0
    for scale, noise in changes:
        with tempfile.TemporaryDirectory() as place:
            folder = f"{place}/run"
            run(1.0, 0.1, folder, resume=False)
            broken += not refused(lambda: run(scale, noise, folder, resume=True))  # noqa: B023 - called here
    return [Outcome("a run is not resumed with a teacher that differs by a few percent", len(changes), broken)]


ATTACKS = (unsigned, tokens, cascades, small_changes)
