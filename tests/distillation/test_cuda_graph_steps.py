"""A captured step may not read a value back. Tests without a GPU refuse every operation that would."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import opu
from opu.cuda_graph import WARM_UP
from opu.distillation.recipe import Plan, Recipe
from opu.distillation.state import Run
from opu.distributions.kernels import RBF
from opu.objectives import NAMES, CrossEntropy, SampledMMD, Sinkhorn
from opu.students import as_student
from opu.teachers import MCDropout, WeightSamples
from reproduction.baselines import CategoricalStudent, ConcentrationStudent

READS_BACK = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::is_nonzero", "aten::equal"}


class NoReading(TorchDispatchMode):
    """Refuse every operation whose result the CPU would have to wait for, or that copies from the CPU."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().split(".")[0]
        boolean_index = name in ("aten::index", "aten::index_put_", "aten::index_put") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        assert name not in READS_BACK, f"{name} reads a value back"
        assert not boolean_index, f"{name} by a mask has a size that only the device knows"
        # torch.tensor and new_tensor copy numbers from the CPU, which a CUDA graph may not do.
        assert name != "aten::lift_fresh", "a tensor is made from Python numbers"
        return function(*args, **(kwargs or {}))


@pytest.fixture
def _as_if_captured(monkeypatch):
    for module in ("opu.teachers.outputs", "opu.distillation.state", "opu.objectives.sinkhorn"):
        monkeypatch.setattr(f"{module}.being_captured", lambda tensor: True)


def network():
    layers = [nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 12), nn.ReLU()]
    return nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(12, 3))


def teachers():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    states = [{name: torch.randn_like(w) for name, w in net.state_dict().items()} for _ in range(9)]
    return {
        "consistent dropout": MCDropout(network(), consistent=True),
        "dropout": MCDropout(network()),
        "weight samples": WeightSamples(net, states),
    }


OBJECTIVES = {
    # The critic's Adam counts its steps on the CPU unless it lives on a GPU, where it was seen to be captured.
    **{name: make for name, make in NAMES.items() if name != "emd"},
    "rbf": lambda: SampledMMD(RBF((0.1, 0.2))),
    "short sinkhorn": lambda: Sinkhorn(max_last_steps=3),
}


def check_step(student, objective, teacher, updates="joint"):
    run = Run(as_student(student), objective, Plan(1, 5, Recipe(optimizer=sgd, updates=updates)))
    x, transform = torch.rand(6, 1, 8, 8), opu.augment.images.default()

    def learn():
        augmented = torch.cat([x[:3], transform(x, None)[3:]])
        with torch.no_grad():
            particles = teacher(augmented, 5)
        return run.update(augmented, particles)

    for _ in range(WARM_UP):  # creates caches and optimisers, as the first real steps do
        learn()
    with NoReading():
        loss = learn()
    assert torch.isfinite(loss)


def sgd(parameters):
    # Adam counts its steps on the CPU unless it is capturable, which only a GPU allows.
    return torch.optim.SGD(parameters, 1e-3)


@pytest.mark.usefixtures("_as_if_captured")
@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_objective_reads_back_within_a_step(name):
    check_step(opu.students.mlp(64, 3, (8,)), OBJECTIVES[name](), teachers()["consistent dropout"])


@pytest.mark.usefixtures("_as_if_captured")
@pytest.mark.parametrize("name", teachers())
def test_no_teacher_reads_back_within_a_step(name):
    check_step(opu.students.mlp(64, 3, (8,)), opu.objectives.parse("kl"), teachers()[name], updates="alternating")


@pytest.mark.usefixtures("_as_if_captured")
@pytest.mark.parametrize("student", [CategoricalStudent(network()), ConcentrationStudent(network())])
def test_no_baseline_reads_back_within_a_step(student):
    check_step(student, CrossEntropy(), teachers()["weight samples"])


def test_the_check_itself_finds_a_reading():
    with pytest.raises(AssertionError, match="reads a value back"), NoReading():
        float(torch.ones(3).sum())
    with pytest.raises(AssertionError, match="by a mask"), NoReading():
        torch.ones(3)[torch.ones(3, dtype=torch.bool)]
    with pytest.raises(AssertionError, match="Python numbers"), NoReading():
        torch.tensor([1.0, 2.0])


def test_a_step_cannot_be_captured_on_the_cpu(tmp_path):
    student = opu.students.mlp(64, 3, (8,))
    with pytest.raises(ValueError, match="cuda_graph=True needs a student on a CUDA device"):
        opu.distill(
            teachers()["dropout"], student, torch.rand(30, 64), recipe=Recipe(cuda_graph=True), out=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.gpu
def test_a_captured_distillation_follows_the_plain_one():
    losses = []
    for cuda_graph in (False, True):
        torch.manual_seed(0)
        x = torch.rand(64, 64, device="cuda")
        student, net = opu.students.mlp(64, 3, (8,)).cuda(), nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).cuda()
        states = [{name: torch.randn_like(w) for name, w in net.state_dict().items()} for _ in range(5)]
        recipe = Recipe(num_particles=5, epochs=4, batch_size=16, augment=None, cuda_graph=cuda_graph)
        losses.append(opu.distill(WeightSamples(net, states), student, x, recipe=recipe, progress=False).losses)
    # All five samples are asked in every step, so that the steps draw no random numbers.
    torch.testing.assert_close(*map(torch.tensor, losses), rtol=1e-3, atol=1e-3)
