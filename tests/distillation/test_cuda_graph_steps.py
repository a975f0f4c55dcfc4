"""A recorded step may not read a value back. Without a GPU this can still be seen: no such operation may be asked for."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import opu
from opu import cuda_graph
from reproduction.baselines import CategoricalStudent, ConcentrationStudent
from opu.distributions.kernels import RBF
from opu.objectives import NAMES, CrossEntropy, SampledMMD, Sinkhorn
from opu.teachers import MCDropout, WeightSamples
from opu.distillation.state import Run, Schedule

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
        # torch.tensor and new_tensor copy numbers from the CPU, which a recording may not do.
        assert name != "aten::lift_fresh", "a tensor is made from Python numbers"
        return function(*args, **(kwargs or {}))


@pytest.fixture
def _as_if_recorded(monkeypatch):
    for module in ("opu.teachers.base", "opu.training", "opu.objectives.sinkhorn"):
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
    # The critic's Adam counts its steps on the CPU unless it lives on a GPU, where it was seen to be recorded.
    **{name: make for name, make in NAMES.items() if name != "emd"},
    "rbf": lambda: SampledMMD(RBF((0.1, 0.2))),
    "short sinkhorn": lambda: Sinkhorn(most_last_steps=3),
}


def check_step(run, teacher, transform):
    x = torch.rand(6, 1, 8, 8)

    def learn():
        wide = torch.cat([x[:3], transform(x, None)[3:]])
        with torch.no_grad():
            particles = teacher(wide, 5)
        return run.update(wide, particles)

    for _ in range(captured.WARM_UP):  # lets caches and optimisers come into being, as the real thing does
        learn()
    with NoReading():
        loss = learn()
    assert torch.isfinite(loss)


@pytest.mark.usefixtures("_as_if_recorded")
@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_objective_reads_back_within_a_step(name):
    student = opu.students.mlp(64, 3, (8,))
    run = Run(student, OBJECTIVES[name](), [list(student.parameters())], sgd, Schedule(6, 6, 5, 1e-3, "cosine"))
    check_step(run, teachers()["consistent dropout"], opu.augment.images.default())


@pytest.mark.usefixtures("_as_if_recorded")
@pytest.mark.parametrize("name", teachers())
def test_no_teacher_reads_back_within_a_step(name):
    student = opu.students.mlp(64, 3, (8,))
    groups = [list(student.mean_parameters()), list(student.precision_parameters())]
    run = Run(student, opu.objectives.parse("kl"), groups, sgd, Schedule(6, 6, 5, 1e-3, "cosine"))
    check_step(run, teachers()[name], opu.augment.images.default())


@pytest.mark.usefixtures("_as_if_recorded")
@pytest.mark.parametrize("student", [CategoricalStudent(network()), ConcentrationStudent(network())])
def test_no_baseline_reads_back_within_a_step(student):
    run = Run(student, CrossEntropy(), [list(student.parameters())], sgd, Schedule(6, 6, 5, 1e-3, "cosine"))
    check_step(run, teachers()["weight samples"], opu.augment.images.default())


def sgd(parameters):
    # Adam counts its steps on the CPU unless it is told that it will be recorded, which only a GPU allows.
    return torch.optim.SGD(parameters, 1e-3)


def test_the_check_itself_finds_a_reading():
    with pytest.raises(AssertionError, match="reads a value back"), NoReading():
        float(torch.ones(3).sum())
    with pytest.raises(AssertionError, match="by a mask"), NoReading():
        torch.ones(3)[torch.ones(3, dtype=torch.bool)]
    with pytest.raises(AssertionError, match="Python numbers"), NoReading():
        torch.tensor([1.0, 2.0])


def test_a_step_cannot_be_recorded_on_the_cpu(tmp_path):
    student = opu.students.mlp(64, 3, (8,))
    with pytest.raises(ValueError, match="graph=True needs a student on a CUDA device"):
        opu.distill(teachers()["dropout"], student, torch.rand(30, 64), graph=True, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.gpu
def test_a_recording_does_what_the_function_does():
    weights = [torch.zeros(3, device="cuda") for _ in range(2)]
    rate = torch.zeros((), device="cuda")

    def step(weight):
        def move(x):
            weight.add_(rate * x)
            return weight.sum()

        return move

    recorded, plain = captured.CudaGraph(step(weights[0])), step(weights[1])
    for number in range(10):
        rate.fill_(1 / (1 + number))
        x = torch.randn(3, device="cuda")
        torch.testing.assert_close(recorded(x), plain(x))
    torch.testing.assert_close(*weights)
    with pytest.raises(AssertionError, match="one shape"):
        recorded(torch.ones(1, device="cuda"))
