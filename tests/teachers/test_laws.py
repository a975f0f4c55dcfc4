"""Every teacher joins one table and meets every law."""

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opu.teachers import (
    SVGP,
    Chain,
    Ensemble,
    Function,
    GPSamples,
    LangevinSettings,
    LogisticSamples,
    MCDropout,
    ParticleBank,
    SklearnEnsemble,
    Teacher,
    WeightSamples,
    laplace,
)
from opu.teachers.sgpmc import GPMixing

K, ROWS = 3, 6


@dataclass
class Case:
    teacher: Teacher
    networks: list[nn.Module] = field(default_factory=list)
    total: int | None = None  # number of posterior samples, if it is finite


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, K))


def inputs() -> Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(5))


def mc_dropout(**options) -> Case:
    net = network()
    return Case(MCDropout(net, **options), [net])


def weight_samples(form) -> Case:
    net = network()
    samples = [copy.deepcopy(network().state_dict()) for _ in range(5)]
    return Case(WeightSamples(net, form(samples)), [net], total=5)


def stacked(samples):
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def ensemble() -> Case:
    networks = [network() for _ in range(4)]
    return Case(Ensemble(networks), networks, total=4)


def bank(outputs: str) -> Case:
    values = torch.randn(7, ROWS, K, requires_grad=True)
    values = {"logits": values, "probabilities": values.softmax(-1), "log_probabilities": values.log_softmax(-1)}[
        outputs
    ]
    return Case(ParticleBank(values, inputs(), outputs=outputs), total=7)


def function() -> Case:
    net = network().eval()
    return Case(
        Function(lambda x, s: torch.stack([net(x + 0.1 * torch.randn_like(x)) for _ in range(s)]), outputs="logits")
    )


def gp_samples(**options) -> Case:
    samples = torch.randn(5, 4).double(), torch.randn(7, 5, K).double(), torch.randn(7, 2).double()
    return Case(GPSamples(*samples, GPMixing(0.8, 0.8, 5.0, 5.0, 1.0), **options))


def svgp() -> Case:
    values = torch.randn(5, 4).double(), torch.randn(5, K).double(), torch.randn(K, 5, 5).double().tril()
    return Case(SVGP(*values, torch.zeros(2).double(), torch.zeros(1).double(), True))


def chain() -> Case:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, K))
    settings = LangevinSettings(first_step=1e-3, last_step=1e-3, thinning=1)
    return Case(Chain(net, inputs(), torch.arange(ROWS) % K, settings))


def forest() -> Case:
    from sklearn.ensemble import RandomForestClassifier

    x = torch.randn(60, 4)
    members = RandomForestClassifier(6, max_depth=2, random_state=0).fit(x.numpy(), torch.arange(60) % K)
    return Case(SklearnEnsemble(members), total=6)


def last_layer() -> Case:
    return Case(laplace(network(), torch.randn(30, 4), torch.arange(30) % K))


CASES = {
    "mc dropout": mc_dropout,
    "mc dropout, consistent": lambda: mc_dropout(consistent=True),
    "mc dropout, little memory": lambda: mc_dropout(memory_budget=500),
    "weight samples, list": lambda: weight_samples(list),
    "weight samples, stacked": lambda: weight_samples(stacked),
    "logistic samples": lambda: Case(LogisticSamples(torch.randn(6, K - 1, 4), torch.randn(6, K - 1)), total=6),
    "ensemble": ensemble,
    "bank of probabilities": lambda: bank("probabilities"),
    "bank of logits": lambda: bank("logits"),
    "bank of log-probabilities": lambda: bank("log_probabilities"),
    "function": function,
    "chain": chain,
    "forest": forest,
    "last-layer Laplace": last_layer,
    "gaussian process samples": gp_samples,
    "gaussian process samples, little memory": lambda: gp_samples(memory_budget=2000),
    "variational gaussian process": svgp,
}
FINITE = {
    name: make for name, make in CASES.items() if name.startswith(("weight", "logistic", "ensemble", "bank", "forest"))
}
every = pytest.mark.parametrize("make", CASES.values(), ids=CASES)
finite = pytest.mark.parametrize("make", FINITE.values(), ids=FINITE)
STATELESS = {name: make for name, make in CASES.items() if name != "chain"}
stateless = pytest.mark.parametrize("make", STATELESS.values(), ids=STATELESS)


