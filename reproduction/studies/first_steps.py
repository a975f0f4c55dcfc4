"""What the first steps of a distillation do to a mean network that starts from its teacher's averaged weights.

python -m reproduction.studies.first_steps [--seeds 0 1 2] [--record]
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import opu
from opu.environment import environment
from opu.files import write_json
from opu.teachers import Chain, LangevinSettings, MCDropout, Teacher, WeightSamples
from reproduction.paper import classifiers
from reproduction.paper.domains import Domain, emnist, mnist
from reproduction.paper.presets import PRESETS
from reproduction.studies.options import study_options

STEPS = 40
PARTICLES = 32
CASES = [("mnist", "mmd", "paper"), ("mnist", "mmd", "paper-sgd"), ("mnist", "kl", "paper")]
CASES += [("emnist", "mmd", "paper"), ("emnist", "kl", "paper"), ("emnist", "kl", "authors")]


def sgld_teacher(domain: Domain) -> tuple[Teacher, Any]:
    """A short chain from the posterior's mode, and that mode, which stands for the averaged weights of a long one."""
    settings = LangevinSettings(batch_size=128, burn_in=2000, thinning=20, num_samples=100)
    net, strength = classifiers.mlp(10), settings.prior_precision / (2 * len(domain.x))

    def loss(x: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(net(x), labels) + strength * sum(w.square().sum() for w in net.parameters())

    classifiers.train(net, domain.x, domain.labels, loss, epochs=5)
    samples = list(Chain(net, domain.x, domain.labels, settings).samples())
    stacked = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
    mode = {name: w.detach().unsqueeze(0) for name, w in net.state_dict().items()}
    return WeightSamples(net, stacked), WeightSamples(net, mode)


def dropout_teacher(domain: Domain) -> tuple[Teacher, Any]:
    """MC dropout, and where its students start."""
    net = classifiers.lenet(47, dropout=0.5)
    x, labels = domain.x[:40_000], domain.labels[:40_000]
    classifiers.train(net, x, labels, lambda x, labels: nn.functional.cross_entropy(net(x), labels), epochs=4)
    teacher = MCDropout(net, consistent=True)
    return teacher, teacher


def watch(
    domain: Domain, teacher: Teacher, start: Any, divergence: str, preset_name: str, seed: int
) -> list[dict[str, float]]:
    """Accuracy and mean log-precision on held-out inputs, before the first step and after each."""
    torch.manual_seed(seed)
    preset = PRESETS[preset_name]
    link = preset.link
    student = opu.students.mlp(784, 10, link=link) if domain.name == "mnist" else opu.students.lenet(47, link=link)
    student.start_mean_from(start)
    seen, trace = preset.seen(teacher, divergence), []

    def noting(x: Tensor, num_particles: int) -> Tensor:
        if num_particles == PARTICLES:  # asked once before each step
            trace.append(_state(student, domain))
        return seen(x, num_particles)

    objective = preset.objective(divergence, "mc_dropout")
    recipe = replace(preset.recipe, objective=objective, num_particles=PARTICLES, epochs=1, schedule="constant")
    opu.distill(noting, student, domain.x[: STEPS * recipe.batch_size], recipe=recipe, held_out=0, progress=False)
    return [*trace, _state(student, domain)]


@torch.no_grad()
def _state(student: nn.Module, domain: Domain) -> dict[str, float]:
    x, labels = domain.held_out[:1000], domain.held_out_labels[:1000]
    q = student(x)
    accuracy = 100 * float((q.mean.argmax(-1) == labels).float().mean())
    return {"accuracy": round(accuracy, 1), "log_precision": round(float(q.log_precision.mean()), 2)}


def main() -> None:
    """Watch every case."""
    parser = study_options(__doc__, "study-first-steps.json")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    torch.manual_seed(0)
    digits, characters = mnist(), emnist()
    of = {"mnist": (digits, *sgld_teacher(digits)), "emnist": (characters, *dropout_teacher(characters))}
    cases = []
    for name, divergence, preset in CASES:
        runs = [{"seed": seed, "trace": watch(*of[name], divergence, preset, seed)} for seed in options.seeds]
        cases.append({"domain": of[name][0].name, "divergence": divergence, "preset": preset, "runs": runs})
        write_json(options.out, {"particles": PARTICLES, "cases": cases, "environment": environment()})


if __name__ == "__main__":
    main()
