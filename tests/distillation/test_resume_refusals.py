"""A run is resumed with what it began with: anything else is refused in one sentence, and nothing in its folder changes."""

import contextlib
import copy
import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset

import opu
from opu.files import read_state, write_state
from opu.objectives import BaseObjective, ClippedKL, CriticEMD, ForwardKL, Sinkhorn
from opu.teachers import Ensemble, Function, LogisticSamples, MCDropout, ParticleBank, SklearnEnsemble, WeightSamples

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
HELD_OUT = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))


class Stopped(RuntimeError):
    """Stands in for a kill."""


def net(seed=0, rate=0.5, norm=False, scale=1.0):
    torch.manual_seed(seed)
    layers = [nn.Linear(4, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU(), nn.Dropout(rate), nn.Linear(8, 3)]
    made = nn.Sequential(*layers).eval()
    with torch.no_grad():
        made[0].weight[0, 0] *= scale
    return made


def student(*widths, **options):
    torch.manual_seed(7)
    return opu.students.mlp(4, 3, widths or (8,), **options)


RECIPE = opu.Recipe(steps=9, batch_size=16, num_particles=4, checkpoint_every=2)


def stop_at_epoch(number):
    def on_epoch(epoch):
        if epoch.epoch == number:
            raise Stopped

    return on_epoch


def distilled(out, teacher, inputs, *, held_out=0.1, stop=None, ours=None, recipe=RECIPE):
    torch.manual_seed(3)
    ours = ours or student()
    on_epoch = None if stop is None else stop_at_epoch(stop)
    opu.distill(
        teacher, ours, inputs, recipe=recipe, held_out=held_out, out=out, resume=True, progress=False, on_epoch=on_epoch
    )
    return ours.state_dict()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused(out, match, *arguments, **options):
    before = contents(out)
    with pytest.raises(ValueError, match=match) as refusal:
        distilled(out, *arguments, **options)
    assert "\n" not in str(refusal.value)
    assert contents(out) == before


def assert_goes_on(out, whole, *arguments, **options):
    again = distilled(out, *arguments, **options)
    assert all(torch.equal(w, again[name]) for name, w in whole.items())


def changed(x: Tensor) -> Tensor:
    x = x.clone()
    x[37, 2] = torch.nextafter(x[37, 2], torch.tensor(9.0))
    return x


# --- inputs ----------------------------------------------------------------------------------------------------------


class Rows(Dataset):
    """A map-style dataset of a user's own."""

    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], index % 3


class Stream(IterableDataset):
    def __init__(self, x):
        self.x = x

    def __iter__(self):
        yield from self.x


@dataclass
class Parts:
    left: Tensor
    right: Tensor


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, left, right):
        return self.net(torch.cat([left, right], -1))


class OfParts(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, parts):
        return self.net(torch.cat([parts.left, parts.right], -1))


KINDS = {
    "tensor": lambda x: x,
    "array in double precision": lambda x: x.double().numpy(),
    "list of batches": lambda x: list(x.split(7)),
    "collected generator": lambda x: iter(x.split(7)),
    "dataset": Rows,
    "tensor dataset": lambda x: TensorDataset(x, torch.arange(len(x))),
    "loader": lambda x: DataLoader(TensorDataset(x, torch.arange(len(x))), 15),
    "shuffled loader": lambda x: DataLoader(TensorDataset(x), 15, shuffle=True),
    "loader of a dataset": lambda x: DataLoader(Rows(x), 15, shuffle=True),
}
CHANGES = {
    "one value": (changed, "these differ in their values"),
    "one row fewer": (
        lambda x: x[:-1],
        r"these differ in their number of (rows|items) \(59 now, 60 before\)|these differ in their values",
    ),
    "another order": (lambda x: x.flip(0), "these differ in their values"),
}
WITHOUT_STEPS = opu.Recipe(epochs=2, batch_size=16, num_particles=4, checkpoint_every=2)


@pytest.mark.parametrize("kind", KINDS)
def test_other_inputs_are_refused_and_the_same_go_on(kind, tmp_path):
    make, teacher = KINDS[kind], MCDropout(net())
    recipe = WITHOUT_STEPS if kind == "collected generator" else RECIPE
    whole = distilled(tmp_path / "whole", teacher, make(X), recipe=recipe)
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", teacher, make(X), stop=1, recipe=recipe)
    for change, words in CHANGES.values():
        words = f"resumed with the inputs it began with; .*({words})"
        assert_refused(tmp_path / "run", words, teacher, make(change(X)), recipe=recipe)
    assert_goes_on(tmp_path / "run", whole, teacher, make(X.clone()), recipe=recipe)


def test_a_stream_is_known_by_its_first_row_and_by_its_length(tmp_path):
    teacher = MCDropout(net())
    whole = distilled(tmp_path / "whole", teacher, Stream(X), recipe=WITHOUT_STEPS)
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", teacher, Stream(X), stop=1, recipe=WITHOUT_STEPS)
    for other, words in (
        (Stream(X + 1), "these differ in their first row"),
        (Stream(X[:30]), r"these differ in their number of steps in an epoch \(2 now, 4 before\)"),
        (X, r"these differ in their kind \(rows in memory now, a stream before\)"),
    ):
        words = f"resumed with the inputs it began with; {words}"
        assert_refused(tmp_path / "run", words, teacher, other, recipe=WITHOUT_STEPS)
    assert_goes_on(tmp_path / "run", whole, teacher, Stream(X), recipe=WITHOUT_STEPS)


def test_a_generator_is_known_by_its_first_rows(tmp_path):
    teacher = MCDropout(net())

    def batches(x):
        return (x[8 * i : 8 * i + 16] for i in range(20))

    x = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    whole = distilled(tmp_path / "whole", teacher, batches(x))
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", teacher, batches(x), stop=1)
    words = "resumed with the inputs it began with; these differ in their values of the first rows"
    assert_refused(tmp_path / "run", words, teacher, batches(x + 1))
    assert_goes_on(tmp_path / "run", whole, teacher, batches(x))


