"""Distilling over loaders, streams and structures: what reaches teacher and student, and what is refused."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

import opu
from opu.batches import first_tensor, tensors

QUICK = opu.Recipe(steps=6, batch_size=16, num_particles=4)
X = torch.arange(80.0).unsqueeze(1) + torch.tensor([[0.0, 0.25, 0.5]])
LABELS = torch.arange(80) % 3


class Asked:
    """A teacher that remembers what it was asked about."""

    def __init__(self):
        self.inputs = []

    def __call__(self, x, num_particles):
        self.inputs.append(x)
        return torch.randn(num_particles, len(first_tensor(x)), 3).log_softmax(-1)

    @property
    def rows(self):
        return torch.cat(self.inputs)


def distilled(inputs, teacher=None, student=None, recipe=QUICK, **options):
    student = student or opu.students.mlp(3, 3, (4,))
    result = opu.distill(teacher or Asked(), student, inputs, recipe=recipe, progress=False, **options)
    return result, student


def plain(**changes):
    """A recipe that leaves inputs as they are."""
    return dataclasses.replace(QUICK, augment=None, **changes)


# Loaders


def test_the_work_of_a_loader_reaches_the_teacher():
    def normalised(rows):
        return torch.stack([x for x, _ in rows]) / 100 - 7, torch.tensor([y for _, y in rows])

    teacher = Asked()
    distilled(DataLoader(TensorDataset(X, LABELS), 16, collate_fn=normalised), teacher, recipe=plain())
    assert teacher.rows.max() < -6
    assert set(teacher.rows[:, 0].tolist()) <= set((X / 100 - 7)[:, 0].tolist())


def test_rows_that_a_sampler_leaves_out_are_never_seen():
    teacher = Asked()
    distilled(DataLoader(TensorDataset(X), 8, sampler=SubsetRandomSampler(range(40))), teacher, recipe=plain(steps=30))
    assert set(teacher.rows[:, 0].tolist()) == set(range(40))


@pytest.mark.parametrize("kind", ["tensor", "dataset", "loader", "stream", "generator"])
def test_held_out_rows_are_judged_and_never_trained_on(kind):
    inputs = {
        "tensor": X,
        "dataset": TensorDataset(X, LABELS),
        "loader": DataLoader(TensorDataset(X, LABELS), 16, shuffle=True),
        "stream": Rows(X),
        "generator": itertools.cycle(X.split(16)) if kind == "generator" else None,
    }[kind]
    inputs = iter(X.split(8)) if kind == "generator" else inputs
    trained, teacher, student = [], Asked(), opu.students.mlp(3, 3, (4,))
    student.register_forward_pre_hook(lambda net, args: trained.append(args[0]) if net.training else None)
    distilled(inputs, teacher, student, recipe=plain(), held_out=0.25)
    trained = set(torch.cat(trained)[:, 0].tolist())
    # The example that is tried first may be any; it is what the teacher is asked about in the beginning.
    asked = set(torch.cat(teacher.inputs[1:])[:, 0].tolist())
    held_out = asked - trained
    assert 5 <= len(held_out) <= 40
    assert asked == held_out | trained


def test_a_loaders_batches_are_the_steps_and_its_length_the_epoch():
    teacher = Asked()
    result, _ = distilled(
        DataLoader(TensorDataset(X), 30), teacher, recipe=opu.Recipe(epochs=2, num_particles=4), held_out=0
    )
    assert len(result.losses) == 6
    assert len(result.held_out) == 2
    assert [len(x) for x in teacher.inputs[1:]] == [30, 30, 20] * 2


def test_augmentation_of_a_loader_is_that_of_the_recipe():
    teacher = Asked()
    distilled(DataLoader(TensorDataset(X), 20), teacher, held_out=0)
    for x in teacher.inputs[1:]:
        assert torch.isin(x[:10, 0], X[:, 0]).all(), "the first half of a batch stays as it is"
        assert not torch.isin(x[10:], X).all()


# Streams


class Rows(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randn(3)


def test_an_endless_stream_ends_with_its_steps():
    result, student = distilled(Endless(), recipe=plain(steps=70))
    assert len(result.losses) == 70
    assert len(result.held_out) == 24, "it is judged about thirty times"
    assert student.novelty is not None


def test_a_generator_that_ends_early_is_told_and_its_last_epoch_counts(tmp_path):
    seen = []
    with pytest.warns(UserWarning, match="the inputs ended after 8 of 70 steps"):
        result, _ = distilled(
            iter(X.split(8)), recipe=plain(steps=70), held_out=0.02, out=tmp_path / "run", on_epoch=seen.append
        )
    assert len(result.losses) == 8
    assert len(result.held_out) == len(seen) == 3
    assert [epoch.step for epoch in seen] == [3, 6, 8]
    assert sum('"held_out"' in line for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()) == 3


def test_a_generator_that_holds_out_everything_is_refused():
    with pytest.raises(ValueError, match="the inputs ended before the first step"):
        distilled(iter(X.split(40)), recipe=plain(steps=10), held_out=0.9)


def test_a_small_generator_without_steps_is_read_in_every_epoch():
    teacher = Asked()
    distilled(iter(X.split(16)), teacher, recipe=opu.Recipe(epochs=3, num_particles=4, augment=None), held_out=0)
    assert sorted(teacher.rows[8:, 0].tolist()).count(17.0) <= 3
    assert len(set(teacher.rows[:, 0].tolist())) == 80


def test_nan_in_the_middle_of_a_stream_is_named_and_stops_the_run():
    x = X.clone()
    x[70] = torch.nan
    with pytest.raises(ValueError, match=r"batch 8 of the inputs must be finite.*the first at row 6\b"):
        distilled(Rows(x), recipe=plain(batch_size=8, steps=30), held_out=0)


def test_a_stream_goes_only_where_it_can():
    with pytest.raises(ValueError, match=r"bank= keeps particles for inputs that come again"):
        distilled(Rows(X), recipe=plain(bank=4))
    with pytest.raises(ValueError, match=r"bank= keeps particles for inputs that come again"):
        distilled(DataLoader(TensorDataset(X), 8, shuffle=True), recipe=plain(bank=4))
    bank = opu.teachers.ParticleBank(torch.full((4, 80, 3), 1 / 3))
    with pytest.raises(ValueError, match="particles belong to inputs in a certain order"):
        distilled(DataLoader(TensorDataset(X), 8, shuffle=True), bank)


def test_a_bank_reads_a_loader_in_order_and_a_shuffled_one_whose_inputs_it_knows():
    particles = torch.randn(4, 80, 3).softmax(-1)
    for inputs, known in ((DataLoader(TensorDataset(X), 8), None), (DataLoader(TensorDataset(X), 8, shuffle=True), X)):
        bank = opu.teachers.ParticleBank(particles, known)
        distilled(inputs, bank)
        assert torch.allclose(bank(X[5:9], 4).exp(), particles[:, 5:9])
    result, _ = distilled(DataLoader(TensorDataset(X), 8), recipe=plain(bank=4))
    assert len(result.losses) == 6


# Tokens, dicts, tuples and dataclasses


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.drop, self.head = nn.Embedding(50, 6), nn.Dropout(0.5), nn.Linear(6, 3)

    def forward(self, input_ids, attention_mask=None):
        z = self.drop(self.embed(input_ids))
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return self.head((z * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True))


class Lines(Dataset):
    """Sequences of several lengths, padded by batch."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return {"input_ids": torch.arange(1, 3 + index % 7), "labels": index % 3, "text": "some words"}