@every
@pytest.mark.parametrize("count", [1, 4])
def test_the_axes_are_samples_batch_classes(make, count):
    case = make()
    assert isinstance(case.teacher, Teacher)
    assert case.teacher(inputs(), count).shape == (count, ROWS, K)
    assert case.teacher(inputs()[2:3], count).shape == (count, 1, K)


@every
def test_particles_are_finite_log_probabilities_that_normalise(make):
    particles = make().teacher(inputs(), 4)
    assert particles.is_floating_point()
    assert bool(torch.isfinite(particles).all())
    assert float(particles.max()) <= 1e-6
    torch.testing.assert_close(particles.exp().sum(-1), torch.ones(4, ROWS), rtol=0, atol=1e-5)


@every
def test_particles_differ(make):
    particles = make().teacher(inputs(), 4)
    assert float(particles.std(0).min()) > 0


@every
def test_particles_have_no_gradient(make):
    particles = make().teacher(inputs().requires_grad_(), 3)
    assert not particles.requires_grad
    assert particles.grad_fn is None


@every
def test_modes_weights_and_buffers_are_left_alone(make):
    case = make()
    for net in case.networks:
        net.train()
        net[0].eval()
        net[3].eval()
    before = [copy.deepcopy(net.state_dict()) for net in case.networks]
    x = inputs()
    case.teacher(x, 3)
    assert torch.equal(x, inputs())
    for net, state in zip(case.networks, before, strict=True):
        assert [child.training for child in net] == [False, True, True, False, True]
        assert net.training
        assert all(torch.equal(w, state[name]) for name, w in net.state_dict().items())
        assert all(w.grad is None and w.requires_grad for w in net.parameters())
        assert not any(child._forward_hooks or child._forward_pre_hooks for child in net.modules())


@every
@pytest.mark.parametrize("count", [0, -2])
def test_fewer_than_one_particle_is_refused(make, count):
    with pytest.raises(ValueError, match=f"num_particles must be at least 1; got {count}"):
        make().teacher(inputs(), count)


@stateless
def test_one_random_state_gives_the_same_particles(make):
    teacher = make().teacher
    torch.manual_seed(7)
    first = teacher(inputs(), 3)
    torch.manual_seed(7)
    assert torch.equal(teacher(inputs(), 3), first)


@finite
def test_asked_for_more_a_finite_teacher_gives_all_its_samples(make):
    case = make()
    everything = case.teacher(inputs(), case.total)
    assert everything.shape == (case.total, ROWS, K)
    assert torch.equal(case.teacher(inputs(), case.total + 100), everything)


@finite
def test_asked_for_fewer_a_finite_teacher_chooses_distinct_samples(make):
    case = make()
    everything = case.teacher(inputs(), case.total)
    for _ in range(5):
        some = case.teacher(inputs(), case.total - 2)
        which = (some[:, None] - everything).abs().amax((-1, -2)).min(1)
        assert float(which.values.max()) < 1e-5
        assert len(set(which.indices.tolist())) == case.total - 2


@finite
def test_rows_do_not_depend_on_their_company(make):
    case = make()
    x, order = inputs(), torch.tensor([4, 0, 5, 2, 2])
    everything = case.teacher(x, case.total)
    torch.testing.assert_close(case.teacher(x[order], case.total), everything[:, order], rtol=1e-5, atol=1e-6)


# --- threads ---------------------------------------------------------------------------------------------------------


