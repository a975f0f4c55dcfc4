"""The state of a run that :func:`opu.distill` drives: what one step does, and what a checkpoint holds."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from opu.batches import Batch, first_tensor, num_rows, split, take
from opu.cuda_graph import being_captured
from opu.distillation.diagnosis import Diverged, explain
from opu.distillation.recipe import Plan
from opu.inputs.random_state import random_state, restore_random_state
from opu.objectives import BaseObjective
from opu.students import BaseStudent
from opu.teachers import Teacher

_MAX_HELD_OUT = 2048


@dataclass
class Distillation:
    """The result of a run.

    Attributes:
        losses: The loss of each step.
        held_out: The objective on held-out inputs after each epoch.
        best_epoch: The epoch whose weights were kept, counted from 1.
    """

    losses: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    best_epoch: int = 0


class HeldOut:
    """The objective on held-out inputs, augmented like the others, against particles that stay the same."""

    def __init__(
        self, teacher: Teacher, inputs: list[Batch], augment: Callable[[Batch], Batch], num_particles: int
    ) -> None:
        self.batches: list[tuple[Batch, Tensor]] = []
        rows = 0
        with torch.no_grad():
            for part in (part for batch in inputs for part in split(batch, 256)):
                if rows == _MAX_HELD_OUT:
                    break
                x = augment(take(part, slice(0, _MAX_HELD_OUT - rows)))
                rows += num_rows(x)
                self.batches.append((x, teacher(x, num_particles).to(first_tensor(x).device)))

    @torch.no_grad()
    def value(self, student: nn.Module, objective: BaseObjective) -> float:
        """The mean over the held-out inputs; NaN if there are none."""
        student.eval()
        values = [objective(x, particles, student(x)) for x, particles in self.batches]
        return float(torch.cat(values).mean()) if values else math.nan


class Run:
    """Student, objective and optimisers between two steps."""

    def __init__(self, student: BaseStudent, objective: BaseObjective, plan: Plan) -> None:
        self.student, self.objective, self.plan = student, objective, plan
        self.groups = student.parameter_groups(plan.recipe.updates)
        self.optimizers = [plan.recipe.make_optimizer(group) for group in self.groups]
        if plan.recipe.cuda_graph and not self._rates_are_tensors:
            raise ValueError(
                "cuda_graph=True needs an optimiser whose learning rate is a tensor on the GPU, since a number would be "
                "frozen into the graph; make it so, for example SGD(p, torch.tensor(0.01, device='cuda'), fused=True)."
            )
        self.step = 0
        self.best_value = math.inf
        self.best_weights: dict[str, Tensor] = {}
        self.result = Distillation()

    @property
    def epoch(self) -> int:
        """The epoch of the last step, counted from 1."""
        return math.ceil(self.step / self.plan.steps_per_epoch)

    @property
    def epoch_is_over(self) -> bool:
        """Whether the last step was the last of its epoch, or of the run."""
        return self.step % self.plan.steps_per_epoch == 0 or self.step == self.plan.total_steps

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether a checkpoint follows the last step."""
        every = self.plan.recipe.checkpoint_every or self.plan.steps_per_epoch
        return self.step % every == 0 or self.step == self.plan.total_steps

    @property
    def _rates_are_tensors(self) -> bool:
        return all(isinstance(group["lr"], Tensor) for each in self.optimizers for group in each.param_groups)

    def set_rates(self) -> None:
        """Give the optimisers the learning rate of the next step."""
        for optimizer in self.optimizers:
            for options in optimizer.param_groups:
                if isinstance(options["lr"], Tensor):
                    options["lr"].fill_(self.plan.rate(self.step))
                else:
                    options["lr"] = self.plan.rate(self.step)

    def update(self, x: Batch, log_particles: Tensor) -> Tensor:
        """One step on one batch; returns the loss. With alternating updates, each group of parameters sees its own loss."""
        self.student.distill_mode()
        loss = torch.empty(0)
        for group, optimizer in zip(self.groups, self.optimizers, strict=True):
            loss = self.objective(x, log_particles, self.student(x)).mean()
            self.student.zero_grad()
            loss.backward()
            if not being_captured(loss):
                self._refuse_divergence(loss, group, x, log_particles)
            optimizer.step()
        return loss.detach()

    def _refuse_divergence(self, loss: Tensor, group: list[nn.Parameter], x: Batch, log_particles: Tensor) -> None:
        length = torch.nn.utils.get_total_norm([p.grad for p in group if p.grad is not None])
        if not bool(torch.isfinite(loss) & torch.isfinite(length)):
            raise Diverged(explain(self.step, float(loss.detach()), self.objective, x, log_particles, self.student))

    def count(self, loss: Tensor) -> float:
        """Note that a step is done. The loss of a captured step is looked at here, where the CPU first sees it."""
        value = float(loss)
        if not math.isfinite(value):
            raise Diverged(f"the loss was {value} at step {self.step}. Try a smaller learning rate or a bounded link.")
        self.step += 1
        self.result.losses.append(value)
        return value

    def judge(self, held_out: HeldOut) -> float:
        """Judge the student at the end of an epoch, and keep its weights if they are the best so far."""
        value = held_out.value(self.student, self.objective)
        self.result.held_out.append(value)
        # Without held-out inputs the last epoch is kept; so it is for an objective that learns, whose own scale moves.
        learns = bool(self.objective.state_dict())
        if not held_out.batches or learns or value < self.best_value or not self.best_weights:
            self.best_value = value
            self.best_weights = {name: w.detach().clone() for name, w in self.student.state_dict().items()}
            self.result.best_epoch = self.epoch
        return value

    def finish(self) -> Distillation:
        """Give the student its best weights."""
        self.student.load_state_dict(self.best_weights)
        self.student.eval()
        return self.result

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on."""
        return {
            "step": self.step,
            "student": dict(self.student.state_dict()),
            "kept_layers": self.student.kept_layers,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "objective": self.objective.state_dict(),
            "best_value": self.best_value,
            "best_weights": self.best_weights,
            "losses": torch.tensor(self.result.losses, dtype=torch.float64),
            "held_out": torch.tensor(self.result.held_out, dtype=torch.float64),
            "best_epoch": self.result.best_epoch,
            "random": random_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned, the random state last."""
        self.step = state["step"]
        self.student.load_state_dict(state["student"])
        self.student.kept_layers = state.get("kept_layers", self.student.kept_layers)
        for optimizer, part in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(part)
            for options in optimizer.param_groups:
                if isinstance(options["lr"], Tensor):  # torch leaves it on the device of the file
                    options["lr"] = options["lr"].to(options["params"][0].device)
        if state["objective"]:
            self.objective.load_state_dict(state["objective"])
        self.best_value, self.best_weights = state["best_value"], state["best_weights"]
        self.result = Distillation(state["losses"].tolist(), state["held_out"].tolist(), state["best_epoch"])
        restore_random_state(state["random"])