class Noisy(Rows):
    """A random change of each item, by global numbers and by a source of its own; both go on as if nobody had looked."""

    def __init__(self, x):
        super().__init__(x)
        self.own = np.random.default_rng(0)
        self.generator = torch.Generator().manual_seed(0)

    def __getitem__(self, index):
        noise = torch.randn(4) + self.own.random() + torch.rand(4, generator=self.generator)
        return self.x[index] + 0.1 * noise


def test_items_that_are_random_are_not_compared_but_their_number_is(tmp_path):
    teacher = MCDropout(net())
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", teacher, Noisy(X), stop=1)
    words = r"resumed with the inputs it began with; these differ in their number of rows \(59 now, 60 before\)"
    assert_refused(tmp_path / "run", words, teacher, Noisy(X[:-1]))
    distilled(tmp_path / "run", teacher, Noisy(X))


def test_inputs_are_not_disturbed_by_a_look(tmp_path):
    from opu.inputs import as_source

    torch.manual_seed(0)
    dataset = Noisy(X)
    source = as_source(dataset)
    states = torch.get_rng_state(), dataset.own.bit_generator.state, dataset.generator.get_state()
    source.fingerprint()
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == dataset.own.bit_generator.state
    assert torch.equal(states[2], dataset.generator.get_state())


def test_a_loader_is_the_same_with_other_workers_padding_and_labels(tmp_path):
    from opu.inputs import as_source

    def padded(rows):
        longest = max(len(row) for row, _ in rows)
        return torch.stack([nn.functional.pad(row, (0, longest - len(row))) for row, _ in rows])

    rows = [(torch.arange(1, 2 + i % 5), i) for i in range(20)]
    other_labels = [(row, -label) for row, label in rows]
    loaders = [
        DataLoader(data, size, shuffle=shuffle, num_workers=workers, collate_fn=padded, drop_last=True)
        for data, size, shuffle, workers in ((rows, 4, True, 0), (rows, 4, False, 2), (other_labels, 4, True, 0))
    ]
    found = [as_source(loader).fingerprint() for loader in loaders]
    assert found[0] == found[1] == found[2]
    assert found[0]["values"] is not None
    streams = [DataLoader(Stream(X), size, num_workers=workers) for size, workers in ((4, 0), (9, 1))]
    first = [as_source(stream).fingerprint()["first row"] for stream in streams]
    assert first[0] == first[1] is not None


class Batches:
    """An iterable of batches that can be read again."""

    def __init__(self, x, size):
        self.x, self.size = x, size

    def __iter__(self):
        return iter(self.x.split(self.size))


IN_BATCHES = {
    "loader": lambda size: DataLoader(TensorDataset(X), size),
    "shuffled loader": lambda size: DataLoader(TensorDataset(X), size, shuffle=True),
    "batch sampler": lambda size: DataLoader(Rows(X), batch_sampler=BatchSampler(SequentialSampler(X), size, False)),
    "list of batches": lambda size: DataLoader(
        Rows(X), batch_sampler=[t.tolist() for t in torch.arange(60).split(size)]
    ),
    "loader of a stream": lambda size: DataLoader(Stream(X), size),
    "iterable": lambda size: Batches(X, size),
}


@pytest.mark.parametrize("make", IN_BATCHES.values(), ids=IN_BATCHES)
def test_batches_of_another_size_are_refused_though_their_number_is_the_same(make, tmp_path):
    teacher = MCDropout(net())
    whole = distilled(tmp_path / "whole", teacher, make(15))
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", teacher, make(15), stop=1)
    words = r"resumed with the inputs it began with; these differ in their batch size \(16 now, 15 before\)"
    assert_refused(tmp_path / "run", words, teacher, make(16))
    assert_goes_on(tmp_path / "run", whole, teacher, make(15))


def test_batches_of_random_sizes_are_not_compared(tmp_path):
    class RandomSizes(Batches):
        def __iter__(self):
            return iter(self.x.split(int(torch.randint(5, 30, ()))))

    with pytest.raises(Stopped):
        distilled(tmp_path / "run", MCDropout(net()), RandomSizes(X, 0), stop=1)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["fingerprint"]["inputs"]["batch size"] is None
    distilled(tmp_path / "run", MCDropout(net()), RandomSizes(X, 0))


@pytest.mark.parametrize("kind", ["dict", "tuple", "dataclass"])
def test_every_part_of_inputs_counts(kind, tmp_path):
    def make(x):
        left, right = x[:, :1].clone(), x[:, 1:].clone()
        return {"dict": {"left": left, "right": right}, "tuple": (left, right), "dataclass": Parts(left, right)}[kind]

    teacher = MCDropout(OfParts() if kind == "dataclass" else TwoInputs())
    ours = [opu.students.from_teacher(teacher, example=make(X[:2])) for _ in range(4)]
    for other in ours[1:]:
        other.load_state_dict(ours[0].state_dict())
    whole = distilled(tmp_path / "whole", teacher, make(X), ours=ours[0])
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", teacher, make(X), ours=ours[1], stop=1)
    assert_refused(tmp_path / "run", "these differ in their values", teacher, make(changed(X)), ours=ours[2])
    assert_goes_on(tmp_path / "run", whole, teacher, make(X), ours=ours[3])


# --- teachers --------------------------------------------------------------------------------------------------------


def forest(seed):
    from sklearn.ensemble import RandomForestClassifier

    labels = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
    return SklearnEnsemble(RandomForestClassifier(5, max_depth=2, random_state=seed).fit(X.numpy(), labels.numpy()))


def samples(count, scale=1.0):
    states = [copy.deepcopy(net(seed, scale=scale if seed == 1 else 1.0).state_dict()) for seed in range(count)]
    return WeightSamples(net(), states)


