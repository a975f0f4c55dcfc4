"""Which parts of an item are features: labels are left out, and nothing else is, without a word."""

import dataclasses
from collections import namedtuple

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from opu.batches import tensors
from opu.inputs import Features

X, Z = torch.arange(12.0).view(4, 3), torch.arange(8.0).view(4, 2)
TOKENS = torch.arange(20).view(4, 5)
LABELS = torch.tensor([0, 1, 2, 1])
ONE_HOT = nn.functional.one_hot(LABELS)
SOFT = torch.tensor([[0.2, 0.8]] * 4)
Pair = namedtuple("Pair", ["x", "y"])


@dataclasses.dataclass
class Item:
    x: torch.Tensor
    length: torch.Tensor


def net(forward) -> nn.Module:
    return type("Net", (nn.Module,), {"forward": forward})()


ONE = net(lambda self, x: x)
TWO = net(lambda self, x, z: x)
PERHAPS = net(lambda self, x, mask=None: x)
SCALAR = net(lambda self, x, length: x)
ANY_NUMBER = net(lambda self, *parts: parts)
BERT = net(lambda self, input_ids, attention_mask=None, labels=None: input_ids)
OPEN = net(lambda self, input_ids, labels=None, **more: input_ids)
NEEDS_LABELS = net(lambda self, x, labels: x)
KEYWORDS = net(lambda self, **named: named)

PARTS = {
    "features and labels": (ONE, (X, LABELS), X),
    "labels of one column": (ONE, (X, LABELS[:, None]), X),
    "labels one-hot": (ONE, [X, ONE_HOT], X),
    "labels as probabilities": (ONE, (X, SOFT), X),
    "labels and row numbers": (ONE, (X, LABELS, LABELS), X),
    "labels as text": (ONE, (X, ["a", "b", "c", "d"]), X),
    "labels missing": (ONE, (X, None), X),
    "arrays": (ONE, (X.numpy(), LABELS.numpy()), X),
    "named tuple": (ONE, Pair(X, LABELS), X),
    "two inputs": (TWO, (X, Z), (X, Z)),
    "two inputs as a list": (TWO, [X, Z], (X, Z)),
    "two inputs and labels": (TWO, (X, Z, LABELS), (X, Z)),
    "two inputs that look like labels": (SCALAR, (X, LABELS), (X, LABELS)),
    "two inputs and labels, one a number per row": (SCALAR, (X, LABELS, LABELS), (X, LABELS)),
    "optional second input": (PERHAPS, (X, Z), (X, Z)),
    "optional second input left out": (PERHAPS, (X, LABELS), X),
    "any number of inputs": (ANY_NUMBER, (X, Z, LABELS), (X, Z)),
    "unknown network": (None, (X, LABELS), X),
    "dict and labels": (BERT, ({"input_ids": TOKENS}, LABELS), {"input_ids": TOKENS}),
    "dict": (BERT, {"input_ids": TOKENS, "labels": LABELS, "idx": LABELS}, {"input_ids": TOKENS}),
    "dict with texts": (
        BERT,
        {"input_ids": TOKENS, "text": ["a"] * 4, "raw": np.array(["a"] * 4)},
        {"input_ids": TOKENS},
    ),
    "dict of a network with keywords": (KEYWORDS, {"x": X, "target": LABELS}, {"x": X}),
    "dict of a network with more keywords": (
        OPEN,
        {"input_ids": TOKENS, "extra": Z, "label": LABELS, "idx": LABELS},
        {"input_ids": TOKENS, "extra": Z},
    ),
    "dict as one argument": (ONE, {"image": X, "y": LABELS}, {"image": X}),
    "dict of the argument's own name": (ONE, {"x": X, "y": LABELS}, {"x": X}),
    "nested dict": (ONE, {"both": {"a": X, "b": Z}, "labels": LABELS}, {"both": {"a": X, "b": Z}}),
    "labels that the network needs": (NEEDS_LABELS, {"x": X, "labels": LABELS}, {"x": X, "labels": LABELS}),
}


