"""Attacks on runs that are resumed with something else than they began with."""

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import opu
from opu import objectives
from reproduction.reliability.attack import Outcome, refused


def resumed() -> list[Outcome]:
    """A run is not resumed with other inputs, fewer rows, another teacher or other held-out inputs."""
    torch.manual_seed(0)
    x, other = torch.randn(300, 4), torch.randn(300, 4)
    nets = [nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(p), nn.Linear(16, 3)) for p in (0.5, 0.5, 0.2)]
    nets[2].load_state_dict(nets[0].state_dict())
    changes = {"x": other, "fewer": x[:-1], "moved": x.roll(1, 0), "one": x + 1e-3 * (torch.arange(300) == 7)[:, None]}
    given: list[tuple[nn.Module, Tensor, object]] = [
        *((nets[0], rows, 0.1) for rows in changes.values()),
        (nets[1], x, 0.1),
        (nets[2], x, 0.1),
    ]
    given += [(nets[0], x, 0.2), (nets[0], x, other[:30])]
    broken = 0
    for net, rows, held_out in given:
        with tempfile.TemporaryDirectory() as folder:
            _distil(nets[0], x, 0.1, folder, resume=False)
            broken += not refused(lambda n=net, r=rows, h=held_out, f=folder: _distil(n, r, h, f, resume=True))  # type: ignore[misc]
    return [Outcome("a run is not resumed with other inputs or another teacher", len(given), broken)]


