"""Which epoch to keep: fifty small runs, each with the quality on test inputs of the epochs that several rules keep.

Every epoch's weights and held-out losses are noted, so that all rules see the same run. "Worse" means worse than the last
epoch by more than two standard errors of the difference over test inputs. In five more runs the weights are shaken in the
second half, so that an earlier epoch must be kept. The rule was chosen on seeds 0 to 4; those recorded are others.

python -m reproduction.studies.selection [--seeds 5 6 7 8 9] [--record]
"""

import itertools
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import opu
from opu.distillation.selection import Selection
from opu.environment import environment
from opu.files import rounded, write_json
from opu.measures import mean, mutual_information
from opu.students import Student
from opu.teachers import Ensemble, MCDropout, Teacher
from reproduction.paper.classifiers import train_plainly
from reproduction.studies.options import study_options

Record = dict[str, Any]
Data = tuple[Tensor, Tensor, Tensor, Tensor]
FIRST_HALF = 0.5


@dataclass(frozen=True)
class Setting:
    """Data, teacher, student and recipe of some runs."""

    data: str
    hidden: tuple[int, ...] = (64, 64)
    teacher: str = "ensemble"
    teacher_hidden: tuple[int, ...] | None = None
    shaken: bool = False
    recipe: Record = field(default_factory=dict)


RANDOM: Record = {"start_from_teacher": False}
SETTINGS = {
    "digits, all defaults": Setting("digits", (256, 256)),
    "digits, random start": Setting("digits", (256, 256), recipe=RANDOM),
    "digits, constant learning rate": Setting("digits", recipe=RANDOM | {"epochs": 60, "schedule": "constant"}),
    "digits as images, MC dropout": Setting("images", (128, 128), "dropout", recipe=RANDOM | {"epochs": 40}),
    "wine": Setting("wine", recipe={"epochs": 150}),
    "breast cancer, random start": Setting("breast_cancer", recipe=RANDOM | {"epochs": 100}),
    "iris, random start": Setting("iris", (32, 32), recipe=RANDOM | {"epochs": 200}),
    "two moons, a smaller teacher": Setting("moons", teacher_hidden=(32, 32), recipe={"epochs": 100}),
    "made, MC dropout": Setting("made", teacher="dropout", recipe=RANDOM | {"epochs": 80}),
    "made, learning rate in steps": Setting("made", recipe=RANDOM | {"epochs": 60, "schedule": "steps"}),
}
SHAKEN = {"made, shaken in the second half": Setting("made", shaken=True, recipe=RANDOM | {"epochs": 60})}


class Shaken(torch.optim.Adam):
    """Adam, with noise on the weights after each step of the second half of a run."""

    quiet = 0

    def step(self, closure: Any = None) -> Any:
        """One step."""
        super().step(closure)
        self.quiet -= 1
        for p in itertools.chain(*(group["params"] for group in self.param_groups if self.quiet < 0)):
            p.data.add_(torch.randn_like(p), alpha=0.05)


def load(name: str, seed: int) -> Data:
    """Inputs to distil on, test inputs, and the labels of both; a quarter is for testing."""
    if name == "moons":
        x, labels = datasets.make_moons(600, noise=0.2, random_state=seed)
    elif name == "made":
        x, labels = datasets.make_classification(800, 20, n_informative=8, n_classes=4, random_state=seed)
    else:
        x, labels = getattr(datasets, f"load_{'digits' if name == 'images' else name}")(return_X_y=True)
        x = (x / 8 - 1).reshape(-1, 8, 8) if name == "images" else StandardScaler().fit_transform(x)
    x, test, labels, test_labels = train_test_split(x, labels, test_size=0.25, random_state=seed, stratify=labels)
    return (
        torch.from_numpy(x).float(),
        torch.from_numpy(test).float(),
        torch.from_numpy(labels),
        torch.from_numpy(test_labels),
    )


def teacher_for(setting: Setting, x: Tensor, labels: Tensor) -> Teacher:
    """Five networks, or one with dropout."""
    sizes = [x[0].numel(), *(setting.teacher_hidden or setting.hidden)]
    rate = 0.3 if setting.teacher == "dropout" else 0.0

    def network() -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for below, above in itertools.pairwise(sizes):
            layers += [nn.Linear(below, above), nn.ReLU(), *([nn.Dropout(rate)] if rate else [])]
        net = nn.Sequential(*layers, nn.Linear(sizes[-1], int(labels.max()) + 1))
        return train_plainly(net, x, labels, epochs=80)

    return MCDropout(network(), consistent=True) if rate else Ensemble([network() for _ in range(5)])


