"""`opu fidelity`: the report on a run folder, or on a saved student with particles in files."""

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from opu.environment import environment
from opu.fidelity.report import Fidelity
from opu.fidelity.report import report as compare
from opu.files import read_state, write_json, write_state
from opu.students import load
from opu.teachers import ParticleBank, Teacher
from opu.teachers.array_files import open_array

EVALUATION = "evaluation.safetensors"
MOST_SEEN = 200
MOST_INPUTS = 1000
ROWS = {
    "total": "student to particles",
    "noise": "particles to their law (noise)",
    "family": "best Dirichlet to that law (family)",
    "amortisation": "student beyond the best Dirichlet (amortisation)",
    "bound": "student to the best Dirichlet (bound on it)",
}


@torch.no_grad()
def keep_evaluation(
    run: Path, teacher: Teacher, inputs: Tensor, labels: Tensor | None, seen: Tensor, num_particles: int = 500
) -> None:
    """Write what a report needs of a teacher into a run folder: its particles for test inputs and for some seen ones."""
    # Evenly spaced, since rows may be sorted by class.
    seen, inputs_kept = (x[:: max(1, len(x) // most)][:most] for x, most in ((seen, MOST_SEEN), (inputs, MOST_INPUTS)))
    if labels is not None:
        labels = labels[:: max(1, len(inputs) // MOST_INPUTS)][:MOST_INPUTS]
    state = {
        "kind": "opu evaluation",
        "inputs": inputs_kept,
        "labels": labels,
        "log_particles": teacher(inputs_kept, num_particles),
        "seen": seen,
        "seen_log_particles": teacher(seen, num_particles),
    }
    write_state(run / EVALUATION, state)


def report_on_run(
    run: Path,
    *,
    inputs: Path | None = None,
    particles: Path | None = None,
    labels: Path | None = None,
    outputs: str = "probabilities",
    console: Console | None = None,
) -> dict[str, Any]:
    """Compare the student of a run with its teacher's particles; what ``fidelity.json`` holds.

    Args:
        run: A run folder, or the folder of a saved student.
        inputs: File with inputs, where the run holds no evaluation of its own.
        particles: File with their particles, ``(S, N, K)``.
        labels: File with their classes, where calibration is wanted.
        outputs: What the particles are.
        console: Where to show the table.
    """
    from opu.plotting import draw_fidelity  # before the work, so that a missing package costs none of it

    console = console or Console()
    folder = run / "student" if (run / "student").is_dir() else run
    student = load(folder)
    student_type = next(student.parameters()).dtype
    if (inputs is None) != (particles is None):
        raise ValueError(
            "--inputs and --particles belong together: the inputs, and the particles of each of them. Give both."
        )
    if inputs is not None and particles is not None:
        x, seen = _array(inputs), None
        y = None if labels is None else _array(labels)
        teacher = ParticleBank(particles, x, outputs=outputs)
        num_particles = teacher.shape[0]
    else:
        if labels is not None or outputs != "probabilities":
            raise ValueError(
                "--labels and --outputs go with --inputs and --particles; the run has its own. Leave them out."
            )
        x, y, seen, teacher = _kept(run)
        num_particles = teacher.shape[0]
    found = compare(
        student,
        teacher,
        x.to(student_type),
        labels=y,
        seen=None if seen is None else seen.to(student_type),
        num_particles=num_particles,
    )
    worst = [_of_input(found, index) for index in found.worst()]
    result = {**found.summary, "worst": worst, "sentence": found.sentence, "environment": environment()}
    write_json(run / "fidelity.json", result)
    draw_fidelity(run / "fidelity.png", found, student, x.to(student_type), teacher)
    show(result, console)
    console.print(f"In {run}: fidelity.json, fidelity.png.", highlight=False)
    return result


def show(result: dict[str, Any], console: Console) -> None:
    """The report in the terminal."""
    table = Table(title=f"{result['num_inputs']} inputs, {result['num_particles']} particles each", box=None)
    table.add_column("distance (MMD), mean over inputs")
    table.add_column("", justify="right")
    for name, words in ROWS.items():
        table.add_row(words, f"{result['mmd'][name]:.4f}")
    rank = result["spearman_of_mutual_information"]
    table.add_row("class probabilities, total variation", f"{result['total_variation']:.4f}")
    table.add_row("same most probable class", f"{result['same_class']:.1f} %")
    table.add_row("mutual information, Spearman's rank correlation", "none" if rank is None else f"{rank:.3f}")
    coverage = result["coverage"]
    table.add_row(f"particles within {100 * coverage['level']:.0f} % intervals", f"{coverage['of_teacher']:.1f} %")
    for who, values in result.get("calibration", {}).items():
        table.add_row(f"{who}: accuracy, ECE", f"{values['accuracy']:.1f} %, {values['ece']:.1f} %")
    console.print(table)
    places = ", ".join(str(each["input"]) for each in result["worst"])
    console.print(f"Worst inputs, by amortisation: {places}.", highlight=False)
    console.print(result["sentence"], highlight=False, style="bold")


def _of_input(found: Fidelity, index: int) -> dict[str, Any]:
    distances = {name: float(getattr(found.gaps, name)[index]) for name in ROWS}
    return {"input": index, **distances, "total_variation": float(found.total_variation[index])}


def _kept(run: Path) -> tuple[Tensor, Tensor | None, Tensor, ParticleBank]:
    path = run / EVALUATION
    if not path.is_file():
        raise ValueError(
            f"{run} holds no {EVALUATION}, which `opu demo` and `opu fit` write; give --inputs and --particles "
            "for a student of your own."
        )
    state = read_state(path)
    if state.get("kind") != "opu evaluation":
        raise ValueError(f"{path} does not hold the particles of a run; use another copy.")
    both = torch.cat([state["log_particles"], state["seen_log_particles"]], 1)
    teacher = ParticleBank(both, torch.cat([state["inputs"], state["seen"]]), outputs="log_probabilities")
    return state["inputs"], state["labels"], state["seen"], teacher


def _array(path: Path) -> Tensor:
    if path.suffix != ".npy":
        raise ValueError(f"inputs and labels are read from .npy files; got {path.name!r}. Use numpy.save.")
    return torch.as_tensor(open_array(path)[:].copy())