class _Hidden(nn.Module):
    """A network that multiplies its inputs by what no state_dict holds."""

    def __init__(self, kind: str, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
        held = {"tensor": torch.tensor(factor), "list": [factor], "whole number": int(factor)}
        self.kind, self.factor = kind, held.get(kind)
        self.register_buffer("scale", torch.tensor(factor), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        factor: Any = self.scale if self.kind == "buffer" else self.factor
        found: Tensor = self.layers(x * (factor[0] if isinstance(factor, list) else factor))
        return found


def hidden() -> list[Outcome]:
    """A run is not resumed with a teacher that differs in what no weight shows."""
    torch.manual_seed(0)
    x, broken, kinds = torch.randn(300, 4), 0, ("buffer", "tensor", "list", "whole number")
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            _distil(_Hidden(kind, 1.0), x, 0.1, folder, resume=False)
            other = _Hidden(kind, 3.0)
            broken += not refused(lambda n=other, f=folder: _distil(n, x, 0.1, f, resume=True))  # type: ignore[misc]
    return [Outcome("a run is not resumed with a teacher that differs in no weight", len(kinds), broken)]


def _distil(net: nn.Module, x: Tensor, held_out: object, folder: str, *, resume: bool) -> None:
    recipe = opu.Recipe(epochs=2, num_particles=4)
    student = opu.students.mlp(4, 3, (8,))
    opu.distill(
        opu.teachers.MCDropout(net),
        student,
        x,
        recipe=recipe,
        held_out=held_out,
        out=folder,
        resume=resume,
        progress=False,
    )


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


def settings() -> list[Outcome]:
    """A run is not resumed with another augmentation of tokens, or another optimiser from a function."""
    from opu.augment import tokens

    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(30, 4), nn.Flatten(), nn.Dropout(0.3), nn.Linear(20, 3))
    x = torch.randint(30, (60, 5))

    def run(choice: tuple[Any, Any], folder: str, *, resume: bool) -> None:
        augment, optimizer = choice
        teacher = opu.teachers.MCDropout(net)
        recipe = opu.Recipe(steps=3, batch_size=16, num_particles=4, augment=augment, optimizer=optimizer)
        student = opu.students.from_teacher(teacher, example=x)
        opu.distill(teacher, student, x, recipe=recipe, out=folder, resume=resume, progress=False)

    def own(token: int) -> Any:
        return lambda batch, _generator: torch.where(batch % 2 == 0, token, batch)

    def by(kind: Any, **options: float) -> Any:
        return lambda parameters: kind(parameters, 1e-3, **options)

    adam = torch.optim.Adam
    changes = (
        ((tokens.masked(29), by(adam)), (tokens.masked(28), by(adam))),
        ((tokens.masked(29), by(adam)), (tokens.masked(29, most=0.4), by(adam))),
        ((tokens.masked(29), by(adam)), (tokens.replaced(30), by(adam))),
        ((own(3), by(adam)), (own(4), by(adam))),
        ((tokens.masked(29), by(adam)), (tokens.masked(29), by(torch.optim.RAdam))),
    )
    broken = 0
    for first, second in changes:
        with tempfile.TemporaryDirectory() as place:
            folder = f"{place}/run"
            run(first, folder, resume=False)
            broken += not refused(lambda: run(second, folder, resume=True))  # noqa: B023 - called here
    return [Outcome("a run is not resumed with another augmentation or optimiser", len(changes), broken)]


class _Weighted(objectives.BaseObjective):
    """An objective of a user's own, with an attribute."""

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.inner = objectives.parse("kl")

    def __call__(self, x: Any, log_particles: Tensor, q: Any) -> Tensor:
        found: Tensor = self.weight * self.inner(x, log_particles, q)
        return found


def attributes() -> list[Outcome]:
    """A run is not resumed with an objective of other attributes, another batch size or an optimiser of other settings."""
    torch.manual_seed(0)
    x, net = torch.randn(120, 4), nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))

    def weighted(weight: float) -> Any:
        return lambda *given: _Weighted(weight)(*given)

    def loader(size: int, *, shuffle: bool) -> Any:
        return DataLoader(TensorDataset(x), size, shuffle=shuffle)

    def by(kind: Any, **options: Any) -> Any:
        return lambda parameters: kind(parameters, **options)

    def run(inputs: Any, options: dict[str, Any], folder: str, *, resume: bool) -> None:
        torch.manual_seed(1)
        recipe = opu.Recipe(**{"epochs": 2, "num_particles": 4, **options})
        student = opu.students.mlp(4, 3, (8,))
        opu.distill(
            opu.teachers.MCDropout(net), student, inputs, recipe=recipe, out=folder, resume=resume, progress=False
        )

    kinds: list[Callable[[float], Any]] = [
        _Weighted,
        weighted,
        lambda weight: 2.0 * _Weighted(weight),
        lambda weight: objectives.parse("kl") + weighted(weight),
        lambda weight: objectives.parse("kl") + _Weighted(weight),
    ]
    adam, sgd = torch.optim.Adam, partial(by, torch.optim.SGD, lr=0.01)
    optimisers = (
        (by(adam), by(adam, betas=(0.9, 0.9))),
        (by(adam), by(adam, weight_decay=0.1)),
        (sgd(momentum=0.9), sgd(momentum=0.5)),
        (sgd(momentum=0.9), sgd(momentum=0.9, weight_decay=0.1)),
        (sgd(momentum=0.9), sgd(momentum=0.9, nesterov=True)),
    )
    changes: dict[str, list[tuple[tuple[Any, dict[str, Any]], tuple[Any, dict[str, Any]]]]] = {
        "an objective of other attributes": [
            ((x, {"objective": kind(1.0)}), (x, {"objective": kind(3.0)})) for kind in kinds
        ],
        "a loader of another batch size": [
            ((loader(34, shuffle=shuffle), {}), (loader(size, shuffle=shuffle), {}))
            for shuffle in (False, True)
            for size in (33, 35)
        ],
        "an optimiser function of other settings": [
            ((x, {"optimizer": first}), (x, {"optimizer": second})) for first, second in optimisers
        ],
    }
    return [
        Outcome(f"a run is not resumed with {what}", len(each), _resumed(run, each)) for what, each in changes.items()
    ]


def _resumed(run: Any, changes: list[tuple[tuple[Any, ...], tuple[Any, ...]]]) -> int:
    """How many runs go on with something else than they began with."""
    broken = 0
    for first, second in changes:
        with tempfile.TemporaryDirectory() as place:
            run(*first, f"{place}/run", resume=False)
            broken += not refused(partial(run, *second, f"{place}/run", resume=True))
    return broken


ATTACKS = (resumed, hidden, small_changes, settings, attributes)
