"""Inputs of every kind become rows."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from opu.checks import check_inputs
from opu.inputs import as_rows

X = 3 * torch.rand(7, 3, generator=torch.Generator().manual_seed(0)) - 1
LABELS = torch.arange(7)


class Items(Dataset):
    """A dataset of the user's, with whatever it gives for each row."""

    def __init__(self, item):
        self.item = item

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return self.item(index)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, LABELS, strict=True))


SOURCES = {
    "tensor": lambda: X,
    "array": lambda: X.numpy(),
    "array of float64": lambda: X.numpy().astype(np.float64),
    "float64": lambda: X.double(),
    "read-only array": lambda: np.broadcast_to(X.numpy(), X.shape),
    "array back to front": lambda: X.numpy()[::-1].copy()[::-1],
    "tensor dataset": lambda: TensorDataset(X),
    "tensor dataset with labels": lambda: TensorDataset(X, LABELS),
    "tensor dataset of float64": lambda: TensorDataset(X.double(), LABELS),
    "subset": lambda: Subset(TensorDataset(torch.cat([X, X + 9]), torch.arange(14)), range(7)),
    "dataset of arrays": lambda: Items(lambda i: (X[i].numpy(), int(LABELS[i]))),
    "dataset of lists": lambda: Items(lambda i: (X[i].tolist(), 0)),
    "loader": lambda: DataLoader(TensorDataset(X, LABELS), batch_size=2),
    "shuffled loader": lambda: DataLoader(TensorDataset(X, LABELS), batch_size=2, shuffle=True),
    "loader that drops rows": lambda: DataLoader(TensorDataset(X, LABELS), batch_size=4, drop_last=True),
    "loader of a stream": lambda: DataLoader(Stream(), batch_size=3),
    "list of batches": lambda: [X[:4], X[4:]],
    "list of batches with labels": lambda: [(X[:4], LABELS[:4]), [X[4:], LABELS[4:]]],
    "tuple of arrays": lambda: (X[:4].numpy(), X[4:].numpy()),
    "generator": lambda: (part for part in X.split(3)),
    "generator with labels": lambda: ((part, None) for part in X.split(3)),
}


@pytest.fixture
def _warn_always():
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # some of torch's warnings come once in a process
    yield
    torch.set_warn_always(before)


@pytest.mark.usefixtures("_warn_always")
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_every_source_gives_the_same_rows_in_float32(make):
    rows = as_rows(make())
    assert len(rows) == 7
    everything = rows.take(torch.arange(7))
    assert everything.dtype == torch.float32
    assert torch.equal(everything, X)


@pytest.mark.parametrize("name", ["tensor", "tensor dataset with labels", "subset", "dataset of arrays", "generator"])
@settings(deadline=None, max_examples=40, derandomize=True)
@given(order=st.lists(st.integers(0, 6), min_size=1, max_size=10), chosen=st.data())
def test_rows_are_taken_by_number_and_subsets_keep_their_order(name, order, chosen):
    rows = as_rows(SOURCES[name]())
    index = torch.tensor(order)
    assert torch.equal(rows.take(index), X[index])
    some = rows.subset(index)
    assert len(some) == len(order)
    again = torch.tensor(chosen.draw(st.lists(st.integers(0, len(order) - 1), min_size=1, max_size=5)))
    assert torch.equal(some.take(again), X[index][again])
    assert torch.equal(some.subset(again).take(torch.arange(len(again))), X[index][again])


@pytest.mark.parametrize("size", [1, 3, 7, 100])
@pytest.mark.parametrize("make", [lambda: X, lambda: TensorDataset(X, LABELS)], ids=["tensor", "dataset"])
def test_batches_go_through_all_rows_in_order(make, size):
    parts = list(as_rows(make()).batches(size))
    assert all(len(part) == size for part in parts[:-1])
    assert torch.equal(torch.cat(parts), X)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.float16])
def test_other_numbers_become_float32(dtype):
    x = (50 * X.abs()).to(dtype)
    for source in (x, x.numpy(), TensorDataset(x, LABELS), [x[:3], x[3:]]):
        taken = as_rows(source).take(torch.arange(7))
        assert taken.dtype == torch.float32
        assert torch.equal(taken, x.float())


def test_images_stay_images():
    x = torch.rand(5, 3, 4, 6)
    assert as_rows(TensorDataset(x, torch.zeros(5))).take(torch.tensor([4, 1])).shape == (2, 3, 4, 6)


def test_a_negative_stride_is_no_obstacle():
    flipped = X.numpy()[::-1]
    assert torch.equal(as_rows(flipped).take(torch.arange(7)), X.flip(0))


EMPTY = {
    "tensor": lambda: torch.empty(0, 3),
    "array": lambda: np.empty((0, 3)),
    "dataset": lambda: TensorDataset(torch.empty(0, 3)),
    "list": list,
    "generator": lambda: iter(()),
    "batch": lambda: [torch.empty(0, 3)],
}


@pytest.mark.parametrize("make", EMPTY.values(), ids=EMPTY)
def test_no_rows_are_refused(make):
    with pytest.raises(ValueError, match="inputs must have at least one row; got none"):
        as_rows(make())


@pytest.mark.parametrize(
    "make", [lambda: X[0], lambda: X[0].numpy(), lambda: Items(lambda i: X[i, 0]), lambda: torch.empty(3, 0)]
)
def test_rows_without_an_axis_of_features_are_refused(make):
    with pytest.raises(ValueError, match=r"inputs must be a batch .*A single example needs a leading axis"):
        as_rows(make())


@pytest.mark.parametrize(
    "source",
    [torch.tensor(1.0), 5, "data.csv", (X, LABELS), [X, X[:, :2]]],
    ids=["number as tensor", "number", "path", "features and labels", "two widths"],
)
def test_what_are_not_inputs_is_refused_in_a_sentence(source):
    with pytest.raises(ValueError, match="inputs"):
        as_rows(source)


def test_nested_lists_are_read_as_rows_or_refused():
    try:
        rows = as_rows([[1.0, 2.0], [3.0, 4.0]])
    except ValueError:
        return
    assert rows.take(torch.arange(2)).tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: x.numpy(), TensorDataset], ids=["tensor", "array", "dataset"])
def test_rows_that_are_not_finite_are_counted_and_the_first_is_named(value, wrap):
    x = X.clone()
    x[4, 1] = x[6, 0] = x[6, 2] = value
    with pytest.raises(ValueError, match=r"NaN or infinite features in 2 of 7 rows, the first at row 4\."):
        as_rows(wrap(x))


def test_a_row_that_is_not_finite_far_down_is_named_by_its_own_number():
    x = torch.zeros(3000, 2)
    x[2500] = math.nan
    with pytest.raises(ValueError, match=r"the first at row 2500\b"):
        as_rows(x)


def test_the_check_of_inputs_says_what_they_are():
    check_inputs(X)
    check_inputs(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"calibration inputs must be a batch .*got shape \(3,\)"):
        check_inputs(X[0], "calibration inputs")
