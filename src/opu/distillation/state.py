"""The state of a run that :func:`opu.distill` drives: what one step does, and what a checkpoint holds."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from opu.batches import Batch, first_tensor, num_rows, split, take, tensors
from opu.cuda_graph import being_captured
from opu.distillation.diagnosis import Diverged, explain
from opu.distillation.optimizers import options_of
from opu.distillation.recipe import Plan
from opu.distillation.result import Distillation
from opu.distillation.selection import Selection
from opu.inputs.random_state import random_state, restore_random_state
from opu.measures import mutual_information
from opu.objectives import BaseObjective
from opu.students import BaseStudent
from opu.teachers import Teacher

_MAX_HELD_OUT = 2048
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 256, 2**24  # of held-out inputs: augmentation takes several times their memory


class HeldOut:
    """The objective on held-out inputs, augmented like the others, against particles that stay the same."""

    def __init__(
        self, teacher: Teacher, inputs: list[Batch], augment: Callable[[Batch], Batch], num_particles: int
    ) -> None:
        self.batches: list[tuple[Batch, Tensor]] = []
        rows = 0
        with torch.no_grad():
            for part in (part for batch in inputs for part in split(batch, _rows_at_once(batch))):
                if rows == _MAX_HELD_OUT:
                    break
                x = augment(take(part, slice(0, _MAX_HELD_OUT - rows)))
                rows += num_rows(x)
                self.batches.append((x, teacher(x, num_particles).to(first_tensor(x).device)))

    @torch.no_grad()
    def values(self, student: nn.Module, objective: BaseObjective) -> Float[Tensor, " B"]:
        """One value for each held-out input."""
        student.eval()
        values = [objective(x, particles, student(x)).double().cpu() for x, particles in self.batches]
        return torch.cat(values) if values else torch.empty(0, dtype=torch.float64)

    @torch.no_grad()
    def mutual_information(self, student: nn.Module) -> tuple[float, float] | None:
        """The mean mutual information of the student and of the teacher on these inputs; None if there are none."""
        pairs = [(mutual_information(student(x)), mutual_information(particles)) for x, particles in self.batches]
        if not pairs:
            return None
        ours, theirs = (float(torch.cat(values).double().mean()) for values in zip(*pairs, strict=True))
        return ours, theirs


def _rows_at_once(batch: Batch) -> int:
    row = sum(t.numel() * t.element_size() for t in tensors(batch).values()) / num_rows(batch)
    return max(2, min(_ROWS_AT_ONCE, int(_BYTES_AT_ONCE / row)))  # augmentation mixes rows, so one is not enough


class Run:
    """Student, objective and optimisers between two steps."""

    def __init__(self, student: BaseStudent, objective: BaseObjective, plan: Plan) -> None:
        self.student, self.objective, self.plan = student, objective, plan
        self.groups = student.parameter_groups(plan.recipe.updates)
        self.optimizers = [plan.recipe.make_optimizer(group) for group in self.groups]
        self.options = options_of(self.optimizers, [parameter for group in self.groups for parameter in group])
        if plan.recipe.cuda_graph and not self._rates_are_tensors:
            raise ValueError(
                "cuda_graph=True needs an optimiser whose learning rate is a tensor on the GPU, since a number would be "
                "frozen into the graph; make it so, for example SGD(p, torch.tensor(0.01, device='cuda'), fused=True)."
            )
        self.step = 0
        self.selection = Selection()
        self.result = Distillation(steps_per_epoch=plan.steps_per_epoch)

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
        """Judge the student at the end of an epoch; return the mean over held-out inputs, NaN if there are none."""
        values = held_out.values(self.student, self.objective)
        # Values of an objective that learns cannot be compared: its own scale moves.
        comparable = len(values) > 0 and not self.objective.state_dict()
        self.selection.see(self.epoch, values if comparable else None, self.student.state_dict())
        self.result.held_out.append(float(values.mean()))
        self.result.held_out_medians.append(float(values.median()) if len(values) else math.nan)
        self.result.best_epoch = self.selection.kept_epoch
        return self.result.held_out[-1]

    def finish(self) -> Distillation:
        """Give the student the weights that are kept."""
        if (weights := self.selection.kept_weights) is not None:
            self.student.load_state_dict(weights)
        if (advice := self.selection.advice()) is not None:
            self.result.warnings.append(advice)
        self.student.eval()
        return self.result

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on."""
        return {
            "step": self.step,
            "student": dict(self.student.state_dict()),
            "kept_layers": self.student.kept_layers,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "options": self.options,
            "objective": self.objective.state_dict(),
            "selection": self.selection.state(),
            "losses": torch.tensor(self.result.losses, dtype=torch.float64),
            "held_out": torch.tensor(self.result.held_out, dtype=torch.float64),
            "held_out_medians": torch.tensor(self.result.held_out_medians, dtype=torch.float64),
            "best_epoch": self.result.best_epoch,
            "random": random_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned, the random state last."""
        self.step = int(state["step"])
        if not 0 <= self.step <= self.plan.total_steps:
            raise ValueError(f"its step is {self.step}, of {self.plan.total_steps}")
        self.student.load_state_dict(state["student"])
        self.student.kept_layers = state.get("kept_layers", self.student.kept_layers)
        for optimizer, part in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(part)
            for options in optimizer.param_groups:
                if isinstance(options["lr"], Tensor):  # torch leaves it on the device of the file
                    options["lr"] = options["lr"].to(options["params"][0].device)
        if state["objective"]:
            self.objective.load_state_dict(state["objective"])
        self.selection = Selection.of(state)
        self.result = Distillation(state["losses"].tolist(), state["held_out"].tolist(), state["best_epoch"])
        unknown = torch.full_like(state["held_out"], math.nan)  # for a checkpoint of 0.1, which has no medians
        self.result.held_out_medians = state.get("held_out_medians", unknown).tolist()
        self.result.steps_per_epoch = self.plan.steps_per_epoch
        restore_random_state(state["random"])
