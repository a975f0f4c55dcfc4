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
from opu.fidelity.report import NAMES, Fidelity
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
    "family": "MMD: nearest {family} to that distribution (family gap)",
    "amortisation": "MMD: student minus nearest {family} (amortisation gap)",
    "bound": "MMD: student to nearest {family} (bound of that gap)",
}
FITS = {
    "dirichlet_maximum_likelihood": "Dirichlet, most likely",
    "dirichlet_minimum_mmd": "Dirichlet, nearest in MMD",
    "logistic_normal": "logistic-normal, rank {rank}",
    "logistic_normal_full": "logistic-normal, full rank",
    "particles": "particles themselves",
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
    rank, coverage, odds = result["spearman_of_mutual_information"], result["coverage"], result["log_odds"]
    family, level = NAMES[result["family"]], f"{100 * coverage['level']:.0f} %"
    rows = [
        *([words.format(family=family), f"{result['mmd'][name]:.4f}"] for name, words in DISTANCES.items()),
        ["total variation between the class probabilities", f"{result['total_variation']:.4f}"],
        ["same most probable class", f"{result['same_class']:.1f} %"],
        ["mutual information: Spearman's rank correlation", "none" if rank is None else f"{rank:.3f}"],
        ["log-odds of predicted class: difference of means / deviation", f"{odds['shift']:.2f}"],
        ["log-odds of predicted class: deviation / teacher's", f"{odds['spread']:.2f}"],
        [f"particles within {level} intervals of all classes", f"{coverage['of_teacher']:.1f} %"],
        [f"particles within {level} intervals of the predicted class", f"{coverage['predicted']:.1f} %"],
        [f"particles within {level} intervals of the runner-up", f"{coverage['runner_up']:.1f} %"],
    ]
    for model, found in result.get("calibration", {}).items():
        rows.append([f"{model}: accuracy, ECE", f"{found['accuracy']:.1f} %, {found['ece']:.1f} %"])
    title = f"{result['num_inputs']} inputs, {result['num_particles']} particles each"
    if result["num_members"] is not None:
        title += f", {result['num_members']} of them different"
    print_table(console, ["mean over inputs; of log-odds, the median", ""], rows, title=title)
    _show_coverage(result, console)
    _show_families(result["families"], console)
    worst = ", ".join(str(each["input"]) for each in result["worst"])
    say(console, f"Inputs with the largest amortisation gap: {worst}.")
    say(console, result["sentence"], style="bold")
    if result["families"] is not None:
        say(console, result["families"]["sentence"], style="bold")


def _show_coverage(result: dict[str, Any], console: Console) -> None:
    """Coverage by decile: of the student, and of each family's fits."""
    found, families = result["coverage"], result["families"]
    deciles = found["by_decile"]
    rows = {"student": deciles["predicted"], "student, runner-up": deciles["runner_up"]}
    if families is not None:
        rows |= {name: fit["coverage"] for name, fit in _named(families)}
    # Families are compared on fewer inputs, and may have fewer deciles.
    width = max(map(len, rows.values()))
    cells = [
        [name, *(f"{share:.0f}" for share in shares), *[""] * (width - len(shares))] for name, shares in rows.items()
    ]
    header = ["decile of the teacher's entropy", *map(str, range(1, width + 1))]
    title = f"Particles within the {100 * found['level']:.0f} % interval of the predicted class, %"
    print_table(console, header, cells, title=title)


def _show_families(families: dict[str, Any] | None, console: Console) -> None:
    """How well each family fits, and on which particles that was judged."""
    if families is None:
        return
    rows = [
        [
            name,
            f"{fit['total_variation']:.4f}",
            f"{fit['squared_mmd']:.1e}",
            f"{fit['mutual_information_error']:.4f}",
            *(f"{min(fit[end]):.0f} to {max(fit[end]):.0f}" for end in ("below", "above")),
        ]
        for name, fit in _named(families)
    ]
    header = ["fit to each input", "variation", "sq. MMD", "MI error", "below, %", "above, %"]
    print_table(console, header, rows, title=f"Families on {families['num_inputs']} inputs")
    how = (
        f"Each is fitted to {families['num_fitted']} particles of an input and judged on the others."
        if families["num_members"] is None
        else f"For coverage, each is fitted with one of the {families['num_members']} different particles left out in turn, "
        "and judged on that one; for all else, fitted to all of them and judged on the same."
    )
    say(
        console,
        f"{how} Variation: total variation between class probabilities. Sq. MMD: squared MMD. MI error: of mutual "
        "information, in the last decile. Below, above: particles beyond either end of the interval, least to most of all "
        "deciles.",
    )


def _named(families: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(FITS[name].format(rank=families["rank"]), fit) for name, fit in families["families"].items()]


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