def logistic(scale):
    generator = torch.Generator().manual_seed(0)
    coefficients, intercepts = torch.randn(6, 2, 4, generator=generator), torch.randn(6, 2, generator=generator)
    coefficients[3, 1, 2] *= scale
    return LogisticSamples(coefficients, intercepts)


def bank(inputs, scale=1.0):
    particles = torch.randn(5, 60, 3, generator=torch.Generator().manual_seed(0))
    particles[1, 50, 2] *= scale
    return ParticleBank(particles, inputs, outputs="logits")


class Drawn:
    """A teacher of a user's own: a network as an attribute, a count of its calls, and a cache."""

    def __init__(self, net):
        self.net, self.calls, self.cache = net, 0, {}

    def __call__(self, x, num_particles):
        self.calls += 1
        self.cache[self.calls] = x
        return drawn(self.net, x, num_particles)

    def method(self, x, num_particles):
        return self(x, num_particles)


def drawn(net, x, num_particles):
    with torch.no_grad():
        noise = torch.randn(num_particles, 1, 1)
        return (net(x) + noise * torch.tensor([1.0, 0.0, -1.0])).log_softmax(-1)


def closure(net):
    calls = []

    def teacher(x, num_particles):
        calls.append(len(x))
        return drawn(net, x, num_particles)

    return teacher


def closure_over_dropout(**options):
    dropout = MCDropout(net(), **options)
    return lambda x, num_particles: dropout(x, num_particles)


GLOBAL = net()


def reads_a_global(x, num_particles):
    return drawn(GLOBAL, x, num_particles)


