"""From what a user gives to what the loop needs: checked first, without a trace, and split afterwards."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from opu.augment import Transform
from opu.batches import Batch, cat, describe, each, num_rows, shapes, take, tensors, to_device
from opu.checks import check_particles, check_randomness, first_line
from opu.devices import device_of
from opu.distillation.answers import of_answers
from opu.distillation.fingerprint import Fingerprint, of_student
from opu.distillation.recipe import Plan, Recipe
from opu.distillation.state import HeldOut
from opu.distributions import SimplexDistribution
from opu.inputs import Features, Feed, InMemory, Source, as_source
from opu.inputs.random_state import random_state
from opu.objectives import BaseObjective
from opu.students import BaseStudent, as_student
from opu.students.reading import conversion, explained, trial
from opu.students.start import shares_parameters
from opu.teachers import BaseTeacher, ParticleBank, Teacher, as_teacher
from opu.teachers.fingerprints import fingerprint as of_teacher
from opu.teachers.fingerprints import unchanged

_MORE_ROWS, _MORE_PARTICLES = 1000, 32  # that are asked about where the first particles are all the same


@dataclass(frozen=True)
class Prepared:
    """Teacher, student, inputs and recipe that fit together; nothing is split, written or trained yet."""

    teacher: BaseTeacher
    student: BaseStudent
    source: Source
    example: Batch
    recipe: Recipe
    objective: BaseObjective
    held_out: float | int | list[Batch]
    settings: dict[str, Any]
    fingerprint: Fingerprint | None

    def split(self) -> "Split":
        """Hold inputs out, and draw the particles that stay the same. This is where random numbers begin."""
        start, recipe, teacher, source = random_state(), self.recipe, self.teacher, self.source
        fraction = 0.0 if isinstance(self.held_out, list) else float(self.held_out)
        source, kept = source.hold_out(fraction, recipe.steps)
        kept = self.held_out if isinstance(self.held_out, list) else kept
        kept = [to_device(part, device_of(self.student)) for part in kept]
        transform = recipe.make_transform(teacher, take(self.example, slice(0, 1)))
        rows = recipe.batch_size if source.shuffled else num_rows(self.example)
        if transform is not None and isinstance(recipe.augment, str) and rows == 1:
            warnings.warn(
                "batches of one row cannot be augmented, since the default augmentation compares the rows of a batch; use "
                "larger batches, or augment=None.",
                stacklevel=3,
            )
        augment = _augmenter(transform, recipe.augmented_fraction, shuffled=source.shuffled)
        judge = HeldOut(teacher, kept, augment, recipe.num_particles)
        if recipe.bank is not None:
            teacher, source = _banked(teacher, source, transform, recipe.bank)
            augment = _augmenter(None, 0.0)
        batch_size = min(recipe.batch_size, len(source)) if hasattr(source, "__len__") else recipe.batch_size
        plan = Plan.of(recipe, source.num_batches(batch_size))
        seen = source.take(torch.arange(min(200, len(source)))) if isinstance(source, InMemory) else None
        return Split(teacher, source.feed(batch_size), augment, kept, judge, plan, start, seen)


@dataclass(frozen=True)
class Split:
    """What a run reads: batches to train on and how to augment them, inputs to judge by, and the plan over them."""

    teacher: BaseTeacher
    feed: Feed
    augment: Callable[[Batch], Batch]
    held_out: list[Batch]
    judge: HeldOut
    plan: Plan
    random_at_start: dict[str, Any]
    seen: Batch | None


def prepare(
    teacher: Teacher, student: nn.Module, inputs: Any, recipe: Recipe, held_out: Any, *, compare: bool = False
) -> Prepared:
    """Check everything that can be checked before anything is changed; to compare a run with another, take fingerprints."""
    if not isinstance(recipe, Recipe):
        raise ValueError(f"recipe must be an opu.Recipe, such as opu.Recipe(epochs=10); got {type(recipe).__name__}.")
    ours, asked = as_student(student), as_teacher(teacher)
    device = device_of(ours)
    if recipe.cuda_graph and device.type != "cuda":
        raise ValueError(f"cuda_graph=True needs a student on a CUDA device; this one is on {device}. Leave it out.")
    held_out = held_out.item() if isinstance(held_out, np.number) else held_out
    if held_out is None or isinstance(held_out, str):
        raise ValueError(f"held_out must be a fraction of the inputs, such as 0.1, or inputs; got {held_out!r}.")
    if isinstance(held_out, float | int) and not 0 <= held_out < 1:
        raise ValueError(f"held_out must be a fraction of the inputs from 0 up to 1, or inputs; got {held_out}.")
    if shares_parameters(teacher, ours):
        raise ValueError(
            "the student shares weights with its teacher, so distilling would change the teacher; give the student a copy of "
            "the network, copy.deepcopy(net), or make it with opu.students.from_teacher(teacher)."
        )
    _check_weights(ours)
    ours.parameter_groups(recipe.updates)
    features = Features(ours.reads())
    source = as_source(inputs, features, batch_size=recipe.batch_size, endless=recipe.steps is not None)
    _check_source(source, asked, recipe)
    made_of = of_teacher(asked) if compare else {}  # before it is first called
    example = source.example()
    convert = conversion(ours, example)
    source, example = source.converted(convert), convert(example)
    bound = asked.bind(source.batches())

    def more() -> Batch:
        rows = source.take(torch.arange(min(_MORE_ROWS, len(source)))) if isinstance(source, InMemory) else example
        return to_device(rows, device)

    num_classes = _check_agreement(bound, ours, to_device(example, device), more)
    judged_by: dict[str, Any] = {"fraction": held_out}
    if not isinstance(held_out, float | int):
        theirs = as_source(held_out, features).converted(convert)
        judged_by = theirs.fingerprint() if compare else {}
        held_out = _given(theirs, example)
    ours.saw(take(example, slice(0, 1)), [str(name) for name in inputs.columns] if hasattr(inputs, "columns") else None)
    # An optimiser keeps its state in another form on a GPU, so a run goes on where it began.
    family = ours.family_name()
    settings = recipe.settings(num_classes, family) | {"link": ours.link_name(), "device": device.type}
    settings |= {"family": family} if family != "dirichlet" else {}
    parts: Fingerprint | None = None
    if compare:
        parts = {"student": of_student(ours), "inputs": source.fingerprint(), "held_out": judged_by}
        parts |= {"teacher": unchanged(asked, made_of)}
        parts |= of_answers(bound, source, to_device(example, device), recipe, num_classes, family)
        if hasattr(inputs, "columns"):
            parts["inputs"]["columns"] = ", ".join(map(str, inputs.columns))
    objective = recipe.make_objective(num_classes, family)
    return Prepared(bound, ours, source, example, recipe, objective, held_out, settings, parts)


def _check_weights(student: BaseStudent) -> None:
    """Refuse a student that cannot learn."""
    weights = list(student.parameters())
    if not any(w.requires_grad for w in weights):
        raise ValueError("the student has no weights that learn; give them gradients: student.requires_grad_(True).")
    if any(w.dtype == torch.float16 for w in weights):
        raise ValueError(
            "a student in float16 cannot be distilled, since its steps are too small for that type; distil it in float32 or "
            "bfloat16, and convert it afterwards: student.half()."
        )


def _check_source(source: Source, teacher: BaseTeacher, recipe: Recipe) -> None:
    """Refuse what cannot be done with a loader or a stream."""
    if isinstance(teacher, ParticleBank) and not teacher.knows_inputs and not source.in_order:
        raise ValueError(
            "this bank's particles belong to inputs in a certain order, and these inputs may come in another; give them to "
            "the bank, ParticleBank(particles, inputs), or distil on a tensor or a dataset."
        )
    by_number = hasattr(source, "__len__")
    if recipe.cuda_graph and not by_number:
        raise ValueError(
            "cuda_graph=True needs batches of one size; give a tensor or a dataset in place of a loader or stream."
        )
    if recipe.bank is not None and not by_number and not source.in_order:
        raise ValueError(
            "bank= keeps particles for inputs that come again; give a tensor, a dataset or a loader that does not shuffle."
        )


def _check_agreement(teacher: BaseTeacher, student: BaseStudent, x: Batch, more: Callable[[], Batch]) -> int:
    """Ask both about a few rows, and return the number of classes."""
    with trial(student):
        try:
            q = student(x)
        except (RuntimeError, TypeError, AttributeError, KeyError, IndexError) as error:
            raise explained(student, x, error) from error
        if not isinstance(q, SimplexDistribution):
            raise ValueError(
                f"a student must predict a Dirichlet for each input; this one gives a {type(q).__name__}. Make one with "
                "opu.students.from_teacher(teacher)."
            )
        if len(q) != num_rows(x):
            raise ValueError(
                f"a student must predict one Dirichlet for each of the {num_rows(x)} inputs; this one gives {len(q)}. A "
                "single example needs a leading axis: x.unsqueeze(0)."
            )
        if not torch.allclose(q.mean, student(x).mean, rtol=1e-2, atol=1e-3, equal_nan=True):
            raise ValueError(
                "a student must predict the same for the same inputs in evaluation mode; this one draws random numbers. If "
                "its network calls dropout that is always on, F.dropout(x, p), say F.dropout(x, p, training=self.training)."
            )
        try:
            log_particles = teacher(x, 4)
        except TypeError as error:
            raise ValueError(
                f"a teacher is called as teacher(x, num_particles), which failed ({first_line(error)}). For a network with "
                "dropout use opu.teachers.MCDropout(net)."
            ) from error
        check_particles(log_particles, num_rows=num_rows(x), num_classes=q.num_classes)
        if len(log_particles) > 1 and bool((log_particles == log_particles[:1]).all()):
            # Members that vote, as trees do, agree on many inputs, and differ on others.
            check_randomness(teacher(more(), _MORE_PARTICLES))
    return int(q.num_classes)


def _given(source: Source, like: Batch) -> list[Batch]:
    """Held-out inputs that the user gave, as batches."""
    kept = [source.batch] if isinstance(source, InMemory) else list(source.batches())
    if not kept:
        raise ValueError("held_out inputs must have at least one row; got none. Give a fraction, such as 0.1, instead.")
    # Sequences may be of any length, and are longer or shorter in each batch.
    tokens = not all(t.is_floating_point() for t in tensors(like).values())
    if not tokens and shapes(kept[0]) != shapes(like):
        raise ValueError(f"held_out must have rows like the inputs, of shape {shapes(like)}; got {shapes(kept[0])}.")
    return kept


def _augmenter(transform: Transform | None, fraction: float, *, shuffled: bool = True) -> Callable[[Batch], Batch]:
    def augment(x: Batch) -> Batch:
        rows = num_rows(x)
        count = round(fraction * rows)
        if transform is None or fraction == 0:
            return x
        if count == 0 and float(torch.rand(())) < fraction * rows:  # in a batch of one row, the row now and then
            count = rows
        if count == 0:
            return x
        if not shuffled:
            x = take(x, torch.randperm(rows))
        # The last rows are now a random choice; the transformation may look at the whole batch.
        return cat([take(x, slice(0, rows - count)), take(_transformed(transform, x), slice(rows - count, None))])

    return augment


def _transformed(transform: Transform, x: Batch) -> Batch:
    """The transformation of a copy, since it may work in place."""
    try:
        changed = transform(each(torch.clone, x), None)
    except TypeError as error:
        raise ValueError(
            f"augment is called as augment(batch, generator) and must return such a batch; it failed ({first_line(error)})."
        ) from error
    if not tensors(changed) or shapes(changed) != shapes(x) or num_rows(changed) != num_rows(x):
        raise ValueError(
            f"augment must return a batch like the one that it is given, of {describe(x)}; got {describe(changed)}."
        )
    return changed


@torch.no_grad()
def _banked(
    teacher: BaseTeacher, source: Source, transform: Transform | None, size: int
) -> tuple[BaseTeacher, InMemory]:
    """The inputs, and the same number of augmented ones, with particles that are drawn once."""
    parts = list(source.batches())
    if len({shapes(part) for part in parts}) > 1:
        raise ValueError("bank= needs inputs of one shape; these come in several. Leave bank= out, or pad them alike.")
    if transform is not None:
        parts += [transform(part, None) for part in parts]
    particles = torch.cat([teacher(part, size).cpu() for part in parts], 1)
    x = cat(parts)
    return ParticleBank(particles, x, outputs="log_probabilities"), InMemory(x)
