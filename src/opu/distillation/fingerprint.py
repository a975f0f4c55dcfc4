"""What a run began with: inputs, teacher, held-out inputs and the student's layers. A resumed run must have the same.

What teachers and functions of a user's own say of a few inputs is asked in :mod:`opu.distillation.answers`, and what their
optimisers are set to in :mod:`opu.distillation.optimizers`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from opu.digests import Digest, layers_of
from opu.distillation.recipe import Plan
from opu.files import plain
from opu.novelty import Novelty

Fingerprint = dict[str, dict[str, Any]]
_WORDS = {
    "student": ("student", "this one differs in its"),
    "inputs": ("inputs", "these differ in their"),
    "held_out": ("held-out inputs", "these differ in their"),
    "teacher": ("teacher", "this one differs in its"),
    "particles": ("teacher", "this one differs in its"),
    "objective": ("objective", "this one differs in its"),
    "augment": ("augmentation", "this one differs in its"),
    "optimizer": ("optimiser", "this one differs in its"),
}
_TOLERANCE = 1e-3  # by how much the numbers that a teacher or a function says may differ
_MOST_PARTS = 16  # of a sequence that is a setting
_LATER = ("batch size",)  # names that folders of older versions do not hold
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


def setting(value: Any) -> str | None:
    """A number, a text, None or a short sequence of these in words, the same in every process; None for all else."""
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1):
        value = value.item()
    if isinstance(value, list | tuple) and len(value) <= _MOST_PARTS:
        parts = [setting(part) for part in value]
        return None if None in parts else f"({', '.join(map(str, parts))})"
    if isinstance(value, float) and value.is_integer():  # 1.0 is 1
        value = int(value)
    return repr(value) if value is None or type(value) in (bool, int, float, str) else None


def are_close(before: list[float], now: list[float]) -> bool:
    """Whether two answers are the same but for rounding."""
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
            raise refusal(what, difference)


def refusal(what: str, difference: str) -> ValueError:
    """The sentence for a call that resumes a run with something else."""
    named, these = _WORDS[what]
    return ValueError(
        f"a run is resumed with the {named} it began with; {these} {difference}. Give the same {named}, or use another "
        "folder."
    )


def _difference(before: Mapping[str, Any], now: Mapping[str, Any], *, by_name: bool) -> str | None:
    """In words, what one fingerprint differs in from another; names of parts may have changed, unless they count."""
    unknown = {name for each in (before, now) for name, value in each.items() if value is None}
    unknown |= {name for name in _LATER if name not in before}
    before, now = ({name: value for name, value in each.items() if name not in unknown} for each in (before, now))
    if not by_name and sorted(map(str, before.values())) == sorted(map(str, now.values())):
        return None
    for name in [*before, *(name for name in now if name not in before)]:
        was, is_now = before.get(name, "none"), now.get(name, "none")
        if isinstance(was, list) or isinstance(is_now, list):  # inputs of another shape say nothing
            if isinstance(was, list) and isinstance(is_now, list) and not are_close(was, is_now):
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
        raise refusal("inputs", f"{name} ({now[name]} now, {before.get(name)} before)")
