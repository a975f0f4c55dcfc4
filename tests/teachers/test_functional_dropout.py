"""MC dropout where dropout is called as a function inside ``forward()``, and in networks of ``torch.compile``."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opu
from opu.checks import check_randomness
from opu.teachers import MCDropout

FUNCTIONS = {
    "dropout": lambda x, on: F.dropout(x, 0.5, on),
    "in place": lambda x, on: F.dropout(x, 0.5, on, inplace=True),
    "dropout1d": lambda x, on: F.dropout1d(x.unsqueeze(1), 0.5, training=on).squeeze(1),
    "dropout2d": lambda x, on: F.dropout2d(x[:, :, None, None], 0.5, training=on).flatten(1),
    "dropout3d": lambda x, on: F.dropout3d(x[:, :, None, None, None], 0.5, training=on).flatten(1),
    "alpha": lambda x, on: F.alpha_dropout(x, 0.4, on),
    "feature alpha": lambda x, on: F.feature_alpha_dropout(x[:, :, None], 0.4, on).flatten(1),
    "torch.dropout": lambda x, on: torch.dropout(x, 0.5, on),
    "torch.dropout, named": lambda x, on: torch.dropout(x, p=0.5, train=on),
    "always on": lambda x, on: F.dropout(x, 0.5),
}


class Functional(nn.Module):
    """Dropout as a function, by itself, before a layer or after one."""

    def __init__(self, name: str = "dropout", layers: str = "none"):
        super().__init__()
        self.name, self.layers = name, layers
        self.first, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        if layers != "none":
            self.drop = nn.Dropout(0.3)

    def forward(self, x):
        z = self.first(x).relu()
        z = self.drop(z) if self.layers == "before" else z
        z = FUNCTIONS[self.name](z, self.training)
        return self.head(self.drop(z) if self.layers == "after" else z)


def network(name: str = "dropout", layers: str = "none") -> nn.Module:
    torch.manual_seed(1)
    net = Functional(name, layers)
    with torch.no_grad():
        for w in net.parameters():
            w.mul_(2)
    return net.eval()


def inputs() -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(2))


def training_passes(net: nn.Module) -> Tensor:
    net = copy.deepcopy(net).train()
    with torch.no_grad():
        return net(inputs().repeat(2000, 1)).softmax(-1).view(2000, 3, 3).double()


def assert_same_law(particles: Tensor, reference: Tensor) -> None:
    p = particles.exp().double()
    centre = (p.mean(0) + reference.mean(0)) / 2
    for a, b in ((p, reference), ((p - centre) ** 2, (reference - centre) ** 2)):
        error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
        assert float(((a.mean(0) - b.mean(0)).abs() / error).max()) < 5


@pytest.mark.parametrize("layers", ["none", "before", "after", "unused"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_marginals_are_those_of_training_passes(name, layers):
    net = network(name, layers)
    assert_same_law(MCDropout(net)(inputs(), 2000), training_passes(net))


class DropoutBlocks(nn.Module):
    """A network with dropout in its name, whose parts call it as a function."""

    def __init__(self):
        super().__init__()
        self.norm, self.block = nn.BatchNorm1d(4), network()

    def forward(self, x):
        return self.block(self.norm(x))


def test_functions_in_parts_of_a_network_named_after_dropout_are_found():
    net = DropoutBlocks().eval()
    before = copy.deepcopy(net.state_dict())
    teacher = MCDropout(net)
    particles = teacher(inputs(), 2000)
    assert all(torch.equal(w, before[name]) for name, w in net.state_dict().items())
    net.block.train()
    with torch.no_grad():
        reference = net(inputs().repeat(2000, 1)).softmax(-1).view(2000, 3, 3).double()
    assert_same_law(particles, reference)


@pytest.mark.parametrize("count", [1, 6])
def test_each_particle_and_row_has_a_mask_of_its_own(count):
    x = inputs()[:1].expand(5, 4)
    particles = MCDropout(network())(x, count).flatten(0, 1)
    assert len(particles.unique(dim=0)) > 1
    if count > 1:
        check_randomness(particles.view(count, 5, 3))
        assert float(particles.view(count, 5, 3).std(0).max()) > 1e-3
        assert float(particles.view(count, 5, 3).std(1).max()) > 1e-3


@pytest.mark.parametrize("layers", ["none", "before", "after", "unused"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_consistent_masks_refuse_functions(name, layers):
    with pytest.raises(
        ValueError, match="consistent masks need dropout in layers of its own; got dropout that is called"
    ):
        MCDropout(network(name, layers), consistent=True)(inputs(), 4)


def test_one_random_state_gives_the_same_particles():
    teacher = MCDropout(network())
    torch.manual_seed(7)
    first = teacher(inputs(), 3)
    torch.manual_seed(7)
    assert torch.equal(teacher(inputs(), 3), first)


class DropConnect(nn.Module):
    """Dropout of weights, which have no batch: one mask for all rows of a pass."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return F.linear(x, F.dropout(self.head.weight, 0.5, self.training), self.head.bias)