class OwnDropout(nn.Module):
    """A dropout layer of a user's own, which does not say its rate."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        return nn.functional.dropout(x, self.rate, self.training)


def own_dropout(rate):
    made = net()
    return MCDropout(nn.Sequential(*made[:2], OwnDropout(rate), made[3]))


def statistics(shift):
    made = net(norm=True)
    made[1].running_mean += shift
    return MCDropout(made)


TEACHERS = {
    "weights": (lambda: MCDropout(net()), lambda: MCDropout(net(scale=1.0000002)), "this one differs in its net"),
    "dropout rate": (lambda: MCDropout(net()), lambda: MCDropout(net(rate=0.4)), "this one differs in its net"),
    "own dropout": (lambda: own_dropout(0.5), lambda: own_dropout(0.4), "this one differs in its net"),
    "statistics": (lambda: statistics(0.0), lambda: statistics(0.1), "this one differs in its net"),
    "masks": (
        lambda: MCDropout(net()),
        lambda: MCDropout(net(), consistent=True),
        r"this one differs in its consistent \(True now, False before\)",
    ),
    "class": (
        lambda: MCDropout(net()),
        lambda: samples(3),
        r"this one differs in its class \(WeightSamples now, MCDropout before\)",
    ),
    "members": (
        lambda: Ensemble([net(i) for i in range(3)]),
        lambda: Ensemble([net(i) for i in (0, 2, 1)]),
        "this one differs in its members",
    ),
    "number of members": (
        lambda: Ensemble([net(i) for i in range(3)]),
        lambda: Ensemble([net(i) for i in range(4)]),
        "this one differs in its members",
    ),
    "weight samples": (lambda: samples(3), lambda: samples(3, 1.0000002), "this one differs in its samples"),
    "number of samples": (lambda: samples(3), lambda: samples(4), "this one differs in its samples"),
    "logistic": (lambda: logistic(1.0), lambda: logistic(1.1), "this one differs in its coefficients"),
    "forest": (lambda: forest(0), lambda: forest(1), "this one differs in its members"),
    "bank": (lambda: bank(X), lambda: bank(X, 1.1), "this one differs in its particles"),
    "order of a bank": (lambda: bank(X), lambda: bank(X.flip(0)), "this one differs in its inputs"),
    "bank without inputs": (lambda: bank(None), lambda: bank(None, 1.1), "this one differs in its particles"),
    "object": (lambda: Drawn(net()), lambda: Drawn(net(scale=1.1)), "this one differs in its net"),
    "method": (lambda: Drawn(net()).method, lambda: Drawn(net(scale=1.1)).method, "this one differs in its net"),
    "closure": (lambda: closure(net()), lambda: closure(net(scale=1.1)), "this one differs in its net"),
    "closure over a teacher": (
        closure_over_dropout,
        lambda: closure_over_dropout(consistent=True),
        "this one differs in its dropout",
    ),
    "partial": (
        lambda: functools.partial(drawn, net()),
        lambda: functools.partial(drawn, net(scale=1.1)),
        "this one differs in its argument 0",
    ),
    "function": (
        lambda: Function(closure(net())),
        lambda: Function(closure(net(scale=1.1))),
        "this one differs in its function",
    ),
}


@pytest.mark.parametrize("name", TEACHERS)
def test_another_teacher_is_refused_and_the_same_goes_on(name, tmp_path):
    make, other, words = TEACHERS[name]
    recipe = opu.Recipe(steps=9, batch_size=16, num_particles=4, checkpoint_every=2, augment=None)
    whole = distilled(tmp_path / "whole", make(), X, recipe=recipe)
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", make(), X, stop=1, recipe=recipe)
    assert_refused(tmp_path / "run", f"resumed with the teacher it began with; {words}", other(), X, recipe=recipe)
    assert_goes_on(tmp_path / "run", whole, make(), X, recipe=recipe)


def test_a_network_that_a_function_reads_from_its_module_counts(tmp_path, monkeypatch):
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", reads_a_global, X, stop=1)
    monkeypatch.setitem(globals(), "GLOBAL", net(scale=1.1))
    assert_refused(
        tmp_path / "run", "resumed with the teacher it began with; this one differs in its GLOBAL", reads_a_global, X
    )
    monkeypatch.undo()
    distilled(tmp_path / "run", reads_a_global, X)


def test_a_teacher_that_has_been_used_in_between_is_the_same(tmp_path):
    """Caches that fill, as in a notebook where a run was interrupted, do not count."""
    for teacher in (Drawn(net()), MCDropout(net()), samples(3), bank(None)):
        out = tmp_path / type(teacher).__name__
        recipe = opu.Recipe(steps=9, batch_size=16, num_particles=4, checkpoint_every=2, augment=None)
        with pytest.raises(Stopped):
            distilled(out, teacher, X, stop=1, recipe=recipe)
        teacher(X[:3], 2)
        distilled(out, teacher, X, recipe=recipe)


def test_a_function_that_reads_nothing_cannot_be_compared(tmp_path):
    def teacher(x, num_particles):
        return torch.randn(num_particles, len(x), 3).log_softmax(-1)

    with pytest.raises(Stopped):
        distilled(tmp_path / "run", teacher, X, stop=1)
    distilled(tmp_path / "run", lambda x, s: torch.randn(s, len(x), 3).log_softmax(-1), X)


@pytest.mark.filterwarnings("ignore:this teacher gives other particles")
def test_a_chain_that_has_moved_on_is_the_same_and_one_with_other_data_is_not(tmp_path):
    from opu.teachers import Chain, LangevinSettings

    settings = LangevinSettings(first_step=1e-3, last_step=1e-3, thinning=1)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    labels = torch.arange(60) % 3
    chain = Chain(plain, X, labels, settings)
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", chain, X, stop=1)
    assert_refused(
        tmp_path / "run",
        "teacher it began with; this one differs in its labels",
        Chain(plain, X, 2 - labels, settings),
        X,
    )
    distilled(tmp_path / "run", chain, X)


# --- held-out inputs, students ---------------------------------------------------------------------------------------


def test_other_held_out_inputs_are_refused(tmp_path):
    teacher = MCDropout(net())
    whole = distilled(tmp_path / "whole", teacher, X, held_out=HELD_OUT)
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", teacher, X, held_out=HELD_OUT, stop=1)
    for other, words in (
        (HELD_OUT[:-1], r"these differ in their number of rows \(11 now, 12 before\)"),
        (HELD_OUT.flip(0), "these differ in their values"),
        (0.2, "these differ in their (kind|fraction)"),
    ):
        words = f"resumed with the held-out inputs it began with; {words}"
        assert_refused(tmp_path / "run", words, teacher, X, held_out=other)
    assert_goes_on(tmp_path / "run", whole, teacher, X, held_out=HELD_OUT.numpy())


def test_another_fraction_is_refused(tmp_path):
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", MCDropout(net()), X, stop=1)
    words = r"held-out inputs it began with; these differ in their fraction \(0.2 now, 0.1 before\)"
    assert_refused(tmp_path / "run", words, MCDropout(net()), X, held_out=0.2)


def test_a_shuffled_loader_of_held_out_inputs_goes_on(tmp_path):
    def held_out(x):
        return DataLoader(TensorDataset(x), 5, shuffle=True)

    with pytest.raises(Stopped):
        distilled(tmp_path / "run", MCDropout(net()), X, held_out=held_out(HELD_OUT), stop=1)
    words = "resumed with the held-out inputs it began with; these differ in their values"
    assert_refused(tmp_path / "run", words, MCDropout(net()), X, held_out=held_out(HELD_OUT + 1))
    distilled(tmp_path / "run", MCDropout(net()), X, held_out=held_out(HELD_OUT))


def test_another_student_is_refused(tmp_path):
    teacher = MCDropout(net())
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", teacher, X, stop=1)
    assert_refused(
        tmp_path / "run", "student it began with; this one differs in its layers", teacher, X, ours=student(8, 8)
    )
    tanh = student()
    tanh.mean_net = nn.Sequential(*(nn.Tanh() if isinstance(layer, nn.ReLU) else layer for layer in tanh.mean_net))
    assert_refused(tmp_path / "run", "student it began with; this one differs in its layers", teacher, X, ours=tanh)
    words = r"student it began with; this one differs in its type of weights \(float64 now, float32 before\)"
    assert_refused(tmp_path / "run", words, teacher, X, ours=student().double())


@pytest.mark.filterwarnings("ignore:this run began with a version that kept no fingerprints")
@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: student(9), r"mean_net.1.weight was float32 of shape \(8, 4\) and is float32 of shape \(9, 4\) now"),
        (lambda: student(8, 8), r"mean_net.\d.weight was .* and is "),
        (lambda: student().double(), r"mean_net.1.weight was float32 of shape \(8, 4\) and is float64 of shape"),
    ],
)
def test_another_student_for_an_old_run_is_refused(other, words, tmp_path):
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", MCDropout(net()), X, stop=1)
    without_fingerprint(tmp_path / "run")
    words = f"a student of the same layers; its weight {words}"
    assert_refused(tmp_path / "run", words, MCDropout(net()), X, ours=other())


def test_another_start_of_the_student_does_not_matter(tmp_path):
    teacher = MCDropout(net())
    whole = distilled(tmp_path / "whole", teacher, X)
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", teacher, X, stop=1)
    ours = student()
    with torch.no_grad():
        for w in ours.parameters():
            w.zero_()
    assert_goes_on(tmp_path / "run", whole, teacher, X, ours=ours)


# --- what is not in weights: numbers that a function closes over, attributes, code -----------------------------------


class Attributes(nn.Module):
    """A network with what no state_dict holds."""

    def __init__(self, **attributes):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.drop, self.out = nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3)
        self.register_buffer("scale", attributes.pop("buffer", torch.ones(4)), persistent=False)
        self.temperature, self.shift, self.factors = 1, torch.zeros(3), [1.0, 1.0, 1.0]
        vars(self).update(attributes)

    def forward(self, x):
        logits = self.out(self.drop(self.linear(x * self.scale).relu())) / self.temperature + self.shift
        return logits * torch.tensor(self.factors)


class OwnTeacher(opu.teachers.BaseTeacher):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def __call__(self, x, num_particles):
        return ((x[:, :3] + torch.randn(num_particles, len(x), 3)) / self.temperature).log_softmax(-1)


def closing_over(temperature):
    return lambda x, n: ((x[:, :3] + torch.randn(n, len(x), 3)) / temperature).log_softmax(-1)


def with_argument(x, n, temperature):
    return closing_over(temperature)(x, n)


HIDDEN = {
    "a buffer that is not saved": lambda c: MCDropout(Attributes(buffer=torch.full((4,), 1.0 + c))),
    "a tensor": lambda c: MCDropout(Attributes(shift=torch.tensor([0.0, c, 0.0]))),
    "a list": lambda c: MCDropout(Attributes(factors=[1.0 + c, 1.0, 1.0])),
    "a whole number": lambda c: MCDropout(Attributes(temperature=1 + 2 * c)),
    "a closure": lambda c: closing_over(1.0 + c),
    "a closure in a Function": lambda c: Function(closing_over(1.0 + c)),
    "a partial argument": lambda c: functools.partial(with_argument, temperature=1.0 + c),
    "a class of one's own": lambda c: OwnTeacher(1.0 + c),
    "code": lambda c: closing_over(1.0) if not c else (lambda x, n: closing_over(1.0)(x, n).flip(-1)),
}


@pytest.mark.parametrize("inputs", [lambda: X, lambda: DataLoader(Rows(X), 16, shuffle=True)], ids=["rows", "loader"])
@pytest.mark.parametrize("make", HIDDEN.values(), ids=HIDDEN)
def test_a_teacher_is_known_by_what_it_says(make, inputs, tmp_path):
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", make(0), inputs(), stop=1)
    assert_refused(
        tmp_path / "run", "resumed with the teacher it began with; this one differs in its", make(1), inputs()
    )
    distilled(tmp_path / "run", make(0), inputs())


@pytest.mark.parametrize("loader", [False, True])
def test_another_augmentation_of_tokens_is_refused(loader, tmp_path):
    from opu.augment import tokens

    torch.manual_seed(0)
    reader = nn.Sequential(nn.Embedding(30, 4), nn.Flatten(), nn.Dropout(0.3), nn.Linear(20, 3))
    x = torch.randint(30, (60, 5))
    inputs = DataLoader(Rows(x), 16, shuffle=True) if loader else x

    def run(augment, resume):
        ours = opu.students.from_teacher(MCDropout(reader), example=x)
        recipe = opu.Recipe(steps=3, batch_size=16, num_particles=4, augment=augment)
        opu.distill(MCDropout(reader), ours, inputs, recipe=recipe, out=tmp_path / "run", resume=resume, progress=False)

    def own(token):
        return lambda batch, _generator: torch.where(batch % 2 == 0, token, batch)

    run(tokens.masked(29), False)
    for other in (tokens.masked(28), tokens.masked(29, most=0.4), tokens.replaced(30)):
        with pytest.raises(ValueError, match="resumed with the settings it began with; augment was"):
            run(other, True)
    run(tokens.masked(29), True)
    shutil.rmtree(tmp_path / "run")
    run(own(3), False)
    with pytest.raises(ValueError, match="resumed with the augmentation it began with"):
        run(own(4), True)
    run(own(3), True)


def test_another_optimiser_from_a_function_is_refused(tmp_path):
    def recipe(kind):
        return dataclasses.replace(RECIPE, optimizer=lambda parameters: kind(parameters, 1e-3))

    with pytest.raises(Stopped):
        distilled(tmp_path / "run", MCDropout(net()), X, stop=1, recipe=recipe(torch.optim.Adam))
    words = r"resumed with the optimiser it began with; this one differs in its class \(RAdam now, Adam before\)"
    assert_refused(tmp_path / "run", words, MCDropout(net()), X, recipe=recipe(torch.optim.RAdam))
    distilled(tmp_path / "run", MCDropout(net()), X, recipe=recipe(torch.optim.Adam))


class Slowed(torch.optim.SGD):
    """An optimiser of a user's own, with a setting outside of its groups."""

    def __init__(self, parameters, factor):
        super().__init__(parameters, 0.1)
        self.factor = factor