def padded(items):
    ids = nn.utils.rnn.pad_sequence([item["input_ids"] for item in items], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.tensor([i["labels"] for i in items])}


@pytest.mark.parametrize("recipe", [QUICK, dataclasses.replace(QUICK, augment=opu.augment.tokens.masked(49, keep=[0]))])
def test_sequences_of_several_lengths_go_through_everything(recipe, tmp_path):
    torch.manual_seed(0)
    net = Classifier()
    loader = DataLoader(Lines(), 9, shuffle=True, collate_fn=padded)
    example = padded([Lines()[0], Lines()[3]])
    del example["labels"]
    student = opu.students.from_teacher(opu.teachers.MCDropout(net), example=example)
    asked = []

    def teacher(x, s):
        asked.append(x)
        return opu.teachers.MCDropout(net)(x, s)

    opu.distill(teacher, student, loader, recipe=recipe, progress=False, held_out=0.4, out=tmp_path / "run")
    assert all(list(x) == ["input_ids", "attention_mask"] for x in asked)
    assert all(x["input_ids"].dtype == torch.int64 for x in asked)
    assert any((x["input_ids"] == 49).any() for x in asked) == (recipe.augment != "auto")
    assert len({x["input_ids"].shape[1] for x in asked}) > 1
    prediction = student.predict(DataLoader(Lines(), 9, collate_fn=padded))
    assert len(prediction) == 60
    assert prediction.novelty.shape == (60,)
    again = opu.load(tmp_path / "run" / "student").predict(DataLoader(Lines(), 13, collate_fn=padded))
    np.testing.assert_allclose(again.probabilities, prediction.probabilities, atol=1e-5)


