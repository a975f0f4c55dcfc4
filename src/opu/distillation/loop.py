"""The loop: a student learns to predict the distribution of its teacher's particles."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from opu.cuda_graph import CudaGraph
from opu.devices import device_of
from opu.distillation.calibration import calibrate, predict_all
from opu.distillation.diagnosis import stuck
from opu.distillation.preparation import Prepared, Split, prepare
from opu.distillation.random_state import restore_random_state
from opu.distillation.recipe import Recipe
from opu.distillation.result import Distillation
from opu.distillation.run_folder import open_folder
from opu.distillation.state import Run
from opu.novelty import FEWEST_INPUTS
from opu.teachers import Teacher


def distill(
    teacher: Teacher,
    student: nn.Module,
    inputs: Any,
    *,
    recipe: Recipe | None = None,
    held_out: Any = 0.1,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Distillation:
    """Fit a student to a teacher over inputs, features only.

    Nothing is seeded here: seed torch first for a run that can be repeated. With ``out``, a run that was killed at any
    moment goes on with ``resume=True`` and ends, on the CPU, with the same weights bit for bit.

    Args:
        teacher: Gives particles: ``teacher(x, num_particles) -> (S, B, K)`` log-probabilities.
        student: Predicts a Dirichlet. It is trained in place, on the device where its weights are.
        inputs: A tensor, an array, a dataset, a loader, or an iterable of batches; labels that come along are not read.
        recipe: Objective, particles, epochs, augmentation and all other settings; the robust recipe by default.
        held_out: Fraction of the inputs kept for comparing epochs and for calibrating novelty, or such inputs themselves.
            The last epoch is kept, unless an earlier one is clearly better on them. Take inputs that the teacher was not
            trained on: on training inputs p-values come out too small.
        out: Folder for ``config.json``, ``log.jsonl`` and the checkpoint.
        resume: Go on with the run in ``out``.
        progress: Show a progress bar.
    """
    if resume and out is None:
        raise ValueError("resume needs the folder of the run to go on with; got out=None. Pass the folder as out=.")
    ready = prepare(teacher, student, inputs, recipe or Recipe(), held_out)
    folder = open_folder(out, ready.settings, resume=resume)
    before = folder.checkpoint()
    if before is not None:  # the split draws random numbers, so it must begin as it did the first time
        restore_random_state(before["random_at_start"])
    split = ready.split()
    run = Run(ready.student.fresh_start(ready.teacher, ready.recipe), ready.objective, split.plan)
    at_start = {"random_at_start": split.random_at_start}
    if before is None:
        folder.save_checkpoint(run.state() | at_start)
    else:
        run.load(before)
        folder.rewind_log(run.step)
    step = _step(run, split)
    with _progress_bar(progress, run.plan.total_steps, run.step) as advance:
        while run.step < run.plan.total_steps:
            run.set_rates()
            loss = run.count(step(split.rows.take(run.next_rows()).to(device_of(run.student))))
            folder.log(step=run.step, epoch=run.epoch, loss=loss, learning_rate=run.plan.rate(run.step - 1))
            if run.epoch_is_over:
                folder.log(step=run.step, epoch=run.epoch, held_out=run.judge(split.judge))
            if run.checkpoint_is_due:
                folder.save_checkpoint(run.state() | at_start)
            advance(loss)
    result = run.finish()
    result.warnings += _calibrate(ready, split.held_out)
    for sentence in result.warnings:
        warnings.warn(sentence, stacklevel=2)
    return result


def _step(run: Run, split: Split) -> Callable[[Tensor], Tensor]:
    """One step on a batch of inputs: augment, draw particles, update; captured as a CUDA graph if the recipe says so."""
    device, recipe = device_of(run.student), run.plan.recipe

    def step(x: Tensor) -> Tensor:
        x = split.augment(x)
        with torch.no_grad():
            log_particles = split.teacher(x, recipe.num_particles).to(device)
        return run.update(x, log_particles)

    return CudaGraph(step, device) if recipe.cuda_graph else step


def _calibrate(ready: Prepared, held_out: Tensor | None) -> list[str]:
    """Calibrate novelty on the held-out inputs; return a warning if the precision no longer tells them apart."""
    if held_out is None or len(held_out) < FEWEST_INPUTS:
        return []
    calibrate(ready.student, held_out, ready.recipe.blend)
    found = stuck(ready.student.bounds(), predict_all(ready.student, held_out).log_precision)
    return [] if found is None else [found]


@contextmanager
def _progress_bar(shown: bool, total: int, done: int) -> Iterator[Callable[[float], None]]:
    columns = (
        TextColumn("distilling"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, disable=not shown, transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda loss: bar.update(task, advance=1, description=f"loss {loss:.4f}")
