"""What happens after each epoch: functions, TensorBoard and Weights & Biases are told how the run goes."""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from opu.distillation.state import Run


@dataclass(frozen=True)
class Epoch:
    """How a run stands after an epoch.

    Attributes:
        epoch: Number of the epoch, counted from 1.
        step: Number of steps so far.
        loss: Mean loss of the epoch's steps.
        held_out: Objective on held-out inputs; NaN if there are none.
        learning_rate: Learning rate of the last step.
        best_epoch: The epoch whose weights would be kept now.
    """

    epoch: int
    step: int
    loss: float
    held_out: float
    learning_rate: float
    best_epoch: int


Watcher = Callable[[Epoch], object]


def as_watchers(on_epoch: Any) -> list[Watcher]:
    """Functions of an epoch, from a function, a writer with ``add_scalar`` or ``log``, or a list of these."""
    if on_epoch is None:
        return []
    if isinstance(on_epoch, list | tuple):
        return [watcher for each in on_epoch for watcher in as_watchers(each)]
    if isinstance(on_epoch, logging.Logger):
        return [lambda epoch: on_epoch.info("%s", epoch)]
    if hasattr(on_epoch, "add_scalar"):
        return [lambda epoch: _add_scalars(on_epoch, epoch)]
    if callable(getattr(on_epoch, "log", None)) and not isinstance(on_epoch, type):
        return [lambda epoch: on_epoch.log(_values(epoch), step=epoch.step)]
    if callable(on_epoch):
        return [on_epoch]
    raise ValueError(
        "on_epoch must be a function of an epoch, a writer with add_scalar(name, value, step) or log(values, step=), or a "
        f"list of these; got {type(on_epoch).__name__}."
    )


def watch(watchers: list[Watcher], run: Run) -> None:
    """Tell all of them about the epoch that has just ended."""
    if not watchers:
        return
    result, first = run.result, (run.epoch - 1) * run.plan.steps_per_epoch
    losses = result.losses[first:]
    epoch = Epoch(
        epoch=run.epoch,
        step=run.step,
        loss=sum(losses) / len(losses),
        held_out=result.held_out[-1],
        learning_rate=run.plan.rate(run.step - 1),
        best_epoch=result.best_epoch,
    )
    for watcher in watchers:
        watcher(epoch)


def _values(epoch: Epoch) -> dict[str, float | int]:
    return {f"distill/{name}": value for name, value in asdict(epoch).items() if name != "step"}


def _add_scalars(writer: Any, epoch: Epoch) -> None:
    for name, value in _values(epoch).items():
        writer.add_scalar(name, value, epoch.step)
