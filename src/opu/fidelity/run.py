"""``opu fidelity``: the report on a run folder, or on a saved student with particles in files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from opu import plotting
from opu.batches import Batch, as_batch, cat, fit_to, shapes
from opu.choices import Outputs
from opu.distillation.outcome import EVALUATION, read_evaluation, run_of
from opu.distillation.run_folder import class_names
from opu.environment import environment
from opu.fidelity.report import Fidelity
from opu.fidelity.report import report as compare
from opu.files import write_json
from opu.students import load
from opu.tables import print_table
from opu.teachers import ParticleBank
from opu.teachers.array_files import open_array
from opu.terminal import say

DISTANCES = {
    "total": "MMD: student to particles",
    "noise": "MMD: particles to their distribution (noise)",
    "family": "MMD: nearest Dirichlet to that distribution (family gap)",
    "amortisation": "MMD: student minus nearest Dirichlet (amortisation gap)",
    "bound": "MMD: student to nearest Dirichlet (bound of that gap)",
}


def report_on_run(
    run: Path,
    *,
    inputs: Path | None = None,
    particles: Path | None = None,
    labels: Path | None = None,
    outputs: Outputs = "probabilities",
    classes: Sequence[str] | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Compare the student of a run with its teacher's particles; return what ``fidelity.json`` holds.

    Args:
        run: A run folder, or the folder of a saved student.
        inputs: File with inputs; by default those that the run folder holds.
        particles: File with the particles of these inputs, ``(S, N, K)``.
        labels: File with the classes of these inputs; with them the report has the calibration of both.
        outputs: Kind of the values in the file of particles.
        classes: Names of the classes for the picture; by default those in the run's ``metrics.json``.
        console: Where to print the table.
    """
    console = console or Console()
    student = load(run)
    seen: Batch | None = None
    if (inputs is None) != (particles is None):
        raise ValueError(
            "--inputs and --particles belong together: the inputs, and the particles of each of them. Give both."
        )
    if inputs is not None and particles is not None:
        x, y = _read(inputs), None if labels is None else _read(labels)
        teacher = ParticleBank(particles, x, outputs=outputs)
    elif labels is not None or outputs != "probabilities":
        raise ValueError(
            "--labels and --outputs go with --inputs and --particles; the run has its own. Leave them out."
        )
    else:
        x, y, seen, teacher = _kept(run, console)
    names = class_names(run, classes, teacher.shape[2])
    x, seen = fit_to(x, student), None if seen is None else fit_to(seen, student)
    found = compare(student, teacher, x, labels=y, seen=seen, num_particles=teacher.shape[0])
    worst = [_one_input(found, index) for index in found.worst()]
    result = {**found.summary, "worst": worst, "sentence": found.sentence, "environment": environment()}
    write_json(run / "fidelity.json", result)
    advice = plotting.missing()
    if advice is None:
        plotting.draw_fidelity(run / "fidelity.png", found, student, x, teacher, names)
    show(result, console)
    written = f"Written to {run}: fidelity.json{'' if advice else ', fidelity.png'}."
    say(console, written)
    if advice is not None:
        say(console, advice)
    return result


def show(result: dict[str, Any], console: Console) -> None:
    """Print the report as a table, and what to change."""
    rank, coverage = result["spearman_of_mutual_information"], result["coverage"]
    rows = [
        *([words, f"{result['mmd'][name]:.4f}"] for name, words in DISTANCES.items()),
        ["total variation between the class probabilities", f"{result['total_variation']:.4f}"],
        ["same most probable class", f"{result['same_class']:.1f} %"],
        ["mutual information: Spearman's rank correlation", "none" if rank is None else f"{rank:.3f}"],
        [f"particles within {100 * coverage['level']:.0f} % intervals", f"{coverage['of_teacher']:.1f} %"],
    ]
    for model, found in result.get("calibration", {}).items():
        rows.append([f"{model}: accuracy, ECE", f"{found['accuracy']:.1f} %, {found['ece']:.1f} %"])
    title = f"{result['num_inputs']} inputs, {result['num_particles']} particles each"
    print_table(console, ["mean over inputs", ""], rows, title=title)
    worst = ", ".join(str(each["input"]) for each in result["worst"])
    say(console, f"Inputs with the largest amortisation gap: {worst}.")
    say(console, result["sentence"], style="bold")


def _one_input(found: Fidelity, index: int) -> dict[str, Any]:
    distances = {name: float(getattr(found.gaps, name)[index]) for name in DISTANCES}
    return {"input": index, **distances, "total_variation": float(found.total_variation[index])}


def _kept(run: Path, console: Console) -> tuple[Batch, Tensor | None, Batch | None, ParticleBank]:
    if not (run_of(run) / EVALUATION).is_file():
        raise ValueError(
            f"{run} holds no {EVALUATION}, which a run folder has (opu.distill with out=, `opu demo`, `opu fit`); give "
            "--inputs and --particles for a student alone."
        )
    state = read_evaluation(run_of(run))
    inputs, seen = state["inputs"], state["seen"]
    if seen is not None and shapes(seen) != shapes(inputs):  # sequences have several lengths
        say(console, "Inputs that the student has seen have another shape than the others, so they are left out here.")
        seen = None
    both, particles = [inputs], [state["log_particles"]]
    if seen is not None:
        both, particles = [inputs, seen], [*particles, state["seen_log_particles"]]
    return inputs, state["labels"], seen, ParticleBank(torch.cat(particles, 1), cat(both), outputs="log_probabilities")


def _read(path: Path) -> Tensor:
    if path.suffix != ".npy":
        raise ValueError(f"inputs and labels are read from .npy files; got {path.name!r}. Use numpy.save.")
    values = as_batch(np.array(open_array(path)))  # a copy, in a type that torch knows
    assert isinstance(values, Tensor)
    return values