@pytest.mark.parametrize(("network", "item", "expected"), PARTS.values(), ids=PARTS)
def test_the_features_are_found(network, item, expected):
    found = Features(network)(item)
    assert type(found) is type(expected)
    assert list(tensors(found)) == list(tensors(expected))
    for name, t in tensors(expected).items():
        assert torch.equal(tensors(found)[name], t)


def test_a_dataclass_is_one_input():
    item = Item(X, LABELS)
    assert Features(ONE)(item).length is LABELS
    assert Features(ONE)((item, LABELS)).x is X


def test_a_network_that_names_its_inputs_is_believed():
    named = net(lambda self, *args, **kwargs: args)
    named.input_names = ["x", "y"]
    assert list(Features(named)({"x": X, "y": LABELS, "labels": LABELS})) == ["x", "y"]
    assert len(Features(named)((X, Z, LABELS))) == 2


REFUSED = {
    "two inputs": (ONE, (X, Z), r"takes one input, but each item has 2 parts.*shape \(4, 2\)"),
    "three inputs": (TWO, (X, Z, X), r"takes 2 inputs, but each item has 3 parts"),
    "numbers that are no labels": (ONE, (X, X - 5), "does not look like a class label"),
    "unknown key": (
        BERT,
        {"input_ids": TOKENS, "pixels": Z},
        r"takes attention_mask, input_ids, labels, but the inputs hold 'pixels'",
    ),
    "an image in nested lists": (ONE, [X, X - 5], "If each item is one array in nested lists, make it a tensor"),
    "nothing": (ONE, (), "got an empty tuple"),
}


@pytest.mark.parametrize(("network", "item", "sentence"), REFUSED.values(), ids=REFUSED)
def test_nothing_else_is_dropped_without_a_word(network, item, sentence):
    with pytest.raises(ValueError, match=sentence):
        Features(network)(item)


# Data frames


def test_data_frames_are_numbers_and_integers_stay_integers():
    mixed = pd.DataFrame({"a": [1, 2], "b": [True, False], "c": [0.5, 1.5], "d": pd.array([3, 4], dtype="Int64")})
    assert Features()(mixed).tolist() == [[1, 1, 0.5, 3], [2, 0, 1.5, 4]]
    whole = Features()(mixed[["a", "d"]])
    assert whole.dtype == torch.int64
    assert torch.equal(whole, torch.tensor([[1, 3], [2, 4]]))
    twice = pd.DataFrame([[1.0, 2.0]], columns=["a", "a"])
    assert Features()(twice).tolist() == [[1.0, 2.0]]


def test_missing_numbers_become_nan():
    frame = pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": pd.array([True, None], dtype="boolean")})
    assert torch.equal(Features()(frame).isnan(), torch.tensor([[False, False], [True, True]]))


@pytest.mark.parametrize("column", [["x", "y"], np.array(["2020-01-01", "2021-01-01"], "M8[s]"), [1j, 2j]])
def test_columns_without_numbers_are_named(column):
    with pytest.raises(ValueError, match=r"must hold numbers; column 'city' of the data frame has type .*Encode it"):
        Features()(pd.DataFrame({"a": [1.0, 2.0], "city": column}))


def test_a_frame_without_columns_is_refused():
    with pytest.raises(ValueError, match="got a data frame without columns"):
        Features()(pd.DataFrame(index=range(3)))


class Column:
    """A column as in polars: no numpy type, no index."""

    def __init__(self, values, dtype):
        self.values, self.dtype = values, dtype

    def to_numpy(self):
        return np.array(self.values)


class Frame:
    def __init__(self, columns):
        self.columns, self._columns = list(columns), columns

    def __getitem__(self, name):
        return self._columns[name]

    def to_numpy(self):
        raise NotImplementedError


def test_frames_of_other_libraries_are_read_by_column():
    frame = Frame({"a": Column([1, 2], "Int64"), "b": Column([0.5, 1.5], "Float64")})
    assert Features()(frame).tolist() == [[1, 0.5], [2, 1.5]]
    with pytest.raises(ValueError, match="column 'city' of the data frame has type String"):
        Features()(Frame({"city": Column(["x", "y"], "String")}))