@torch.no_grad()
def quality(student: Student, particles: Tensor, test: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """What a student loses on each test input: by the objective, by its mean, by its MI, and by the labels."""
    q, theirs, objective = student(test), mean(particles), opu.Recipe().make_objective(particles.shape[-1])
    return {
        "objective": objective(test, particles, q).double(),
        "KL from the teacher's mean": (theirs * (theirs.clamp(min=1e-12).log() - q.log_mean)).sum(-1).double(),
        "error of MI": (q.mutual_information() - mutual_information(particles)).abs().double(),
        "NLL": -q.log_mean.gather(1, labels[:, None])[:, 0].double(),
        "errors": (q.mean.argmax(-1) != labels).double(),
    }


def rules(held_out: NDArray[np.float64], kept: int) -> dict[str, int]:
    """Which epoch, counted from 0, each rule keeps, by the held-out losses of all epochs, ``(epochs, inputs)``."""
    count = held_out.shape[1]
    trimmed = np.sort(held_out, 1)[:, round(0.1 * count) : count - round(0.1 * count)]
    spread = (held_out - held_out[-1]).std(1, ddof=1) / count**0.5
    lowest = int(held_out.mean(1).argmin())
    by_t_test = lowest if (held_out[-1] - held_out[lowest]).mean() > 2 * spread[lowest] else len(held_out) - 1
    return {
        "ours": kept,
        "lowest mean": lowest,
        "lowest median": int(np.median(held_out, 1).argmin()),
        "lowest mean, a tenth trimmed at both ends": int(trimmed.mean(1).argmin()),
        "last, unless the lowest mean is 2 standard errors below": by_t_test,
    }


def run(name: str, setting: Setting, seed: int) -> Record:
    """One run; what each rule keeps, and how that differs from the last epoch on test inputs."""
    torch.manual_seed(seed)
    x, test, labels, test_labels = load(setting.data, seed)
    teacher = teacher_for(setting, x, labels)
    student = opu.students.mlp(x[0].numel(), int(labels.max()) + 1, setting.hidden)
    seen: list[tuple[NDArray[np.float64], dict[str, Tensor]]] = []
    usual = Selection.see

    def noting(self: Selection, epoch: int, values: Tensor, weights: Mapping[str, Tensor]) -> None:
        seen.append((values.numpy(), {key: w.clone() for key, w in weights.items()}))
        usual(self, epoch, values, weights)

    def shaken(parameters: Iterable[nn.Parameter]) -> Shaken:
        optimizer = Shaken(parameters, 1e-3)
        optimizer.quiet = int(FIRST_HALF * setting.recipe["epochs"] * (len(x) - len(x) // 10) // 128)
        return optimizer

    recipe = opu.Recipe(**setting.recipe, **({"optimizer": shaken} if setting.shaken else {}))
    with mock.patch.object(Selection, "see", noting), warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        done = opu.distill(teacher, student, x, recipe=recipe, progress=False)
    particles = teacher(test, 200).detach()
    student.set_novelty(None)
    found = {}
    for rule, epoch in {"last": -1, **rules(np.stack([values for values, _ in seen]), done.best_epoch - 1)}.items():
        student.load_state_dict(seen[epoch][1])
        found[rule] = (epoch % len(seen) + 1, quality(student, particles, test, test_labels))
    last = found["last"][1]
    return {
        "setting": name,
        "seed": seed,
        "epochs": len(seen),
        "held_out_inputs": len(seen[0][0]),
        "warned": bool(done.warnings),
        "rules": {rule: {"epoch": epoch, **_against(last, each)} for rule, (epoch, each) in found.items()},
    }


def _against(last: dict[str, Tensor], other: dict[str, Tensor]) -> Record:
    """Means of an epoch's losses, and their differences from those of the last epoch with standard errors."""
    differences = {key: other[key] - last[key] for key in last}
    return {
        "mean": {key: float(values.mean()) for key, values in other.items()},
        "less_last": {key: float(d.mean()) for key, d in differences.items()},
        "standard_error": {key: float(d.std() / len(d) ** 0.5) for key, d in differences.items()},
    }


def main() -> None:
    """Run every setting and seed."""
    parser = study_options(__doc__, "study-selection.json")
    parser.add_argument("--seeds", type=int, nargs="+", default=[5, 6, 7, 8, 9])
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[Record]] = {"runs": [], "shaken": []}
    for key, settings in (("runs", SETTINGS), ("shaken", SHAKEN)):
        for (name, setting), seed in itertools.product(settings.items(), options.seeds):
            found[key].append(rounded(run(name, setting, seed)))
            print(name, seed, {rule: each["epoch"] for rule, each in found[key][-1]["rules"].items()}, flush=True)
    write_json(options.out, {**found, "environment": environment()})


if __name__ == "__main__":
    main()
