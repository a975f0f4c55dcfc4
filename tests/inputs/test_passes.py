"""Loaders are read as they are, streams are not collected, held-out inputs never come back, and a pass can be resumed."""

import itertools

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from opu.batches import cat, num_rows
from opu.inputs import as_source
from opu.inputs.passes import Budget, Loader, Once, Passes, Stream

N = 60
X = torch.arange(float(N)).unsqueeze(1).repeat(1, 2)
DATA = TensorDataset(X, torch.zeros(N))


def numbers(batches) -> list[int]:
    return [int(row[0]) for batch in batches for row in batch]


class Numbers(IterableDataset):
    """Rows with their number, shared among workers; the second column names the worker."""

    def __init__(self, count=N):
        self.count = count

    def __iter__(self):
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        rows = itertools.count(first, step) if self.count is None else range(first, self.count, step)
        return (torch.tensor([float(i), float(first)]) for i in rows)


class WithLength(Numbers):
    def __len__(self):
        return self.count


class Again:
    """Batches that can be read again."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


class Batches(Dataset):
    """Items that are batches already."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return X[10 * index : 10 * index + 10]


class InTwos:
    """A batch sampler of the user's."""

    def __iter__(self):
        order = torch.randperm(N).tolist()
        return iter([order[i : i + 2] for i in range(0, N, 2)])

    def __len__(self):
        return N // 2


class MyLoader(DataLoader):
    def __iter__(self):
        return (batch[0] * 1 for batch in super().__iter__())


