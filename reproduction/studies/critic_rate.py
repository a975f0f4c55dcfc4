"""How fast a student of SGLD learns the earth mover's distance by gradient descent; judged on held-out digits alone.

python -m reproduction.studies.critic_rate [--device cuda] [--rates 0.01 0.1] [--epochs 5 20] [--jobs 6] [--record]
"""

import itertools
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from opu.environment import environment
from opu.evaluation import metrics
from opu.files import write_json
from opu.measures import named
from opu.prediction import predict_student
from opu.students import Student
from reproduction.paper.domains import mnist
from reproduction.paper.models import Models, Scale
from reproduction.paper.rows import select
from reproduction.studies.options import study_options

(ROW,) = select("mnist", ["OPU-SGLD-EMD (paper-sgd)"])
CONFIDENCE, PRECISION = named("P", "C")


def judge(student: Student, models: Models) -> dict[str, float]:
    """Accuracy, AUROC of the confidence for errors, and the median log-precision."""
    domain = models.domain
    predicted = predict_student(student.eval(), domain.held_out)
    wrong = predicted.predicted != domain.held_out_labels.cpu().numpy()
    return {
        "accuracy": round(100 * float(1 - wrong.mean()), 2),
        "errors": round(metrics.auroc(predicted.scores[CONFIDENCE], wrong), 2),
        "log_precision": round(-float(torch.as_tensor(predicted.scores[PRECISION]).median()), 2),
    }


def trial(teacher: Path, seed: int, device: str, rate: float, schedule: str, epochs: int) -> dict[str, Any]:
    """One student, from the averaged weights to the last epoch."""
    with tempfile.TemporaryDirectory() as folder:  # a distillation that lies there would be gone on with
        (Path(folder) / teacher.name).symlink_to(teacher)
        models = Models(mnist().to(torch.device(device)), Scale(), seed, Path(folder), torch.device(device), False)
        preset = models.scale.preset("paper-sgd").changed(schedule=schedule)
        preset = replace(preset, transport_rate=rate, transport_epochs=epochs)
        start = models.teacher("sgld")
        torch.manual_seed(1000 + seed)
        student = models.student(preset.link).start_mean_from(start)
        before = judge(student, models)
        models.distil(ROW, student, preset)
        return {"rate": rate, "schedule": schedule, "epochs": epochs, "before": before, "after": judge(student, models)}


def main() -> None:
    """Train the teacher, and a student for each setting."""
    parser = study_options(__doc__, "study-critic-rate.json")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=5, help="A seed that the tables do not use.")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 1e-2, 3e-2, 1e-1])
    parser.add_argument("--epochs", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--schedules", nargs="+", default=["constant", "cosine"])
    parser.add_argument("--jobs", type=int, default=1, help="Number of trials at a time.")
    options = parser.parse_args()
    grid = list(itertools.product(options.epochs, options.schedules, options.rates))
    device, trials = torch.device(options.device), []
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(options.jobs, context) as pool:
        Models(mnist().to(device), Scale(), options.seed, Path(folder), device, False).teacher("sgld")
        teacher = Path(folder) / "sgld.safetensors"
        # Long ones first, so that nothing waits at the end.
        running = {
            (epochs, schedule, rate): pool.submit(trial, teacher, options.seed, options.device, rate, schedule, epochs)
            for epochs, schedule, rate in sorted(grid, reverse=True)
        }
        for each in grid:
            trials.append(running[each].result())
            print(trials[-1], flush=True)
            write_json(options.out, {"seed": options.seed, "trials": trials, "environment": environment()})


if __name__ == "__main__":
    main()
