"""The loop: a student learns to predict the distribution of its teacher's particles."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from opu.batches import Batch, num_rows, to_device
from opu.checks import first_line
from opu.cuda_graph import CudaGraph
from opu.devices import device_of
from opu.distillation.calibration import calibrate_on, predict_all
from opu.distillation.diagnosis import stuck
from opu.distillation.fingerprint import refuse_other_plan, refuse_other_weights
from opu.distillation.optimizers import refuse_other_optimizer
from opu.distillation.outcome import leave_evaluation, leave_student
from opu.distillation.preparation import Prepared, Split, prepare
from opu.distillation.recipe import Recipe
from opu.distillation.result import Distillation
from opu.distillation.run_folder import NoFolder, RunFolder, open_folder
from opu.distillation.state import Run
from opu.distillation.watching import Watcher, as_watchers, watch
from opu.inputs.random_state import restore_random_state
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
    on_epoch: Any = None,
) -> Distillation:
    """Fit a student to a teacher over inputs, features only.

    Nothing is seeded here: seed torch first for a run that can be repeated. With ``out``, a run that was killed at any
    moment goes on with ``resume=True`` and ends, on the CPU, with the same weights bit for bit, unless its inputs keep a
    state of their own that a new process does not have.

    Args:
        teacher: Gives particles: ``teacher(x, num_particles) -> (S, B, K)`` log-probabilities.
        student: Predicts a Dirichlet. It is trained in place, on the device where its weights are.
        inputs: A tensor, an array, a data frame; a dict, tuple or dataclass of these, for networks with several inputs; a
            dataset, a loader, or an iterable of batches. Labels that come along are not read. A loader is read anew in each
            epoch, with its own sampler, workers and collation; a stream is never collected.
        recipe: Objective, particles, epochs, augmentation and all other settings; the robust recipe by default.
        held_out: Fraction of the inputs kept for comparing epochs and for calibrating novelty, or such inputs themselves.
            The last epoch is kept, unless an earlier one is clearly better on them. Take inputs that the teacher was not
            trained on: on training inputs p-values come out too small. A fraction is drawn at random from rows and from the
            items of a loader's sampler; of a stream it is chosen by a checksum of the features, and of a generator it is the
            beginning.
        out: Folder for ``config.json``, ``log.jsonl``, the checkpoint, and in the end ``student/`` with what ``opu export``
            and ``opu fidelity`` need. It is locked as long as the run lasts: a second process is refused, except where files
            cannot be locked, as a warning then says.
        resume: Go on with the run in ``out``, with the same settings, inputs, held-out inputs, teacher and student's layers;
            others are refused. Of a dataset with more than 10,000 items or 64 MB some items are compared, of a loader the
            batch size too, of a stream the first row and the rows of the first batch, of a teacher the networks, tensors
            and arrays that it holds and what it says of a few inputs, of an objective its attributes and what it says of
            them, of an optimiser its settings but for the learning rate; what is random in itself, such as augmented items,
            cannot be compared. A run that began before fingerprints were kept goes on with a warning, and so does one whose
            ``fingerprint`` is deleted from ``config.json``.
        progress: Show a progress bar.
        on_epoch: Called after each epoch with an :class:`opu.distillation.Epoch`; or a TensorBoard ``SummaryWriter``, a run
            of Weights & Biases, or a list of these.
    """
    if resume and out is None:
        raise ValueError("resume needs the folder of the run to go on with; got out=None. Pass the folder as out=.")
    watchers = as_watchers(on_epoch)
    ready = prepare(teacher, student, inputs, recipe or Recipe(), held_out, compare=out is not None)
    with open_folder(out, ready.settings, resume=resume, fingerprint=ready.fingerprint) as folder:
        result = _run(ready, folder, watchers, progress)
    for sentence in result.warnings:
        warnings.warn(sentence, stacklevel=2)
    return result


def _run(ready: Prepared, folder: RunFolder | NoFolder, watchers: list[Watcher], progress: bool) -> Distillation:
    """All steps that are left, and what follows them."""
    before = folder.checkpoint()
    if before is not None:  # the split draws random numbers, so it must begin as it did the first time
        refuse_other_weights(before["student"], ready.student)
        restore_random_state(before["random_at_start"])
    split = ready.split()
    if before is not None:
        refuse_other_plan(before.get("plan"), split.plan)
    run = Run(ready.student.fresh_start(ready.teacher, ready.recipe), ready.objective, split.plan)
    always = {"random_at_start": split.random_at_start, "plan": split.plan.numbers()}
    if before is None:
        folder.rewind_log(0)
        folder.save_checkpoint(run.state() | split.feed.state() | always)
    else:
        refuse_other_optimizer(before, run.options)
        try:
            split.feed.load(before)
            run.load(before)
        except (KeyError, TypeError, AttributeError, ValueError, IndexError, RuntimeError) as error:
            raise ValueError(
                f"the checkpoint in {folder.path} does not fit this run ({first_line(error)}); use another copy."
            ) from error
        folder.rewind_log(run.step)
    step = _step(run, split)

    def end_epoch() -> None:
        folder.log(step=run.step, epoch=run.epoch, held_out=run.judge(split.judge))
        watch(watchers, run)

    with _progress_bar(progress, run.plan.total_steps, run.step) as advance:
        while run.step < run.plan.total_steps:
            run.set_rates()
            batch = split.feed.batch(run.step)
            if batch is None:
                _note_end(run)
                if not run.epoch_is_over:
                    end_epoch()
                break
            loss = run.count(step(to_device(batch, device_of(run.student))))
            folder.log(step=run.step, epoch=run.epoch, loss=loss, learning_rate=run.plan.rate(run.step - 1))
            if run.epoch_is_over:
                end_epoch()
            if run.checkpoint_is_due:
                folder.save_checkpoint(run.state() | split.feed.state() | always)
            advance(loss)
    result = run.finish()
    result.warnings += _calibrate(ready, split.held_out)
    result.mutual_information = split.judge.mutual_information(ready.student)
    result.calibrated = sum(num_rows(part) for part in split.held_out) >= FEWEST_INPUTS
    if folder.path is not None:
        leave_student(folder.path, ready.student)
        leave_evaluation(folder.path, ready.teacher, split.held_out, split.seen, ready.recipe.num_particles)
    return result


def _step(run: Run, split: Split) -> Callable[[Batch], Tensor]:
    """One step on a batch of inputs: augment, draw particles, update; captured as a CUDA graph if the recipe says so."""
    device, recipe = device_of(run.student), run.plan.recipe

    def step(x: Batch) -> Tensor:
        x = split.augment(x)
        with torch.no_grad():
            log_particles = split.teacher(x, recipe.num_particles).to(device)
        return run.update(x, log_particles)

    return CudaGraph(step, device) if recipe.cuda_graph else step


def _note_end(run: Run) -> None:
    """Say that the inputs ended before the steps did."""
    if run.step == 0:
        raise ValueError("the inputs ended before the first step; give more of them, or hold fewer out.")
    run.result.warnings.append(
        f"the inputs ended after {run.step} of {run.plan.total_steps} steps, before the learning rate had fallen to its end; "
        "give steps= for so many batches, or inputs that can be read again."
    )


def _calibrate(ready: Prepared, held_out: list[Batch]) -> list[str]:
    """Calibrate novelty on the held-out inputs; return a warning if the precision no longer tells them apart."""
    if sum(num_rows(part) for part in held_out) < FEWEST_INPUTS:
        return []
    calibrate_on(ready.student, held_out, ready.recipe.blend)
    found = stuck(ready.student.bounds(), predict_all(ready.student, held_out).log_precision)
    return [] if found is None else [found]


@contextmanager
def _progress_bar(shown: bool, total: int, done: int) -> Iterator[Callable[[float], None]]:
    columns = (
        TextColumn("distilling"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, disable=not shown, transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda loss: bar.update(task, advance=1, description=f"loss {loss:.4f}")
