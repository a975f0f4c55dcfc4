"""What teachers and functions of a user's own say of a few inputs with fixed random numbers.

A resumed run compares it, since what a function computes may depend on anything: numbers that it closes over, attributes,
its code.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from opu.batches import Batch, each, first_tensor, num_rows, shapes, tensors
from opu.distillation.fingerprint import are_close, setting
from opu.distillation.recipe import Recipe
from opu.distributions import Dirichlet, LogisticNormal, SimplexDistribution
from opu.inputs import InMemory, Source
from opu.inputs.random_state import fixed_random_state
from opu.objectives import BaseObjective, WeightedSum
from opu.teachers import BaseTeacher

_MOST_NUMBERS = 64  # that are kept of what is said
_FAILED: list[float] = []


def of_answers(
    teacher: BaseTeacher, source: Source, example: Batch, recipe: Recipe, num_classes: int, family: str = "dirichlet"
) -> dict[str, dict[str, Any]]:
    """What a teacher, and functions and objectives of a user's own, say of a few inputs with fixed random numbers.

    Of rows in memory the first ones are asked about, otherwise made-up ones; a teacher is not asked about made-up tokens.
    Nothing is kept of what is said otherwise the second time, nor of a teacher that knows certain inputs alone.
    """
    numbers = all(t.is_floating_point() for t in tensors(example).values())
    with fixed_random_state(0):
        x = example if isinstance(source, InMemory) else each(_made_up, example)
    place, found = f"for inputs of shape {shapes(x)}", dict[str, dict[str, Any]]()
    if callable(recipe.augment):
        transform = recipe.augment
        found["augment"] = {f"values {place}": _twice(lambda: torch.cat([*map(torch.flatten, _parts(transform, x))]))}
    if isinstance(source, InMemory) or (numbers and not teacher.known_inputs_only):
        found["particles"] = {f"particles {place}": _twice(lambda: teacher(x, 4))}
    if recipe.objective is not None and not isinstance(recipe.objective, str):
        objective = recipe.make_objective(num_classes)
        found["objective"] = _of_objective(objective, x, num_classes, family, place)
    return {what: {name: said for name, said in each.items() if said != _FAILED} for what, each in found.items()}


def _of_objective(objective: BaseObjective, x: Batch, num_classes: int, family: str, place: str) -> dict[str, Any]:
    """Settings of the terms of an objective, its values, and their gradients, in which alone a bound may show.

    A copy is asked, since an objective may build and train networks of its own. What those say is not kept: they come from
    the checkpoint. Neither are settings that the questions change.
    """
    try:
        asked, is_copy = copy.deepcopy(objective), True
    except Exception:  # of any kind: it may hold a file or a lock
        asked, is_copy = objective, False
    before = _settings(asked)

    def values(numbers: Tensor, others: Tensor) -> Tensor:
        return asked(x, others[:, :, 1:].log_softmax(-1), _some_prediction(numbers, family))

    def draw() -> Tensor:
        return torch.randn(5, num_rows(x), num_classes + 1).to(first_tensor(x).device)

    def ask() -> Tensor:
        logits = draw()
        return values(logits[0], logits[1:])

    def ask_gradients() -> Tensor:
        logits = draw()
        numbers = logits[0].clone().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(values(numbers, logits[1:]).sum(), numbers)[0]

    said: dict[str, Any] = {f"values {place}": _twice(ask)}
    if is_copy and _FAILED not in said.values():
        said[f"gradients {place}"] = _twice(ask_gradients)
    if asked.state_dict():
        said = dict.fromkeys(said)
    after = _settings(asked)
    return {name: value if after.get(name) == value else None for name, value in before.items()} | said


def _settings(objective: BaseObjective) -> dict[str, str]:
    """Numbers and texts among the attributes of each term; what a checkpoint restores is no setting."""
    terms = [term for _, term in objective.terms] if isinstance(objective, WeightedSum) else [objective]
    found = {}
    for number, term in enumerate(terms, 1):
        left_out = {"training", *term.state_dict()}
        for name, value in getattr(term, "__dict__", {}).items():
            said = setting(value)
            if said is not None and name[0] != "_" and name not in left_out:
                found[name if len(terms) == 1 else f"{name} of term {number}"] = said
    return found


def _some_prediction(numbers: Tensor, family: str) -> SimplexDistribution:
    logits = numbers[:, 1:]
    if family == "dirichlet":
        return Dirichlet.from_logits(logits, numbers[:, 0])
    return LogisticNormal(logits, logits.flip(-1), logits.new_zeros(*logits.shape, 0))


def _parts(transform: Callable[..., Batch], x: Batch) -> Iterable[Tensor]:
    return tensors(transform(each(torch.clone, x), None)).values()


def _made_up(like: Tensor) -> Tensor:
    shape = (4, *like.shape[1:])
    made = torch.rand(shape, dtype=like.dtype) if like.is_floating_point() else torch.randint(2, shape).to(like.dtype)
    return made.to(like.device)


@torch.no_grad()
def _twice(ask: Callable[[], Tensor]) -> list[float] | None:
    """Some numbers of what is said with fixed random numbers; None if it is another thing the second time."""
    said = []
    for _ in range(2):
        with fixed_random_state(0):
            try:
                values = ask().double().cpu().reshape(-1)
            except Exception:  # of any kind: a user's function may want other inputs than these
                return _FAILED
        step = -(-len(values) // _MOST_NUMBERS)
        said.append([float(f"{value:.6g}") for value in values[::step].clamp(-1e30, 1e30).tolist()])
    return said[0] if are_close(*said) else None
