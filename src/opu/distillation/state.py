"""The state of a run that :func:`opu.distill` drives: what one step does, and what a checkpoint holds."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from opu.distillation.diagnosis import Diverged, explain
from opu.cuda_graph import being_captured
from opu.objectives import Objective
from opu.distillation.run_folder import random_state
from opu.teachers import Teacher

Optimizers = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
_MOST_HELD_OUT = 2048


@dataclass
class Distillation:
    """What a run leaves: the loss of each step, the held-out objective after each epoch, and which epoch was kept."""

    losses: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    best_epoch: int = 0


@dataclass(frozen=True)
class Schedule:
    """How many steps, on which rows, at which rate."""

    num_rows: int
    batch_size: int
    epochs: int
    learning_rate: float
    shape: str

    @classmethod
    def of(cls, num_rows: int, batch_size: int, epochs: int | None, learning_rate: float, shape: str) -> "Schedule":
        """A plan for so many rows; without a number of epochs, long enough for small sets too."""
        batch_size = min(batch_size, num_rows)
        if epochs is None:
            epochs = max(30, math.ceil(1500 / (num_rows // batch_size)))
        return cls(num_rows, batch_size, epochs, learning_rate, shape)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches only, so that every step weighs the same."""
        return max(1, self.num_rows // self.batch_size)

    @property
    def total_steps(self) -> int:
        """Over all epochs."""
        return self.epochs * self.steps_per_epoch

    def rate(self, step: int) -> float:
        """The learning rate at a step."""
        if self.shape == "constant":
            return self.learning_rate
        if self.shape == "steps":
            return self.learning_rate * 0.1 ** ((2 * step >= self.total_steps) + (4 * step >= 3 * self.total_steps))
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * step / self.total_steps))


class Run:
    """Student, objective and optimisers between two steps."""

    def __init__(
        self,
        student: nn.Module,
        objective: Objective,
        groups: list[list[nn.Parameter]],
        optimizer: Optimizers | None,
        schedule: Schedule,
    ) -> None:
        self.student, self.objective, self.groups, self.schedule = student, objective, groups, schedule
        self.optimizers = [(optimizer or self._adam)(group) for group in groups]
        self.step = 0
        self.order = torch.empty(0, dtype=torch.int64)
        self.best_value = math.inf
        self.best_weights: dict[str, Tensor] = {}
        self.result = Distillation()

    def _adam(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        parameters = list(parameters)
        # On a GPU the step may be recorded, and then its counters and its rate must live there too.
        on_gpu = parameters[0].is_cuda
        rate = parameters[0].new_tensor(self.schedule.learning_rate) if on_gpu else self.schedule.learning_rate
        return torch.optim.Adam(parameters, rate, capturable=on_gpu)

    @property
    def epoch(self) -> int:
        """The epoch of the last step, counted from 1."""
        return math.ceil(self.step / self.schedule.steps_per_epoch)

    def next_rows(self) -> Tensor:
        """The rows of the next batch; they are shuffled anew in each epoch."""
        place, size = self.step % self.schedule.steps_per_epoch, self.schedule.batch_size
        if place == 0:
            self.order = torch.randperm(self.schedule.num_rows)
        return self.order[place * size : (place + 1) * size]

    @property
    def rates_are_tensors(self) -> bool:
        """Whether the learning rates can be changed in a recording."""
        return all(isinstance(group["lr"], Tensor) for each in self.optimizers for group in each.param_groups)

    def set_rates(self) -> None:
        """Give the optimisers the learning rate of the step to come."""
        for optimizer in self.optimizers:
            for options in optimizer.param_groups:
                if isinstance(options["lr"], Tensor):
                    options["lr"].fill_(self.schedule.rate(self.step))
                else:
                    options["lr"] = self.schedule.rate(self.step)

    def update(self, x: Tensor, log_particles: Tensor) -> Tensor:
        """One step on one batch; the loss. Parameters that are updated in turn each see a loss of their own."""
        self.student.train()
        loss = torch.empty(0)
        for group, optimizer in zip(self.groups, self.optimizers, strict=True):
            loss = self.objective(x, log_particles, self.student(x)).mean()
            self.student.zero_grad()
            loss.backward()
            if not being_captured(loss):
                self._refuse_nonsense(loss, group, x, log_particles)
            optimizer.step()
        return loss.detach()

    def _refuse_nonsense(self, loss: Tensor, group: list[nn.Parameter], x: Tensor, log_particles: Tensor) -> None:
        length = torch.nn.utils.get_total_norm([p.grad for p in group if p.grad is not None])
        if not bool(torch.isfinite(loss) & torch.isfinite(length)):
            raise Diverged(explain(self.step, float(loss.detach()), self.objective, x, log_particles, self.student))

    def count(self, loss: Tensor) -> float:
        """Note that a step is done. Of a recorded step this is the first that the CPU sees, so it is looked at again."""
        value = float(loss)
        if not math.isfinite(value):
            raise Diverged(f"the loss was {value} at step {self.step}. Try a smaller learning rate or a bounded link.")
        self.step += 1
        self.result.losses.append(value)
        return value

    def judge(self, held_out: "HeldOut") -> float:
        """Judge the student at the end of an epoch, and keep it if it is the best so far."""
        value = held_out.value(self.student, self.objective)
        self.result.held_out.append(value)
        # Without held-out inputs the last epoch is kept. So it is for an objective that learns: its own value moves.
        learns = bool(getattr(self.objective, "state_dict", dict)())
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
        """All that the next step depends on."""
        return {
            "step": self.step,
            "order": self.order,
            "student": dict(self.student.state_dict()),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "objective": getattr(self.objective, "state_dict", dict)(),
            "best_value": self.best_value,
            "best_weights": self.best_weights,
            "losses": torch.tensor(self.result.losses, dtype=torch.float64),
            "held_out": torch.tensor(self.result.held_out, dtype=torch.float64),
            "best_epoch": self.result.best_epoch,
            "random": random_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state` gave, except for the random state, which the caller restores last."""
        self.step, self.order = state["step"], state["order"]
        self.student.load_state_dict(state["student"])
        for optimizer, part in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(part)
            for options in optimizer.param_groups:
                if isinstance(options["lr"], Tensor):  # which torch leaves where it was read
                    options["lr"] = options["lr"].to(options["params"][0].device)
        if state["objective"]:
            self.objective.load_state_dict(state["objective"])  # type: ignore[attr-defined]
        self.best_value, self.best_weights = state["best_value"], state["best_weights"]
        self.result = Distillation(state["losses"].tolist(), state["held_out"].tolist(), state["best_epoch"])


class HeldOut:
    """The objective on held-out inputs, augmented like the others, against particles that stay the same."""

    def __init__(
        self, teacher: Teacher, inputs: Tensor | None, widen: Callable[[Tensor], Tensor], num_particles: int
    ) -> None:
        self.batches: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            for part in [] if inputs is None else inputs[:_MOST_HELD_OUT].split(256):
                x = widen(part)
                self.batches.append((x, teacher(x, num_particles).to(x.device)))

    @torch.no_grad()
    def value(self, student: nn.Module, objective: Objective) -> float:
        """The mean over the held-out inputs; NaN where there are none."""
        student.eval()
        values = [objective(x, particles, student(x)) for x, particles in self.batches]
        return float(torch.cat(values).mean()) if values else math.nan