def test_dropout_of_weights_gets_a_mask_for_each_particle():
    particles = MCDropout(DropConnect())(inputs(), 20)
    assert float(particles.std(0).min()) > 1e-3


def test_the_student_of_such_a_teacher_has_no_dropout(tmp_path):
    net = network("dropout", "after")
    teacher = MCDropout(net)
    student = opu.students.from_teacher(teacher)
    x = torch.randn(60, 4)
    torch.testing.assert_close(student(inputs()).mean, net(inputs()).softmax(-1))
    opu.distill(teacher, student, x, recipe=opu.Recipe(epochs=1, num_particles=5))
    assert (student.predict(x).probabilities == student.predict(x).probabilities).all()
    student.save(tmp_path / "student")
    again = opu.load(tmp_path / "student")
    assert abs(again.predict(x).probabilities - student.predict(x).probabilities).max() < 1e-6


def test_a_student_whose_dropout_is_always_on_is_refused():
    teacher = MCDropout(network("always on"))
    with pytest.raises(ValueError, match=r"must predict the same for the same inputs .* training=self\.training"):
        opu.distill(teacher, opu.students.from_teacher(teacher), torch.randn(60, 4), recipe=opu.Recipe(epochs=1))


# --- torch.compile ---------------------------------------------------------------------------------------------------


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.head = nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.drop(self.first(x).relu()))


@pytest.mark.parametrize("consistent", [False, True])
@pytest.mark.parametrize("called_before", [False, True])
def test_a_compiled_network_gives_the_particles_of_the_network(consistent, called_before):
    net = Layers().eval()
    compiled = torch.compile(net, backend="eager")
    if called_before:
        compiled(inputs())
    torch.manual_seed(0)
    wanted = MCDropout(net, consistent=consistent)(inputs(), 5)
    torch.manual_seed(0)
    found = MCDropout(compiled, consistent=consistent)(inputs(), 5)
    torch.testing.assert_close(found, wanted)
    assert float(found.std(0).max()) > 1e-3
    torch.testing.assert_close(compiled(inputs()), net(inputs()))


@pytest.mark.parametrize("called_before", [False, True])
def test_functions_in_a_compiled_network_drop_units(called_before):
    net = network()
    compiled = torch.compile(net, backend="eager")
    if called_before:
        compiled(inputs())
    assert_same_law(MCDropout(compiled)(inputs(), 2000), training_passes(net))
    torch.testing.assert_close(compiled(inputs()), net(inputs()))


def test_a_network_with_a_compiled_part_drops_units():
    part = torch.compile(Functional(), backend="eager")
    net = nn.Sequential(nn.Linear(4, 4), part).eval()
    with torch.no_grad():
        before = net(inputs())
    particles = MCDropout(net)(inputs(), 30)
    assert float(particles.std(0).min()) > 1e-3
    with torch.no_grad():
        torch.testing.assert_close(net(inputs()), before)