def sgd(**options):
    return lambda parameters: torch.optim.SGD(parameters, **({"lr": 0.1, "momentum": 0.9} | options))


def decaying(matrices):
    def make(parameters):
        parameters = list(parameters)
        chosen, others = ([p for p in parameters if (p.ndim == 2) == wanted] for wanted in (matrices, not matrices))
        return torch.optim.SGD([{"params": chosen, "weight_decay": 0.1}, {"params": others}], 0.1)

    return make


OPTIMISERS = {
    "momentum": (sgd(), sgd(momentum=0.5), r"momentum \(0.5 now, 0.9 before\)"),
    "weight decay": (sgd(), sgd(weight_decay=0.1), r"weight_decay \(0.1 now, 0 before\)"),
    "nesterov": (sgd(), sgd(nesterov=True), r"nesterov \(True now, False before\)"),
    "betas": (
        lambda p: torch.optim.Adam(p, betas=(0.9, 0.999)),
        lambda p: torch.optim.Adam(p, betas=(0.9, 0.9995)),
        r"betas \(\(0.9, 0.9995\) now, \(0.9, 0.999\) before\)",
    ),
    "groups": (decaying(True), decaying(False), "parameters of group 1"),
    "attribute": (lambda p: Slowed(p, 1), lambda p: Slowed(p, 2), r"factor \(2 now, 1 before\)"),
}


