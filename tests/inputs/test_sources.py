"""Inputs of every kind become a source that is read in batches, by number or in passes."""

import math

import numpy as np
import pytest
import scipy.sparse as sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from opu.batches import cat
from opu.checks import check_inputs
from opu.inputs import InDataset, InMemory, as_source
from opu.inputs.passes import Loader, Once, Stream

X = 3 * torch.rand(7, 3, generator=torch.Generator().manual_seed(0)) - 1
LABELS = torch.arange(7)


class Items(Dataset):
    """A dataset of the user's, with whatever it gives for each row."""

    def __init__(self, item):
        self.item = item

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        if not 0 <= index < len(X):
            raise IndexError(index)
        return self.item(index)


class Rows(IterableDataset):
    def __iter__(self):
        return iter(zip(X, LABELS, strict=True))


class Again:
    """An iterable of batches without a length that can be read again."""

    def __iter__(self):
        return iter(X.split(3))


class InOrder:
    """A sampler without a length."""

    def __iter__(self):
        return iter(range(7))


BY_NUMBER = {
    "tensor": (lambda: X, InMemory),
    "array": (lambda: X.numpy(), InMemory),
    "array of float64": (lambda: X.numpy().astype(np.float64), InMemory),
    "float64": (lambda: X.double(), InMemory),
    "read-only array": (lambda: np.broadcast_to(X.numpy(), X.shape), InMemory),
    "array back to front": (lambda: X.numpy()[::-1].copy()[::-1], InMemory),
    "features and labels": (lambda: (X, LABELS), InMemory),
    "list of batches": (lambda: [X[:4], X[4:]], InMemory),
    "list of arrays": (lambda: [row.numpy() for row in X], InMemory),
    "list of lists": (lambda: X.double().tolist(), InMemory),
    "list of lists of numpy's numbers": (lambda: [list(row) for row in X.numpy()], InMemory),
    "list of batches with labels": (lambda: [(X[:4], LABELS[:4]), [X[4:], LABELS[4:]]], InMemory),
    "list of examples with labels": (lambda: [(row, 1) for row in X], InMemory),
    "generator": (lambda: (part for part in X.split(3)), InMemory),
    "generator of examples": (lambda: (row for row in X), InMemory),
    "generator with labels": (lambda: ((part, None) for part in X.split(3)), InMemory),
    "tensor dataset": (lambda: TensorDataset(X), InDataset),
    "tensor dataset with labels": (lambda: TensorDataset(X, LABELS), InDataset),
    "tensor dataset of float64": (lambda: TensorDataset(X.double(), LABELS), InDataset),
    "subset": (lambda: Subset(TensorDataset(torch.cat([X, X + 9]), torch.arange(14)), range(7)), InDataset),
    "dataset of arrays": (lambda: Items(lambda i: (X[i].numpy(), int(LABELS[i]))), InDataset),
    "dataset of lists": (lambda: Items(lambda i: (X[i].tolist(), "text")), InDataset),
    "dataset of numpy's numbers": (lambda: Items(lambda i: ([*X[i].numpy()], 0)), InDataset),
}
IN_PASSES = {
    "loader": (lambda: DataLoader(TensorDataset(X, LABELS), batch_size=2), Loader),
    "loader of a list": (lambda: DataLoader(list(X), batch_size=2), Loader),
    "loader of batches": (lambda: DataLoader(list(X.split(3)), batch_size=None), Stream),
    "loader of a stream": (lambda: DataLoader(Rows(), batch_size=3), Stream),
    "subclass of the loader": (lambda: type("Mine", (DataLoader,), {})(TensorDataset(X), 3), Stream),
    "sampler without a length": (lambda: DataLoader(TensorDataset(X), 3, sampler=InOrder()), Stream),
    "bare stream": (lambda: Rows(), Stream),
    "iterable": (lambda: Again(), Stream),
}


@pytest.fixture
def _warn_always():
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # some of torch's warnings come once in a process
    yield
    torch.set_warn_always(before)