LOADERS = {
    "in order": lambda: DataLoader(DATA, 7),
    "shuffled": lambda: DataLoader(DATA, 7, shuffle=True),
    "generator": lambda: DataLoader(DATA, 7, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "last batch dropped": lambda: DataLoader(DATA, 7, shuffle=True, drop_last=True),
    "subset": lambda: DataLoader(DATA, 7, sampler=SubsetRandomSampler(range(0, N, 2))),
    "weighted": lambda: DataLoader(DATA, 7, sampler=WeightedRandomSampler([1.0] * 30 + [0.0] * 30, 40)),
    "batch sampler": lambda: DataLoader(DATA, batch_sampler=InTwos()),
    "list of batches": lambda: DataLoader(DATA, batch_sampler=[[1, 2], [5], [3, 9, 4], [20, 30, 40, 50]]),
    "collation": lambda: DataLoader(DATA, 7, shuffle=True, collate_fn=lambda rows: torch.stack([x for x, _ in rows])),
}
STREAMS = {
    "bare": Numbers,
    "with a length": WithLength,
    "loader": lambda: DataLoader(Numbers(), 7),
    "loader of batches": lambda: DataLoader(Batches(), batch_size=None),
    "loader of batches, shuffled": lambda: DataLoader(Batches(), batch_size=None, shuffle=True),
    "loader of the user's class": lambda: MyLoader(DATA, 7, shuffle=True),
    "iterable": lambda: Again(X.split(7)),
}
ALL = LOADERS | STREAMS


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_held_out_inputs_never_come_back(make):
    rest, held_out = as_source(make()).hold_out(0.25, None)
    kept = set(numbers(held_out))
    assert kept
    passes = [numbers(rest.batches()) for _ in range(5)]
    assert all(kept.isdisjoint(each) for each in passes)


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_a_loader_keeps_its_own_choice_of_items_and_its_order(make):
    allowed = {n for _ in range(20) for n in numbers(as_source(make()).batches())}
    source = as_source(make())
    assert isinstance(source, Loader)
    rest, held_out = source.hold_out(0.2, None)
    assert set(numbers(held_out)) <= allowed
    assert set(numbers(rest.batches())) <= allowed
    fixed = source.in_order or isinstance(source.source.batch_sampler, list)
    assert (numbers(rest.batches()) == numbers(rest.batches())) == fixed


def test_the_fraction_is_that_of_a_loaders_items_and_the_choice_repeats():
    def split():
        torch.manual_seed(5)
        return numbers(as_source(DataLoader(DATA, 7, shuffle=True)).hold_out(0.25, None)[1])

    assert len(split()) == 15
    assert split() == split()


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_the_choice_in_a_stream_does_not_depend_on_order_or_seed(make):
    source = as_source(make())
    assert type(source) is Stream
    chosen = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        chosen.append(sorted(numbers(source.hold_out(0.25, None)[1])))
    assert chosen[0] == chosen[1]


def test_a_checksum_holds_out_the_fraction_and_does_not_see_padding():
    x = torch.randn(4000, 3)
    rest, held_out = as_source(Again(x.split(500))).hold_out(0.1, None)
    assert 300 < sum(map(num_rows, held_out)) < 500
    assert sum(map(num_rows, rest.batches())) + sum(map(num_rows, held_out)) == 4000
    ids = torch.randint(1, 1000, (400, 5))
    padded = [{"input_ids": torch.nn.functional.pad(ids, (0, more))} for more in (0, 3)]
    kept = [cat(as_source(Again([each])).hold_out(0.3, None)[1])["input_ids"][:, :5] for each in padded]
    assert torch.equal(*kept)


def test_no_fraction_holds_nothing_out():
    for make in ALL.values():
        rest, held_out = as_source(make()).hold_out(0.0, None)
        assert held_out == []
        assert rest.num_batches(7) == len(list(rest.batches()))


@pytest.mark.parametrize("make", [lambda: DataLoader(Numbers(), 7), lambda: DataLoader(DATA, 7, shuffle=True)])
def test_a_pass_is_counted_where_its_length_is_unknown(make):
    rest, _ = as_source(make()).hold_out(0.1, None)
    assert rest.num_batches(128) == 9


def test_an_endless_stream_is_read_no_further_than_needed():
    read = []

    class Counted(Numbers):
        def __iter__(self):
            return (read.append(1) or row for row in super().__iter__())

    source = as_source(Counted(None), batch_size=10, endless=True)
    rest, held_out = source.hold_out(0.5, 20)
    assert len(read) == 200
    assert rest.num_batches(10) is None
    assert 60 < sum(map(num_rows, held_out)) < 140
    source.hold_out(0.0, 20)
    assert len(read) == 200


def test_the_end_of_a_long_count_is_warned_of(monkeypatch):
    monkeypatch.setattr("opu.inputs.passes._MANY", 3)
    with pytest.warns(UserWarning, match=r"3 batches were read to count the inputs.*opu\.Recipe\(steps=\.\.\.\)"):
        as_source(Numbers(), batch_size=7).hold_out(0.1, None)


def test_the_first_rows_of_a_generator_are_held_out():
    source = as_source((part for part in X.split(6)), endless=True)
    assert isinstance(source, Once)
    rest, held_out = source.converted(lambda x: x).hold_out(0.2, 10)
    assert numbers(held_out) == list(range(12))
    assert numbers(rest.batches()) == list(range(12, 60))


def test_held_out_inputs_are_bounded_in_rows_and_bytes(monkeypatch):
    budget = Budget()
    assert num_rows(budget.part(torch.zeros(5000, 1))[0]) == 2048
    assert budget.spent
    assert budget.part(torch.zeros(1, 1)) == []
    monkeypatch.setattr("opu.inputs.passes._MOST_BYTES", 100)
    assert num_rows(Budget().part(torch.zeros(50, 5))[0]) == 5
    assert num_rows(Budget().part(torch.zeros(50, 500))[0]) == 1, "one row at least"


WRONG = {
    "texts": (lambda: iter(["a"]), "must come in batches of tensors or arrays; got an item of type str"),
    "examples": (lambda: iter(X), "batch 0 of the inputs must be a batch"),
    "numbers": (lambda: iter(range(3)), "batch 0 of the inputs must be a batch"),
    "an empty batch": (lambda: iter([X, X[:0]]), "batch 1 of the inputs must have at least one row"),
    "NaN": (lambda: iter([X, X, X / 0]), "batch 2 of the inputs must be finite"),
}


@pytest.mark.parametrize(("make", "sentence"), WRONG.values(), ids=WRONG)
def test_what_a_stream_should_not_hold_is_named_with_its_batch(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        as_source(make(), endless=True).hold_out(0.9, 10)
    with pytest.raises(ValueError, match=sentence):
        list(as_source(Again(list(make()))).batches())


def test_examples_in_place_of_batches_are_refused():
    with pytest.raises(ValueError, match=r"batch 0 of the inputs must be a batch.*single example needs a leading axis"):
        as_source(DataLoader(TensorDataset(X, X[:, 0]), batch_size=None)).example()


# The feed


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
@pytest.mark.parametrize("place", [0, 3, 8, 9, 11])
def test_a_feed_goes_on_from_its_state_bit_by_bit(make, place):
    def start():
        torch.manual_seed(1)
        return as_source(make()).hold_out(0.2, None)[0].feed(7)

    feed = start()
    for step in range(place):
        feed.batch(step)
        torch.rand(3)  # a teacher draws in between
    state, global_state = feed.state(), torch.get_rng_state()
    expected = [feed.batch(place + i).tolist() for i in range(12)]
    again = start()
    again.load(state)
    torch.set_rng_state(global_state)
    assert [again.batch(place + i).tolist() for i in range(12)] == expected


def test_inputs_that_cannot_be_read_again_are_told_apart_from_a_pass():
    once = type("Once", (), {"__iter__": lambda self: self.rows, "rows": iter(X.split(30))})()
    feed = Passes(as_source(once))
    assert [len(feed.batch(i)) for i in range(2)] == [30, 30]
    with pytest.raises(ValueError, match="a whole pass gave no batch"):
        feed.batch(2)
    generator = Passes(as_source(iter(X.split(30)), endless=True))
    assert [generator.batch(i) is None for i in range(3)] == [False, False, True]


# Workers


def test_workers_read_every_pass_and_share_the_rows():
    loader = DataLoader(WithLength(), 5, num_workers=2, persistent_workers=True)
    rest, held_out = as_source(loader).hold_out(0.2, None)
    for _ in range(2):
        rows = torch.cat(list(rest.batches()))
        assert set(rows[:, 1].tolist()) == {0.0, 1.0}
        assert sorted(numbers([rows, *held_out])) == list(range(N))


class Labelled(Dataset):
    """Rows with the number of the worker that read them."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return torch.tensor([float(index), float(get_worker_info().id), float(torch.rand(()))])


@pytest.mark.parametrize("persistent", [False, True])
def test_a_shuffled_loader_with_workers_goes_on_bit_by_bit(persistent):
    def start():
        torch.manual_seed(1)
        loader = DataLoader(Labelled(), 10, shuffle=True, num_workers=2, persistent_workers=persistent)
        return as_source(loader).hold_out(0.2, None)[0].feed(7)

    feed = start()
    for step in range(8):
        feed.batch(step)
    state, global_state = feed.state(), torch.get_rng_state()
    expected = torch.cat([feed.batch(8 + i) for i in range(12)])
    again = start()
    again.load(state)
    torch.set_rng_state(global_state)
    found = torch.cat([again.batch(8 + i) for i in range(12)])
    assert set(found[:, 1].tolist()) == {0.0, 1.0}
    # Workers that stay have random numbers of their own, which no checkpoint can see.
    columns = slice(0, 2) if persistent else slice(0, 3)
    assert torch.equal(found[:, columns], expected[:, columns])