@dataclasses.dataclass(frozen=True)
class Pair:
    left: torch.Tensor
    right: torch.Tensor


class Joint(nn.Module):
    """Takes two inputs in the way that ``kind`` says."""

    def __init__(self, kind):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        forwards = {
            "tuple": lambda left, right: (left, right),
            "dict": lambda left, right: (left, right),
            "whole dict": lambda batch: (batch["left"], batch["right"]),
            "keywords": lambda **named: (named["left"], named["right"]),
            "dataclass": lambda pair: (pair.left, pair.right),
            "nested": lambda batch: (batch["both"]["left"], batch["both"]["right"]),
        }
        self.forward = lambda *args, **named: self.net(torch.cat(forwards[kind](*args, **named), 1))
        functools.update_wrapper(self.forward, forwards[kind])


LEFT, RIGHT = torch.randn(40, 3), torch.randn(40, 2)
STRUCTURES = {
    "tuple": (LEFT, RIGHT),
    "dict": {"right": RIGHT, "left": LEFT},
    "whole dict": {"left": LEFT, "right": RIGHT},
    "keywords": {"left": LEFT, "right": RIGHT},
    "dataclass": Pair(LEFT, RIGHT),
    "nested": {"both": {"left": LEFT, "right": RIGHT}},
}


class Two(nn.Module):
    """A student of the user's own over any structure."""

    def __init__(self, kind):
        super().__init__()
        self.joint, self.precision = Joint(kind), nn.Parameter(torch.zeros(()))
        self.forward = lambda *args, **named: opu.Dirichlet.from_logits(
            z := self.joint(*args, **named), self.precision.expand(len(z))
        )
        functools.update_wrapper(self.forward, self.joint.forward)


@pytest.mark.parametrize("kind", STRUCTURES)
def test_structures_reach_teacher_and_student_whole(kind, tmp_path):
    inputs = STRUCTURES[kind]
    asked, dropout = [], opu.teachers.MCDropout(Joint(kind))

    def teacher(x, s):
        asked.append(x)
        return dropout(x, s)

    student = Two(kind)
    result = opu.distill(teacher, student, inputs, recipe=plain(), progress=False, held_out=0.2)
    assert len(result.losses) == 6
    for x in asked:
        assert type(x) is type(inputs)
        left, right = (
            (next(t for name, t in tensors(x).items() if name.endswith(end)) for end in ("left", "right"))
            if kind != "tuple"
            else x
        )
        rows = [int((row == LEFT).all(1).nonzero()) for row in left]
        assert torch.equal(RIGHT[rows], right), "parts stay in step"
