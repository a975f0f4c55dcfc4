"""From what a user gives to what the loop needs: checked first, without a trace, and split afterwards."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opu.augment import Transform
from opu.checks import check_particles, check_randomness, first_line
from opu.devices import device_of
from opu.distillation.random_state import random_state, restore_random_state
from opu.distillation.recipe import Plan, Recipe
from opu.distillation.state import HeldOut
from opu.distributions.dirichlet import Dirichlet
from opu.inputs import Rows, as_rows
from opu.objectives import BaseObjective
from opu.students import BaseStudent, as_student
from opu.teachers import BaseTeacher, ParticleBank, Teacher, as_teacher


@dataclass(frozen=True)
class Prepared:
    """Teacher, student, inputs and recipe that fit together; nothing is split, written or trained yet."""

    teacher: BaseTeacher
    student: BaseStudent
    rows: Rows
    recipe: Recipe
    objective: BaseObjective
    held_out: Any
    settings: dict[str, Any]

    def split(self) -> "Split":
        """Hold inputs out, and draw the particles that stay the same. This is where random numbers begin."""
        start, recipe, teacher = random_state(), self.recipe, self.teacher
        device = device_of(self.student)
        rows, kept = _hold_out(self.rows, self.held_out)
        kept = None if kept is None else kept.to(device)
        transform = recipe.make_transform(teacher, rows.take(torch.arange(1)))
        augment = _augmenter(transform, recipe.augmented_fraction)
        judge = HeldOut(teacher, kept, augment, recipe.num_particles)
        if recipe.bank is not None:
            teacher, rows = _banked(teacher, rows, transform, recipe.bank)
            augment = _augmenter(None, 0.0)
        return Split(teacher, rows, augment, kept, judge, Plan.of(recipe, len(rows)), start)


@dataclass(frozen=True)
class Split:
    """What a run reads: inputs to train on and how to augment them, inputs to judge by, and the plan over them."""

    teacher: BaseTeacher
    rows: Rows
    augment: Callable[[Tensor], Tensor]
    held_out: Tensor | None
    judge: HeldOut
    plan: Plan
    random_at_start: dict[str, Any]


def prepare(teacher: Teacher, student: nn.Module, inputs: Any, recipe: Recipe, held_out: Any) -> Prepared:
    """Check everything that can be checked before anything is changed."""
    if not isinstance(recipe, Recipe):
        raise ValueError(f"recipe must be an opu.Recipe, such as opu.Recipe(epochs=10); got {type(recipe).__name__}.")
    ours, rows = as_student(student), as_rows(inputs)
    device = device_of(ours)
    if recipe.cuda_graph and device.type != "cuda":
        raise ValueError(f"cuda_graph=True needs a student on a CUDA device; this one is on {device}. Leave it out.")
    if isinstance(held_out, float | int) and not 0 <= held_out < 1:
        raise ValueError(f"held_out must be a fraction of the inputs from 0 up to 1, or inputs; got {held_out}.")
    ours.parameter_groups(recipe.updates)
    bound = as_teacher(teacher).bind(rows.batches())
    num_classes = _check_agreement(bound, ours, rows, device)
    if not isinstance(held_out, float | int):
        shapes = [tuple(each.take(torch.arange(1)).shape[1:]) for each in (as_rows(held_out), rows)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"held_out must have rows like the inputs, of shape {shapes[1]}; got {shapes[0]}.")
    ours.saw(rows.take(torch.arange(1)))
    # An optimiser keeps its state in another form on a GPU, so a run goes on where it began.
    settings = recipe.settings(num_classes) | {"link": ours.link_name(), "device": device.type}
    return Prepared(bound, ours, rows, recipe, recipe.make_objective(num_classes), held_out, settings)


@torch.no_grad()
def _check_agreement(teacher: BaseTeacher, student: BaseStudent, rows: Rows, device: torch.device) -> int:
    """Ask both about a few rows, restore the random state, and return the number of classes."""
    x = rows.take(torch.arange(min(len(rows), 8))).to(device)
    state, mode = random_state(), student.training
    student.eval()
    try:
        q = student(x)
    except RuntimeError as error:
        raise ValueError(f"the student cannot read inputs of shape {tuple(x.shape)}: {error}.") from error
    finally:
        student.train(mode)
    if not isinstance(q, Dirichlet):
        raise ValueError(
            f"a student must predict a Dirichlet for each input; this one gives a {type(q).__name__}. Make one with "
            "opu.students.from_teacher(teacher)."
        )
    try:
        log_particles = teacher(x, 4)
    except TypeError as error:
        raise ValueError(
            f"a teacher is called as teacher(x, num_particles), which failed ({first_line(error)}). For a network with "
            "dropout use opu.teachers.MCDropout(net)."
        ) from error
    check_particles(log_particles, num_rows=len(x), num_classes=q.num_classes)
    check_randomness(log_particles)
    restore_random_state(state)
    return int(q.num_classes)


def _hold_out(rows: Rows, held_out: Any) -> tuple[Rows, Tensor | None]:
    if not isinstance(held_out, float | int):
        return rows, torch.cat(list(as_rows(held_out).batches()))
    count = int(held_out * len(rows))
    if count == 0:
        return rows, None
    order = torch.randperm(len(rows))
    return rows.subset(order[count:]), rows.take(order[:count])


def _augmenter(transform: Transform | None, fraction: float) -> Callable[[Tensor], Tensor]:
    def augment(x: Tensor) -> Tensor:
        count = round(fraction * len(x))
        if transform is None or count == 0:
            return x
        # Rows come shuffled, so the last ones are a random choice; the transformation may look at the whole batch.
        return torch.cat([x[:-count], transform(x, None)[-count:]])

    return augment


@torch.no_grad()
def _banked(teacher: BaseTeacher, rows: Rows, transform: Transform | None, size: int) -> tuple[BaseTeacher, Rows]:
    """The inputs, and the same number of augmented ones, with particles that are drawn once."""
    parts = list(rows.batches())
    if transform is not None:
        parts += [transform(part, None) for part in parts]
    particles = torch.cat([teacher(part, size).cpu() for part in parts], 1)
    x = torch.cat(parts)
    return ParticleBank(particles, x, outputs="log_probabilities"), Rows(x)
