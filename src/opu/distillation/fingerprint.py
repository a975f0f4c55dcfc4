"""What a run began with: inputs, teacher, held-out inputs and the student's layers. A resumed run must have the same.

Teachers and objectives are also known by what they say of a few inputs with fixed random numbers, since what a function
computes may depend on anything: numbers that it closes over, attributes, its code.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from opu.batches import Batch, each, first_tensor, num_rows, shapes, tensors
from opu.digests import Digest, layers_of
from opu.distillation.recipe import Plan, Recipe
from opu.distributions import Dirichlet, LogisticNormal, SimplexDistribution
from opu.files import plain
from opu.inputs import InMemory, Source
from opu.inputs.random_state import fixed_random_state
from opu.novelty import Novelty
from opu.objectives import BaseObjective
from opu.teachers import BaseTeacher

Fingerprint = dict[str, dict[str, Any]]
_WORDS = {
    "student": ("student", "this one differs in its"),
    "inputs": ("inputs", "these differ in their"),
    "held_out": ("held-out inputs", "these differ in their"),
    "teacher": ("teacher", "this one differs in its"),
    "particles": ("teacher", "this one differs in its"),
    "objective": ("objective", "this one differs in its"),
    "augment": ("augmentation", "this one differs in its"),
}
_MOST_NUMBERS, _TOLERANCE = 64, 1e-3  # that are kept of what a teacher says, and by how much they may differ
_FAILED: list[float] = []
HAS_STATE = (
    "this teacher gives other particles for the same random numbers: it keeps a state of its own, which no checkpoint holds. "
    "The run goes on, but not with the particles that it would have had without the pause."
)
UNKNOWN = (
    "this run began with a version that kept no fingerprints, so nobody can tell whether its inputs, held-out inputs and "
    "teacher are the same now; make sure that they are."
)


def of_student(student: nn.Module) -> dict[str, Any]:
    """Layers and types of a student; its weights are restored, so they need not be the same."""
    digest = Digest()
    digest.add_text("layers", layers_of(student, without=Novelty))
    types = sorted({str(w.dtype).removeprefix("torch.") for w in student.parameters()})
    return {"type of weights": ", ".join(types), "layers": digest.text()}


def of_answers(
    teacher: BaseTeacher, source: Source, example: Batch, recipe: Recipe, num_classes: int, family: str = "dirichlet"
) -> dict[str, dict[str, Any]]:
    """What a teacher, and functions of a user's own, say of a few inputs with fixed random numbers.

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
    if recipe.objective is not None and not isinstance(recipe.objective, str | BaseObjective):
        objective = recipe.make_objective(num_classes)

        def values() -> Tensor:
            logits = torch.randn(5, num_rows(x), num_classes + 1).to(first_tensor(x).device)
            q = _some_prediction(logits[0], family)
            return objective(x, logits[1:, :, 1:].log_softmax(-1), q)

        found["objective"] = {f"values {place}": _twice(values)}
    return {what: {name: said for name, said in each.items() if said != _FAILED} for what, each in found.items()}


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
    return said[0] if _are_close(*said) else None


def _are_close(before: list[float], now: list[float]) -> bool:
    return len(before) == len(now) and all(
        abs(a - b) <= _TOLERANCE * (1 + abs(a)) for a, b in zip(before, now, strict=True)
    )


def refuse_other(before: Mapping[str, Any], now: Fingerprint) -> None:
    """Refuse to go on with a run that began with something else.

    Args:
        before: The fingerprint of the run, from its folder. What it does not hold, or holds as None, is not compared.
        now: That of the call which resumes it.
    """
    for what in (what for what in now if what in before):
        difference = _difference(before[what], plain(now[what]), by_name=what != "teacher")
        if difference is not None:
            raise _refusal(what, difference)


def _refusal(what: str, difference: str) -> ValueError:
    named, these = _WORDS[what]
    return ValueError(
        f"a run is resumed with the {named} it began with; {these} {difference}. Give the same {named}, or use another "
        "folder."
    )


def _difference(before: Mapping[str, Any], now: Mapping[str, Any], *, by_name: bool) -> str | None:
    """In words, what one fingerprint differs in from another; names of parts may have changed, unless they count."""
    unknown = {name for each in (before, now) for name, value in each.items() if value is None}
    before, now = ({name: value for name, value in each.items() if name not in unknown} for each in (before, now))
    if not by_name and sorted(map(str, before.values())) == sorted(map(str, now.values())):
        return None
    for name in [*before, *(name for name in now if name not in before)]:
        was, is_now = before.get(name, "none"), now.get(name, "none")
        if isinstance(was, list) or isinstance(is_now, list):  # inputs of another shape say nothing
            if isinstance(was, list) and isinstance(is_now, list) and not _are_close(was, is_now):
                return name
        elif was != is_now:
            digests = _is_digest(was) or _is_digest(is_now)
            return name if digests else f"{name} ({is_now} now, {was} before)"
    return None


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 32 and all(each in "0123456789abcdef" for each in value)


def refuse_other_weights(before: Mapping[str, Tensor], student: nn.Module) -> None:
    """Refuse a student whose weights have other names, shapes or types than those of a checkpoint."""
    later = [f"{name}." for name, layer in student.named_modules() if isinstance(layer, Novelty)]  # from a former run
    now = {name: w for name, w in student.state_dict().items() if not any(map(name.startswith, later))}
    for name in [*before, *(name for name in now if name not in before)]:
        was, is_now = before.get(name), now.get(name)
        if was is None or is_now is None or was.shape != is_now.shape or was.dtype != is_now.dtype:
            raise ValueError(
                f"a run is resumed with a student of the same layers; its weight {name} was {_described(was)} and is "
                f"{_described(is_now)} now. Build the student as before, or use another folder."
            )


def _described(weight: Tensor | None) -> str:
    if weight is None:
        return "not there"
    return f"{str(weight.dtype).removeprefix('torch.')} of shape {tuple(weight.shape)}"


def refuse_other_plan(before: Mapping[str, int] | None, plan: Plan) -> None:
    """Refuse inputs that give another number of steps than those that the run began with; old checkpoints do not say it."""
    now = plan.numbers()
    if before is not None and dict(before) != now:
        name = next(name for name in now if before.get(name) != now[name])
        raise _refusal("inputs", f"{name} ({now[name]} now, {before.get(name)} before)")