@pytest.mark.usefixtures("_warn_always")
@pytest.mark.parametrize(("make", "kind"), (BY_NUMBER | IN_PASSES).values(), ids=BY_NUMBER | IN_PASSES)
def test_every_source_gives_the_same_rows_as_often_as_it_is_read(make, kind):
    source = as_source(make())
    assert type(source) is kind
    for _ in range(2):
        assert torch.equal(cat(list(source.batches(2))).float(), X)
    assert torch.equal(source.example(2).float(), X[:2])
    assert torch.equal(source.converted(lambda x: -x).example(2).float(), -X[:2])


@pytest.mark.parametrize("name", ["tensor", "tensor dataset with labels", "subset", "dataset of arrays", "generator"])
@settings(deadline=None, max_examples=20, derandomize=True)
@given(order=st.lists(st.integers(0, 6), min_size=1, max_size=10), chosen=st.data())
def test_rows_are_taken_by_number_and_subsets_keep_their_order(name, order, chosen):
    rows = as_source(BY_NUMBER[name][0]())
    index = torch.tensor(order)
    assert torch.equal(rows.take(index), X[index])
    some = rows.subset(index)
    assert len(some) == len(order)
    again = torch.tensor(chosen.draw(st.lists(st.integers(0, len(order) - 1), min_size=1, max_size=5)))
    assert torch.equal(some.take(again), X[index][again])
    assert torch.equal(some.subset(again).take(torch.arange(len(again))), X[index][again])


@pytest.mark.parametrize("size", [1, 3, 7, 100])
@pytest.mark.parametrize("make", [lambda: X, lambda: TensorDataset(X, LABELS)], ids=["tensor", "dataset"])
def test_batches_have_the_size_that_was_asked_for(make, size):
    parts = list(as_source(make()).batches(size))
    assert all(len(part) == size for part in parts[:-1])
    assert torch.equal(torch.cat(parts), X)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.float16, torch.float64])
def test_numbers_keep_their_type(dtype):
    x = (50 * X.abs()).to(dtype)
    for inputs in (x, x.numpy(), TensorDataset(x, LABELS), [x[:3], x[3:]], DataLoader(TensorDataset(x), 3)):
        found = cat(list(as_source(inputs).batches()))
        assert found.dtype == dtype
        assert torch.equal(found, x)


def test_images_stay_images():
    x = torch.rand(5, 3, 4, 6)
    assert as_source(TensorDataset(x, torch.zeros(5))).take(torch.tensor([4, 1])).shape == (2, 3, 4, 6)


def test_structures_are_kept_and_labels_left_out():
    for inputs in (
        {"ids": X, "labels": LABELS, "text": ["a"] * 7},
        Items(lambda i: {"ids": X[i], "labels": i, "text": "a"}),
        DataLoader(Items(lambda i: {"ids": X[i], "labels": i, "text": "a"}), 7),
        Items(lambda i: ({"ids": X[i]}, i)),
        [{"ids": X[:2], "labels": LABELS[:2]}, {"ids": X[2:], "labels": LABELS[2:]}],
    ):
        (found,) = as_source(inputs).batches(7)
        assert list(found) == ["ids"]
        assert torch.equal(found["ids"], X)


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
        as_source(make())


@pytest.mark.parametrize("endless", [True, False])
def test_streams_without_rows_are_refused_when_they_are_read(endless):
    for inputs in (
        DataLoader(TensorDataset(X[:0]), 2),
        map(abs, ()) if endless else type("E", (Rows,), {"__iter__": lambda _: iter(())})(),
    ):
        with pytest.raises(ValueError, match="inputs must have at least one row; got none"):
            as_source(inputs, endless=endless).example()


@pytest.mark.parametrize(
    "make", [lambda: X[0], lambda: X[0].numpy(), lambda: Items(lambda i: X[i, 0]), lambda: torch.empty(3, 0)]
)
def test_rows_without_an_axis_of_features_are_refused(make):
    with pytest.raises(ValueError, match=r"inputs must be a batch .*A single example needs a leading axis"):
        as_source(make())