@contextmanager
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def in_threads(work: Callable[[int], Any], num_threads: int = 4) -> list[Any]:
    with switching_often(), ThreadPoolExecutor(num_threads) as pool:
        return list(pool.map(work, range(num_threads)))


def mixed_modes(networks: list[nn.Module], train: bool) -> list[bool]:
    for net in networks:
        net.train(train)
        net[0].train(not train)
    return [child.training for net in networks for child in net.modules()]


@finite
@pytest.mark.parametrize("train", [False, True], ids=["evaluation", "training"])
def test_threads_get_the_particles_of_a_single_one(make, train):
    case = make()
    modes = mixed_modes(case.networks, train)
    parts = [inputs()[start : start + rows] for start in range(3) for rows in (1, 2, 4)]
    wanted = [case.teacher(part, case.total) for part in parts]

    def work(number: int) -> int:
        order = [(number + step) % len(parts) for step in range(40)]
        return sum(not torch.equal(case.teacher(parts[i], case.total), wanted[i]) for i in order)

    assert sum(in_threads(work)) == 0
    assert [child.training for net in case.networks for child in net.modules()] == modes


@every
@pytest.mark.parametrize("train", [False, True], ids=["evaluation", "training"])
def test_threads_get_particles_as_good_as_those_of_a_single_one(make, train):
    """Right axes, normalised, finite, with the right average for each row; every mode, buffer and hook as before."""
    case = make()
    if isinstance(case.teacher, Chain):
        case.teacher.walk(200)  # away from its start
    modes = mixed_modes(case.networks, train)
    before = [copy.deepcopy(net.state_dict()) for net in case.networks]
    alone = torch.cat([case.teacher(inputs(), 50) for _ in range(8)]).exp().double()

    def work(number: int) -> Tensor:
        found = []
        for step in range(12):
            start, rows = (number + step) % 3, 1 + (number + step) % 4
            particles = case.teacher(inputs()[start : start + rows], 7)
            assert particles.shape == (min(7, case.total or 7), rows, K)
            torch.testing.assert_close(particles.exp().sum(-1), torch.ones(particles.shape[:2]), rtol=0, atol=1e-5)
            found += [(start + row, particles[:, row]) for row in range(rows)]
        return found

    found = [each for part in in_threads(work) for each in part]
    assert [child.training for net in case.networks for child in net.modules()] == modes
    for net, state in zip(case.networks, before, strict=True):
        assert all(torch.equal(w, state[name]) for name, w in net.state_dict().items())
        assert not any(child._forward_hooks or child._forward_pre_hooks for child in net.modules())
    if isinstance(case.teacher, Chain):
        assert case.teacher.step == 200 + 8 * 50 + 4 * 12 * 7  # no step is lost; its states are not independent
        return
    for row in range(ROWS):
        p = torch.cat([particles for which, particles in found if which == row]).exp().double()
        error = (p.var(0) / len(p) + alone[:, row].var(0) / len(alone)).sqrt()
        assert float(((p.mean(0) - alone[:, row].mean(0)).abs() / error).max()) < 5


def test_two_teachers_of_one_network_do_not_disturb_each_other():
    """An ensemble reads a network in evaluation mode while masks are drawn in it."""
    networks = [network().eval() for _ in range(3)]
    plain, dropping = Ensemble(networks), MCDropout(networks[0])
    wanted = plain(inputs(), 3)

    def work(number: int) -> int:
        teachers = [plain, dropping] if number % 2 else [dropping, plain]
        found = [teachers[step % 2](inputs(), 3) for step in range(60)]
        ours = found[::2] if teachers[0] is plain else found[1::2]
        return sum(not torch.equal(each, wanted) for each in ours)

    assert sum(in_threads(work)) == 0


def test_importing_teachers_needs_no_extra():
    code = "import sys; sys.modules |= dict.fromkeys(['gpytorch', 'laplace', 'polyagamma']); import opu.teachers"
    subprocess.run([sys.executable, "-c", code], check=True)
