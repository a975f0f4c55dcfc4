"""How a student is distilled: everything but the teacher, the student and the inputs."""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from opu import objectives
from opu.augment import Transform, default_transform
from opu.batches import Batch
from opu.choices import OPTIMIZERS, SCHEDULES, UPDATES, OptimizerName, Schedule, Updates, check_choice
from opu.novelty import Blend
from opu.objectives import BaseObjective, Objective, as_objective
from opu.teachers import BaseTeacher

FEWEST_EPOCHS, FEWEST_STEPS = 30, 1500  # that the default number of epochs makes
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Recipe:
    """The settings of a distillation. The defaults are the robust recipe; ``dataclasses.replace`` makes another.

    Attributes:
        objective: A sum such as ``"0.1*clipped_kl + 10*mmd"``, or an objective object. The default is that sum with one over
            the number of classes as the weight of KL, and ``"cross_entropy + 10*mmd"`` for more than fifty classes.
        num_particles: Number of fresh particles per input and step.
        epochs: Passes over the inputs. The default is 30, or more where the inputs are few, to make 1,500 steps.
        steps: Number of steps in all, in place of epochs: for a stream that does not end, or whose length is unknown.
        batch_size: Inputs per step. A loader's batches are taken as they come.
        learning_rate: The learning rate at the start.
        schedule: How the learning rate changes: ``cosine`` falls to 0, ``constant`` stays, ``steps`` falls to a tenth after
            half of the steps and to a hundredth after three quarters.
        optimizer: ``adam``, ``sgd``, or a function from parameters to an optimiser. The learning rate that the function
            gives is replaced, in all groups of parameters, by ``learning_rate`` and its schedule.
        updates: ``joint``, or ``alternating``: the mean's parameters and the precision's in turn, as in the paper.
        augment: How to make inputs wider than the data: a function from a batch and a generator to such a batch. ``"auto"``
            picks by shape (images, feature vectors) if the teacher can label new inputs, and leaves integers, such as tokens,
            and masks as they are (:mod:`opu.augment.tokens` has transformations of those); None leaves all inputs alone.
        augmented_fraction: Fraction of each batch that is augmented.
        start_from_teacher: Start the networks of an untrained student from the teacher's network if shapes agree.
        bank: Draw this number of particles per input once, and reuse them in every epoch.
        blend: What novelty is made of. The default is chosen by shape: ``opu.novelty.FOR_TABLES`` for inputs with one axis of
            features, ``opu.novelty.FOR_IMAGES`` for all others; choose the latter for flattened images.
        checkpoint_every: Steps between checkpoints. The default is one checkpoint per epoch.
        cuda_graph: Capture a whole step as one CUDA graph, several times as fast for small networks. Teacher and
            augmentation must then stay on the GPU and read no value back to the CPU; those of this library do. The
            ``sinkhorn`` objective then takes all its steps, since its test of convergence would read a value.
    """

    objective: str | Objective | None = None
    num_particles: int = 64
    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 128
    learning_rate: float = 1e-3
    schedule: Schedule = "cosine"
    optimizer: OptimizerName | MakeOptimizer = "adam"
    updates: Updates = "joint"
    augment: Transform | str | None = "auto"
    augmented_fraction: float | int = 0.5
    start_from_teacher: bool = True
    bank: int | None = None
    blend: Blend | None = None
    checkpoint_every: int | None = None
    cuda_graph: bool = False

    def __post_init__(self) -> None:
        for name in ("num_particles", "epochs", "steps", "batch_size", "bank", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, int | np.integer):
                raise ValueError(f"{name} must be a whole number; got {value!r}.")
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}.")
        if self.epochs is not None and self.steps is not None:
            raise ValueError(f"give epochs or steps, not both; got epochs={self.epochs} and steps={self.steps}.")
        if not isinstance(self.learning_rate, float | int) or not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be a positive number; got {self.learning_rate!r}.")
        if not 0 <= self.augmented_fraction <= 1:
            raise ValueError(f"augmented_fraction must lie between 0 and 1; got {self.augmented_fraction}.")
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("updates", self.updates, UPDATES)
        if isinstance(self.optimizer, str):
            check_choice("optimizer", self.optimizer, OPTIMIZERS, "Or give a function from parameters to an optimiser.")
        if isinstance(self.augment, str) and self.augment != "auto":
            raise ValueError(
                'augment must be "auto", None or a transformation, such as opu.augment.images.affine; got '
                f"{self.augment!r}."
            )
        if isinstance(self.objective, str):
            objectives.parse(self.objective)

    def make_objective(self, num_classes: int, family: str = "dirichlet") -> BaseObjective:
        """The objective for this number of classes and this family."""
        objective = objectives.default(num_classes, family) if self.objective is None else self.objective
        return objectives.parse(objective) if isinstance(objective, str) else as_objective(objective)

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimiser of some parameters."""
        if not isinstance(self.optimizer, str):
            return self.optimizer(parameters)
        parameters = list(parameters)
        # On a GPU the step may be captured as a graph, and then its counters and its rate must live there too.
        on_gpu = parameters[0].is_cuda
        rate = parameters[0].new_tensor(self.learning_rate) if on_gpu else self.learning_rate
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, rate, capturable=on_gpu)
        return torch.optim.SGD(parameters, rate, fused=True if on_gpu else None)

    def make_transform(self, teacher: BaseTeacher, example: Batch) -> Transform | None:
        """The augmentation for inputs like the example, if there is to be one."""
        if not isinstance(self.augment, str):
            return self.augment
        return None if teacher.known_inputs_only else default_transform(example)

    def settings(self, num_classes: int, family: str = "dirichlet") -> dict[str, Any]:
        """What a resumed run must agree in, ready for a json file; functions are known by their names."""
        names = ("num_particles", "epochs", "steps", "batch_size", "learning_rate", "schedule", "updates", "bank")
        chosen = objectives.default(num_classes, family) if self.objective is None else self.objective
        return {
            "objective": _text(chosen),
            "augmented_fraction": 0.0 if self.augment is None else self.augmented_fraction,
            **{name: getattr(self, name) for name in (*names, "start_from_teacher")},
            **{name: _text(getattr(self, name)) for name in ("optimizer", "augment", "blend")},
        }


def _text(value: object) -> str:
    """A text that is the same in every process: no addresses in memory."""
    return value if isinstance(value, str) else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


@dataclass(frozen=True)
class Plan:
    """How many steps a run takes, and at which learning rate.

    Attributes:
        steps_per_epoch: Number of steps between two looks at the held-out inputs: a pass over the inputs, if it ends.
        total_steps: Number of steps in all.
        recipe: Gives learning rate and schedule.
    """

    steps_per_epoch: int
    total_steps: int
    recipe: Recipe

    @classmethod
    def of(cls, recipe: Recipe, num_batches: int | None) -> "Plan":
        """The plan of a recipe for this number of batches in a pass; None if that is unknown."""
        if recipe.steps is not None:
            most = math.ceil(recipe.steps / FEWEST_EPOCHS)
            return cls(min(num_batches or most, max(most, 1)), recipe.steps, recipe)
        assert num_batches is not None
        epochs = recipe.epochs or max(FEWEST_EPOCHS, math.ceil(FEWEST_STEPS / num_batches))
        return cls(num_batches, epochs * num_batches, recipe)

    def numbers(self) -> dict[str, int]:
        """The numbers of steps, by name."""
        return {"number of steps in an epoch": self.steps_per_epoch, "number of steps": self.total_steps}

    @property
    def epochs(self) -> int:
        """Number of epochs, the last of which may be shorter."""
        return math.ceil(self.total_steps / self.steps_per_epoch)

    def rate(self, step: int) -> float:
        """The learning rate at a step."""
        start, schedule = self.recipe.learning_rate, self.recipe.schedule
        if schedule == "constant":
            return start
        if schedule == "steps":
            return start * 0.1 ** ((2 * step >= self.total_steps) + (4 * step >= 3 * self.total_steps))
        return start * 0.5 * (1 + math.cos(math.pi * step / self.total_steps))