WRONG = {
    "number as tensor": (torch.tensor(1.0), "must be a batch"),
    "number": (5, "got int"),
    "nothing": (None, "got NoneType"),
    "path": ("data.csv", "not the path of a file. Read it first"),
    "two widths": ([X, X[:, :2]], "a list of inputs must hold batches, or feature vectors, of one shape"),
    "different keys": ([{"a": X}, {"b": X}], "a list of inputs must hold"),
    "numbers": ([1.0, 2.0], "a list of inputs must hold"),
    "generator of numbers": (iter(range(3)), "a list of inputs must hold"),
    "texts": (Items(lambda i: "text"), "inputs must hold tensors"),
    "objects": (Items(lambda i: object()), "inputs must be tensors, arrays"),
    "ragged": (
        Items(lambda i: X[0, : 1 + i % 2]),
        "the rows of Items could not be read .*DataLoader with a collate_fn",
    ),
    "no tuple": ((), "got an empty tuple"),
}


@pytest.mark.parametrize(("inputs", "sentence"), WRONG.values(), ids=WRONG)
def test_what_are_not_inputs_is_refused_in_a_sentence(inputs, sentence):
    with pytest.raises(ValueError, match=sentence):
        as_source(inputs)


def test_sparse_matrices_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"inputs must be dense; got csr_matrix.*x\.toarray\(\)"):
        as_source(sparse.csr_matrix(X.numpy()))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: x.numpy(), TensorDataset], ids=["tensor", "array", "dataset"])
def test_rows_that_are_not_finite_are_counted_and_the_first_is_named(value, wrap):
    x = X.clone()
    x[4, 1] = x[6, 0] = x[6, 2] = value
    with pytest.raises(ValueError, match=r"NaN or infinite features in 2 of 7 rows, the first at row 4\."):
        as_source(wrap(x))


@pytest.mark.parametrize("wrap", [lambda x: x, TensorDataset], ids=["tensor", "dataset"])
def test_a_row_that_is_not_finite_far_down_is_named_by_its_own_number(wrap):
    x = torch.zeros(3000, 2)
    x[2500] = math.nan
    with pytest.raises(ValueError, match=r"the first at row 2500\b"):
        as_source(wrap(x))


def test_a_dataset_too_large_to_be_checked_at_once_is_checked_as_it_is_read(monkeypatch):
    monkeypatch.setattr("opu.inputs.rows._MOST_CHECKED", 3)
    monkeypatch.setattr("opu.inputs.rows._CHECKED_AT_ONCE", 3)
    x = X.clone()
    x[5] = math.nan
    source = as_source(TensorDataset(x))
    assert torch.equal(source.take(torch.tensor([4])), X[4:5])
    with pytest.raises(ValueError, match="inputs must be finite"):
        source.take(torch.tensor([5]))


def test_a_large_mapped_file_is_read_as_it_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr("opu.inputs._MOST_BYTES", 50)
    np.save(tmp_path / "x.npy", X.double().numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    source = as_source(mapped)
    assert isinstance(source, InDataset)
    assert source.dataset is mapped
    rest, (held_out,) = source.hold_out(0.3, None)
    assert len(rest) == 5
    assert torch.equal(torch.cat([held_out, *rest.batches()]).sort(0).values, X.double().sort(0).values)
    assert isinstance(as_source(X.numpy()), InMemory), "an array is in memory already"


def test_a_generator_is_read_once_where_the_number_of_steps_is_known():
    source = as_source((part for part in X.split(3)), endless=True)
    assert type(source) is Once
    assert torch.equal(source.example(2), X[:2]), "what was looked at comes again"
    assert torch.equal(torch.cat(list(source.batches())), X)
    assert list(source.batches()) == []


def test_a_large_generator_needs_a_number_of_steps(monkeypatch):
    monkeypatch.setattr("opu.inputs._MOST_BYTES", 2 * X.numel() * 4)
    read = []
    with pytest.raises(
        ValueError, match=r"can be read only once and are too large to be collected; .*opu\.Recipe\(steps=\.\.\.\)"
    ):
        as_source(read.append(number) or X for number in range(100))
    assert read == [0, 1], "it is read no further than needed"


def test_the_check_of_inputs_says_what_they_are():
    check_inputs(X)
    check_inputs(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"calibration inputs must be a batch .*got shape \(3,\)"):
        check_inputs(X[0], "calibration inputs")
