"""The loop: a student learns to answer as its teacher's particles lie."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from opu import objectives
from opu.checks import check_particles, check_randomness
from opu.distillation.diagnosis import stuck
from opu.distributions.dirichlet import Dirichlet
from opu.cuda_graph import CudaGraph
from opu.augment import Transform, default_transform
from opu.inputs import Rows, as_rows
from opu.novelty import FEWEST_INPUTS, FOR_IMAGES, FOR_TABLES, Blend, Novelty
from opu.objectives import Objective
from opu.distillation.run_folder import NoFolder, RunFolder, random_state, restore_random_state
from opu.teachers import ParticleBank, Teacher
from opu.distillation.state import Distillation, HeldOut, Optimizers, Run, Schedule


def distill(
    teacher: Teacher,
    student: nn.Module,
    inputs: Any,
    *,
    objective: str | Objective | None = None,
    num_particles: int = 64,
    augment: Transform | str | None = "auto",
    augmented_fraction: float = 0.5,
    epochs: int | None = None,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    schedule: str = "cosine",
    optimizer: Optimizers | None = None,
    updates: str = "joint",
    bank: int | None = None,
    held_out: Any = 0.1,
    blend: Blend | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    graph: bool = False,
    progress: bool = True,
) -> Distillation:
    """Fit a student to a teacher over inputs, features only. The defaults are the robust recipe.

    Nothing is seeded here: seed torch first for a run that can be repeated. With ``out``, a run that was killed at any
    moment goes on with ``resume=True`` and ends, on the CPU, with the same weights bit for bit.

    Args:
        teacher: Gives particles: ``teacher(x, num_particles) -> (S, B, K)`` log-probabilities.
        student: Prediction with a Dirichlet. It is trained in place, on the device where its weights are.
        inputs: A tensor, an array, a dataset, a loader, or an iterable of batches; labels that come along are not read.
        objective: A sum such as ``"0.1*clipped_kl + 10*mmd"``, or an objective object. Unless given, that sum with one
            over the number of classes as KL's weight; ``"cross_entropy + 10*mmd"`` with more than fifty classes.
        num_particles: Fresh particles for each input and step.
        augment: How to make inputs wider than the data; ``"auto"`` picks by shape (images, feature vectors) where the
            teacher can label new inputs, ``None`` leaves the inputs alone.
        augmented_fraction: Share of each batch that is augmented.
        epochs: Passes over the inputs; 30 unless given, or more where the inputs are few, to make 1,500 steps.
        batch_size: Inputs per step.
        learning_rate: At the start; with the cosine schedule it falls to 0.
        schedule: Of the learning rate: ``cosine``, ``constant``, or ``steps``: a tenth from half of the way on, and a
            hundredth from three quarters on.
        optimizer: Makes an optimiser from parameters; Adam unless given.
        updates: ``joint``, or ``alternating``: the mean's parameters and the precision's in turn, as in the paper.
        bank: Draw this many particles for each input once, and read them in every epoch, instead of fresh ones.
        held_out: Share of the inputs kept for choosing the best epoch and for calibrating novelty, or such inputs
            themselves. Inputs that the teacher was not trained on make honest p-values.
        blend: How novelty is made up; unless given, one that suits images, or, for inputs with one axis of features, tables.
            Flattened images want ``opu.novelty.FOR_IMAGES``.
        out: Folder for ``config.json``, ``log.jsonl`` and the checkpoint.
        resume: Go on with the run in ``out``.
        checkpoint_every: Steps between checkpoints; once an epoch unless given.
        graph: Record a whole step as one CUDA graph, several times as fast where networks are small. The teacher and the
            transformation must then stay on the GPU and read nothing back, as ours do; ``sinkhorn`` cannot see then
            whether it has converged, and takes all its steps.
        progress: Show a progress bar.
    """
    settings = {
        "objective": objective if isinstance(objective, str) else repr(objective),
        "num_particles": num_particles,
        "augmented_fraction": 0.0 if augment is None else augmented_fraction,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "schedule": schedule,
        "updates": updates,
        "bank": bank,
        "link": str(getattr(student, "link", "")),
    }
    _check_settings(settings, resume, out)
    objective = objectives.parse(objective) if isinstance(objective, str) else objective
    if getattr(student, "novelty", None) is not None:
        # An earlier calibration would not fit the weights to come.
        student.novelty = None  # type: ignore[assignment]
    groups = _parameter_groups(student, updates)
    device = groups[0][0].device
    settings["device"] = device.type  # optimisers keep their state in other forms on a GPU
    if graph and device.type != "cuda":
        raise ValueError(f"graph=True needs a student on a CUDA device; this one is on {device}. Leave it out.")
    rows = as_rows(inputs)
    teacher = _aligned(teacher, rows)
    num_classes = _check_agreement(teacher, student, rows)
    if objective is None:
        settings["objective"] = chosen = objectives.default(num_classes)
        objective = objectives.parse(chosen)

    folder = NoFolder() if out is None else RunFolder(Path(out), settings, resume=resume)
    before = folder.checkpoint()
    if before is not None:
        # What follows draws random numbers, so it must begin as it did the first time.
        restore_random_state(before["random_at_start"])
    random_at_start = random_state()
    rows, kept = _split(rows, held_out)
    transform = _transform(augment, teacher, rows)
    widen = _widener(transform, augmented_fraction)
    kept = None if kept is None else kept.to(device)
    judge = HeldOut(teacher, kept, widen, num_particles)
    if bank is not None:
        teacher, rows = _banked(teacher, rows, transform, bank)
        widen = _widener(None, 0.0)
    plan = Schedule.of(len(rows), batch_size, epochs, learning_rate, schedule)
    run = Run(student, objective, groups, optimizer, plan)
    if graph and not run.rates_are_tensors:
        raise ValueError(
            "graph=True needs an optimiser whose learning rate is a tensor on the GPU, since a number would be frozen into "
            "the recording; make it so, for example SGD(p, torch.tensor(0.01, device='cuda'), fused=True)."
        )

    if before is None:
        folder.save_checkpoint({**run.state(), "random_at_start": random_at_start})
    else:
        run.load(before)
        restore_random_state(before["random"])
        folder.rewind_log(run.step)
    every = checkpoint_every or plan.steps_per_epoch

    def learn(x: Tensor) -> Tensor:
        x = widen(x)
        with torch.no_grad():
            log_particles = teacher(x, num_particles).to(device)
        return run.update(x, log_particles)

    step = CudaGraph(learn, device) if graph else learn
    with _progress_bar(progress, plan.total_steps, run.step) as advance:
        while run.step < plan.total_steps:
            run.set_rates()
            loss = run.count(step(rows.take(run.next_rows()).to(device)))
            folder.log(step=run.step, epoch=run.epoch, loss=loss, learning_rate=plan.rate(run.step - 1))
            if run.step % plan.steps_per_epoch == 0:
                folder.log(step=run.step, epoch=run.epoch, held_out=run.judge(judge))
            if run.step % every == 0:
                folder.save_checkpoint({**run.state(), "random_at_start": random_at_start})
            advance(loss)
    result = run.finish()
    if kept is not None and len(kept) >= FEWEST_INPUTS:
        calibrate(student, kept, blend)
        found = stuck(getattr(student, "link", None), _answers(student, kept).log_precision)
        if found is not None:
            warnings.warn(found, stacklevel=2)
    return result


@torch.no_grad()
def calibrate(student: nn.Module, inputs: Tensor, blend: Blend | None = None) -> Novelty:
    """Calibrate a student's novelty score on ordinary inputs, best ones that its teacher was not trained on.

    :func:`distill` does this with its held-out inputs; call it again with better ones where there are some.

    Args:
        student: Gets the score as its ``novelty``.
        inputs: Ordinary ones.
        blend: How entropy and precision make up the score; one that suits images, or rows of features, unless given.
    """
    student.eval()
    novelty = Novelty.fit(_answers(student, inputs), blend or (FOR_TABLES if inputs.ndim == 2 else FOR_IMAGES))
    student.novelty = novelty
    return novelty


@torch.no_grad()
def _answers(student: nn.Module, inputs: Tensor) -> Dirichlet:
    parts = [student(part) for part in inputs.split(1024)]
    return Dirichlet(
        *(torch.cat(column) for column in zip(*((p.mean, p.log_precision, p.log_mean) for p in parts), strict=True))
    )


def _check_settings(settings: dict[str, Any], resume: bool, out: str | Path | None) -> None:
    for name in ("num_particles", "epochs", "batch_size", "bank"):
        if settings[name] is not None and settings[name] < 1:
            raise ValueError(f"{name} must be at least 1; got {settings[name]}.")
    if not 0 <= settings["augmented_fraction"] <= 1:
        raise ValueError(f"augmented_fraction must lie between 0 and 1; got {settings['augmented_fraction']}.")
    for name, choices in (("schedule", ("cosine", "constant", "steps")), ("updates", ("joint", "alternating"))):
        if settings[name] not in choices:
            raise ValueError(f"{name} must be {' or '.join(choices)}; got {settings[name]!r}.")
    if resume and out is None:
        raise ValueError("resume needs the folder of the run to go on with; got out=None. Pass the folder as out=.")


def _parameter_groups(student: nn.Module, updates: str) -> list[list[nn.Parameter]]:
    if updates == "joint":
        return [list(student.parameters())]
    if not hasattr(student, "mean_parameters"):
        raise ValueError(
            "alternating updates need a student with mean_parameters() and precision_parameters(); "
            f"{type(student).__name__} has none. Use updates='joint'."
        )
    return [list(student.mean_parameters()), list(student.precision_parameters())]  # type: ignore[operator]


def _aligned(teacher: Teacher, rows: Rows) -> Teacher:
    # A teacher that knows particles by row, and not how to make them, is told once which rows these are.
    if hasattr(teacher, "aligned_with"):
        aligned: Teacher = teacher.aligned_with(rows.batches())
        return aligned
    return teacher


@torch.no_grad()
def _check_agreement(teacher: Teacher, student: nn.Module, rows: Rows) -> int:
    """Ask both about a few rows, with the random state put back, before anything is written or trained; the classes."""
    device = next(student.parameters()).device
    x = rows.take(torch.arange(min(len(rows), 8))).to(device)
    state, mode = random_state(), student.training
    student.eval()
    try:
        q = student(x)
    except RuntimeError as error:
        raise ValueError(f"the student cannot read inputs of shape {tuple(x.shape)}: {error}.") from error
    student.train(mode)
    log_particles = teacher(x, 4)
    check_particles(log_particles, num_rows=len(x), num_classes=q.num_classes)
    check_randomness(log_particles)
    restore_random_state(state)
    return int(q.num_classes)


def _split(rows: Rows, held_out: Any) -> tuple[Rows, Tensor | None]:
    if not isinstance(held_out, float | int):
        return rows, torch.cat(list(as_rows(held_out).batches()))
    if not 0 <= held_out < 1:
        raise ValueError(f"held_out must be a share of the inputs from 0 up to 1, or inputs; got {held_out}.")
    count = int(held_out * len(rows))
    if count == 0:
        return rows, None
    order = torch.randperm(len(rows))
    return rows.subset(order[count:]), rows.take(order[:count])


def _transform(augment: Transform | str | None, teacher: Teacher, rows: Rows) -> Transform | None:
    if isinstance(augment, str):
        if augment != "auto":
            raise ValueError(f"augment must be 'auto', a transformation or None; got {augment!r}.")
        known_only = getattr(teacher, "only_known_inputs", False)
        return None if known_only else default_transform(rows.take(torch.arange(1)))
    return augment


def _widener(transform: Transform | None, fraction: float) -> Callable[[Tensor], Tensor]:
    def widen(x: Tensor) -> Tensor:
        count = round(fraction * len(x))
        if transform is None or count == 0:
            return x
        # The rows come shuffled, so the last ones are any; the transformation may look at the whole batch.
        return torch.cat([x[:-count], transform(x, None)[-count:]])

    return widen


@torch.no_grad()
def _banked(teacher: Teacher, rows: Rows, transform: Transform | None, size: int) -> tuple[Teacher, Rows]:
    """The inputs, and as many augmented ones, with particles that are drawn once."""
    parts = list(rows.batches())
    if transform is not None:
        parts += [transform(part, None) for part in parts]
    particles = torch.cat([teacher(part, size).cpu() for part in parts], 1)
    x = torch.cat(parts)
    return ParticleBank(particles, x, outputs="log_probabilities"), Rows(x)


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