@pytest.mark.parametrize("updates", ["joint", "alternating"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_with_other_settings_is_refused(name, updates, tmp_path):
    first, second, words = OPTIMISERS[name]

    def recipe(optimizer):  # all functions have one name, so that it does not tell them apart
        return dataclasses.replace(RECIPE, updates=updates, optimizer=lambda parameters: optimizer(parameters))

    whole = distilled(tmp_path / "whole", MCDropout(net()), X, recipe=recipe(first))
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", MCDropout(net()), X, stop=1, recipe=recipe(first))
    words = words.replace(r" \(", r"( of group 1)? \(", 1)
    words = f"resumed with the optimiser it began with; this one differs in its {words}"
    assert_refused(tmp_path / "run", words, MCDropout(net()), X, recipe=recipe(second))
    assert_goes_on(tmp_path / "run", whole, MCDropout(net()), X, recipe=recipe(first))


def test_the_learning_rate_of_an_optimiser_is_the_recipes(tmp_path):
    """The one that a function gives is replaced, so it may be another when a run is resumed."""

    def recipe(**options):
        return dataclasses.replace(RECIPE, optimizer=sgd(**options))

    whole = distilled(tmp_path / "whole", MCDropout(net()), X, recipe=recipe())
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", MCDropout(net()), X, stop=1, recipe=recipe())
    assert_goes_on(tmp_path / "run", whole, MCDropout(net()), X, recipe=recipe(lr=0.5, foreach=True))


class Counting(torch.optim.SGD):
    """An optimiser that changes its own settings as it goes, as those do that find their step."""

    def __init__(self, parameters):
        super().__init__(parameters, 0.1, momentum=0.9)

    def step(self, closure=None):
        self.param_groups[0]["momentum"] *= 0.9
        return super().step(closure)


def test_an_optimiser_that_changes_its_settings_goes_on(tmp_path):
    recipe = dataclasses.replace(RECIPE, optimizer=Counting)
    whole = distilled(tmp_path / "whole", MCDropout(net()), X, recipe=recipe)
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", MCDropout(net()), X, stop=1, recipe=recipe)
    assert_goes_on(tmp_path / "run", whole, MCDropout(net()), X, recipe=recipe)


@pytest.mark.parametrize(("scale", "noise"), [(1.02, 0.1), (1.0, 0.105)])
def test_a_small_change_of_a_function_shows(scale, noise, tmp_path):
    def teacher(scale, noise):
        return lambda x, n: (scale * x[:, :3] + noise * torch.randn(n, len(x), 3)).log_softmax(-1)

    with pytest.raises(Stopped):
        distilled(tmp_path / "run", teacher(1.0, 0.1), X, stop=1)
    assert_refused(tmp_path / "run", "resumed with the teacher it began with", teacher(scale, noise), X)
    distilled(tmp_path / "run", teacher(1.0, 0.1), X)


def test_an_objective_of_ones_own_is_known_by_its_values(tmp_path):
    def recipe(power):
        return dataclasses.replace(
            RECIPE, objective=lambda x, p, q: (p.exp().mean(0) - q.mean).abs().pow(power).sum(-1)
        )

    with pytest.raises(Stopped):
        distilled(tmp_path / "run", MCDropout(net()), X, stop=1, recipe=recipe(2))
    words = "resumed with the objective it began with; this one differs in its values"
    assert_refused(tmp_path / "run", words, MCDropout(net()), X, recipe=recipe(1))
    distilled(tmp_path / "run", MCDropout(net()), X, recipe=recipe(2))


class Distance(BaseObjective):
    """An objective of a user's own; its print-out says nothing of its power."""

    def __init__(self, power):
        self.power = power

    def __call__(self, x, log_particles, q):
        return distance(self.power)(x, log_particles, q)


class Learning(BaseObjective):
    """An objective of a user's own that counts its calls and learns a scale, which a checkpoint keeps."""

    def __init__(self, power):
        self.power, self.calls, self.scale = power, 0, 1.0

    def __call__(self, x, log_particles, q):
        self.calls += 1
        if torch.is_grad_enabled():
            self.scale *= 0.99
        return self.scale * distance(self.power)(x, log_particles, q)

    def state_dict(self):
        return {"scale": self.scale}

    def load_state_dict(self, state):
        self.scale = state["scale"]


def distance(power):
    return lambda x, p, q: (p.exp().mean(0) - q.mean).abs().pow(power).sum(-1)


def clipped(most):
    clipped = ClippedKL(most)
    return lambda x, p, q: clipped(x, p, q)


OBJECTIVES = {
    "an attribute": (Distance, r"power \(2 now, 1 before\)"),
    "an attribute in a sum": (lambda c: 2.0 * Distance(c), r"power \(2 now, 1 before\)"),
    "an attribute in the second term": (
        lambda c: ForwardKL() + Distance(c),
        r"power of term 2 \(2 now, 1 before\)",
    ),
    "an attribute beside a state": (Learning, r"power \(2 now, 1 before\)"),
    "a closure in a sum": (lambda c: ForwardKL() + distance(c), "values for inputs"),
    "a bound that gradients alone show": (lambda c: clipped(c / 100), "gradients for inputs"),
    "our samples": (lambda c: Sinkhorn(num_samples=4 * c), r"num_samples \(8 now, 4 before\)"),
    "our critic": (
        lambda c: CriticEMD(critic_steps=1, hidden=8, learning_rate=c / 1000),
        r"learning_rate \(0.002 now, 0.001 before\)",
    ),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_with_other_settings_is_refused(name, tmp_path):
    make, words = OBJECTIVES[name]

    def run(out, c, check=distilled, *arguments, **options):
        recipe = dataclasses.replace(RECIPE, objective=make(c))
        return check(tmp_path / out, *arguments, MCDropout(net()), X, recipe=recipe, **options)

    whole = run("whole", 1)
    with pytest.raises(Stopped):
        run("run", 1, stop=1)
    run("run", 2, assert_refused, f"resumed with the objective it began with; this one differs in its {words}")
    run("run", 1, assert_goes_on, whole)


@pytest.mark.parametrize(
    "make", [lambda: CriticEMD(critic_steps=1, hidden=8), lambda: Learning(1)], ids=["ours", "own"]
)
def test_an_objective_that_learns_is_not_disturbed_by_a_look_and_goes_on_after_use(make, tmp_path):
    def run(out, objective, **options):
        recipe = dataclasses.replace(RECIPE, objective=objective)
        return distilled(tmp_path / out, MCDropout(net()), X, recipe=recipe, **options)

    whole, teacher, ours = run("whole", make()), MCDropout(net()), student()
    recipe = dataclasses.replace(RECIPE, objective=make())
    opu.distill(teacher, ours, X, recipe=recipe, progress=False)  # without a folder nobody looks
    assert all(torch.equal(w, ours.state_dict()[name]) for name, w in whole.items())
    used = make()
    with pytest.raises(Stopped):
        run("run", used, stop=3)  # after a checkpoint that holds what it learned
    again = run("run", used)
    assert all(torch.equal(w, again[name]) for name, w in whole.items())


def test_an_augmentation_of_ones_own_is_known_by_its_values(tmp_path):
    def recipe(scale):
        return dataclasses.replace(RECIPE, augment=lambda x, generator: x + scale * torch.randn_like(x))

    with pytest.raises(Stopped):
        distilled(tmp_path / "run", MCDropout(net()), X, stop=1, recipe=recipe(0.1))
    words = "resumed with the augmentation it began with; this one differs in its values"
    assert_refused(tmp_path / "run", words, MCDropout(net()), X, recipe=recipe(1.0))
    distilled(tmp_path / "run", MCDropout(net()), X, recipe=recipe(0.1))


def test_a_teacher_with_a_state_of_its_own_goes_on_with_a_warning(tmp_path):
    def teacher():
        own = torch.Generator().manual_seed(0)
        return lambda x, n: (x[:, :3] + torch.randn(n, len(x), 3, generator=own)).log_softmax(-1)

    with pytest.raises(Stopped):
        distilled(tmp_path / "run", teacher(), X, stop=1)
    with pytest.warns(UserWarning, match="it keeps a state of its own, which no checkpoint holds"):
        distilled(tmp_path / "run", teacher(), X)


def keyed_by_functions():
    """Functions, whose names hold addresses that are others in every process."""
    table = {(lambda: 0): torch.ones(3), (lambda: 1): torch.zeros(3)}

    def teacher(x, n):
        return (x[:, :3] + sum(table.values()) + torch.randn(n, len(x), 3)).log_softmax(-1)

    return teacher


def test_addresses_in_names_do_not_count(tmp_path):
    first = keyed_by_functions()  # which stays alive, so that the second has other addresses
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", first, X, stop=1)
    distilled(tmp_path / "run", keyed_by_functions(), X)


def test_columns_with_other_names_are_refused(tmp_path):
    frame = pd.DataFrame(X.numpy(), columns=list("abcd"))
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", MCDropout(net()), frame, stop=1)
    words = r"these differ in their columns \(b, a, c, d now, a, b, c, d before\)"
    assert_refused(tmp_path / "run", words, MCDropout(net()), frame.rename(columns={"a": "b", "b": "a"}))
    distilled(tmp_path / "run", MCDropout(net()), frame)


# --- runs of other versions ------------------------------------------------------------------------------------------


def without_fingerprint(out):
    config = json.loads((out / "config.json").read_text())
    assert set(config.pop("fingerprint")) == {"inputs", "held_out", "teacher", "particles", "student"}
    (out / "config.json").write_text(json.dumps(config))


def test_a_run_without_a_fingerprint_goes_on_with_a_warning(tmp_path):
    teacher = MCDropout(net())
    whole = distilled(tmp_path / "whole", teacher, X)
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", teacher, X, stop=1)
    without_fingerprint(tmp_path / "run")
    with pytest.warns(UserWarning, match="kept no fingerprints, so nobody can tell whether its inputs"):
        assert_goes_on(tmp_path / "run", whole, teacher, X)


def test_a_run_from_before_objectives_batch_sizes_and_optimisers_were_compared_goes_on(tmp_path):
    recipe = dataclasses.replace(RECIPE, objective=2.0 * Distance(1), optimizer=sgd())
    given = MCDropout(net()), DataLoader(TensorDataset(X), 15)
    options = {"held_out": Batches(X, 20), "recipe": recipe}
    whole = distilled(tmp_path / "whole", *given, **options)
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", *given, stop=1, **options)
    path, checkpoint = tmp_path / "run" / "config.json", tmp_path / "run" / "checkpoint" / "latest.safetensors"
    config, state = json.loads(path.read_text()), read_state(checkpoint)
    assert config["fingerprint"].pop("objective")
    assert config["fingerprint"]["inputs"].pop("batch size") == 15
    assert config["fingerprint"]["held_out"].pop("batch size") == 20
    path.write_text(json.dumps(config))
    assert state.pop("options")["momentum"] == "0.9"
    write_state(checkpoint, state | {"kinds": ["Adam"]})  # all that was known of optimisers
    words = r"this one differs in its class \(SGD now, Adam before\)"
    assert_refused(tmp_path / "run", words, *given, **options)
    write_state(checkpoint, state | {"kinds": ["SGD"]})
    assert_goes_on(tmp_path / "run", whole, *given, **options)


def test_the_checkpoint_knows_what_a_lost_config_knew(tmp_path):
    teacher = MCDropout(net())
    with pytest.raises(Stopped):
        distilled(tmp_path / "run", teacher, X, stop=1)
    (tmp_path / "run" / "config.json").unlink()
    assert_refused(
        tmp_path / "run", "resumed with the inputs it began with; these differ in their values", teacher, changed(X)
    )


@pytest.mark.filterwarnings("ignore:the log-precision of")
def test_a_student_that_was_calibrated_in_between_is_the_same(tmp_path):
    """As in a notebook, where a finished run is called again with the same objects."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = student()

        def forward(self, x):
            return self.inner(x)

    for number, ours in enumerate((student(), Own())):
        teacher, out = MCDropout(net()), tmp_path / str(number)
        with pytest.warns(UserWarning, match="holds no student") if number else contextlib.nullcontext():
            whole = {name: w.clone() for name, w in distilled(out, teacher, X, held_out=X, ours=ours).items()}
        assert ours.novelty is not None
        with pytest.warns(UserWarning, match="holds no student") if number else contextlib.nullcontext():
            assert_goes_on(out, whole, teacher, X, held_out=X, ours=ours)


def test_a_finished_run_is_resumed_with_the_same_only(tmp_path):
    teacher = MCDropout(net())
    whole = distilled(tmp_path / "run", teacher, X)
    assert_refused(tmp_path / "run", "inputs it began with; these differ in their values", teacher, changed(X))
    assert_goes_on(tmp_path / "run", whole, teacher, X)


# --- the same in every process ---------------------------------------------------------------------------------------

IN_A_PROCESS = """
import json, sys, torch, opu
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from opu.distillation.preparation import prepare
from opu.teachers import Ensemble, MCDropout, ParticleBank, SklearnEnsemble, WeightSamples
torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
x = torch.randn(60, 4)

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.drop, self.head = nn.Embedding(9, 8), nn.Dropout(0.3), nn.Linear(8, 3)
    def forward(self, input_ids, attention_mask):
        return self.head(self.drop((self.embed(input_ids) * attention_mask[..., None]).mean(1)))

class Stream(IterableDataset):
    def __iter__(self):
        yield from x

def net():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)).eval()

def forest():
    from sklearn.ensemble import RandomForestClassifier
    return SklearnEnsemble(RandomForestClassifier(4, random_state=0, n_jobs=int(sys.argv[1])).fit(x, torch.arange(60) % 3))

tokens = {"input_ids": torch.randint(9, (60, 5)), "attention_mask": torch.ones(60, 5, dtype=torch.long)}
workers = int(sys.argv[1]) - 1
cases = [
    (MCDropout(net()), x), (Ensemble([net(), net()]), DataLoader(x, 7, shuffle=True, num_workers=workers)),
    (WeightSamples(net(), [net().state_dict() for _ in range(3)]), Stream()),
    (ParticleBank(torch.randn(5, 60, 3).softmax(-1)), x), (forest(), x), (MCDropout(Tokens()), tokens),
    ((lambda net: lambda x, s: (net(x) + torch.randn(s, 1, 3)).log_softmax(-1))(net()), x),
]
found = []
for teacher, inputs in cases:
    student = opu.students.from_teacher(teacher, example=tokens) if inputs is tokens else opu.students.mlp(4, 3, (8,))
    recipe = opu.Recipe(steps=3, augment=None)
    found.append(prepare(teacher, student, inputs, recipe, 0.1, compare=True).fingerprint)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_fingerprints_are_the_same_in_every_process_whatever_its_threads_workers_and_hashes():
    found = []
    for threads in (1, 3):
        environment = os.environ | {"PYTHONHASHSEED": str(threads), "OMP_NUM_THREADS": str(threads)}
        words = [sys.executable, "-c", IN_A_PROCESS, str(threads)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0] == found[1]
    assert len(found[0]) == 7
    for each in found[0]:
        assert set(each) - {"particles"} == {"student", "inputs", "held_out", "teacher"}, each
        assert None not in each.get("particles", {}).values()
        assert None not in each["inputs"].values() or each["inputs"]["kind"] == "a stream"
        assert None not in each["teacher"].values()
        assert each["teacher"]


class Scaled(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.drop, self.temperature = nn.Linear(4, 3), nn.Dropout(0.2), temperature

    def forward(self, x):
        return self.drop(self.linear(x)) / self.temperature


def small_run(out, temperature, **options):
    torch.manual_seed(1)
    recipe = opu.Recipe(epochs=1, num_particles=4)
    teacher, x = opu.teachers.MCDropout(Scaled(temperature)), torch.randn(60, 4)
    opu.distill(teacher, opu.students.mlp(4, 3, (8,)), x, recipe=recipe, out=out, progress=False, **options)


def test_a_number_that_a_network_computes_with_is_part_of_the_teacher(tmp_path):
    small_run(tmp_path / "run", 1.0)
    small_run(tmp_path / "run", 1.0, resume=True)
    with pytest.raises(ValueError, match="a run is resumed with the teacher it began with"):
        small_run(tmp_path / "run", 3.0, resume=True)


@pytest.mark.parametrize(
    "change",
    [{"distill": None}, {"distill": []}, {"fingerprint": 3}, {"fingerprint": []}, {"fingerprint": {"inputs": 3}}],
    ids=str,
)
def test_a_config_that_was_edited_is_refused(change, tmp_path):
    small_run(tmp_path / "run", 1.0)
    config = tmp_path / "run" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(ValueError, match="is not the config of a run"):
        small_run(tmp_path / "run", 1.0, resume=True)


@pytest.mark.parametrize("change", [{"step": "x"}, {"losses": 3}, {"optimizers": []}, {"selection": None}], ids=str)
def test_a_checkpoint_of_another_shape_is_refused(change, tmp_path):
    small_run(tmp_path / "run", 1.0)
    path = tmp_path / "run" / "checkpoint" / "latest.safetensors"
    write_state(path, read_state(path) | change)
    with pytest.raises(ValueError, match=r"the checkpoint in .* does not fit this run"):
        small_run(tmp_path / "run", 1.0, resume=True)
