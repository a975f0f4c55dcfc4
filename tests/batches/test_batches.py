"""Batches of every structure: round trips, rows, calls of networks, and words for what is not read."""

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from opu.batches import (
    Scores,
    as_batch,
    as_scores,
    call,
    cat,
    cat_alike,
    check_batch,
    describe,
    each,
    first_rows,
    fit_to,
    num_rows,
    parameters_of,
    reads,
    rebuild,
    repeat,
    scores,
    shapes,
    split,
    take,
    tensors,
    together,
)

Pair = namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass(frozen=True)
class Sentence:
    ids: Any
    mask: Any = None
    text: str = "kept"


def leaves(rows: int) -> st.SearchStrategy[Tensor]:
    shapes_of_a_row = st.lists(st.integers(1, 3), max_size=2)
    kinds = st.sampled_from([torch.float32, torch.int64, torch.bool, torch.bfloat16])
    return st.builds(
        lambda s, k, n: (n + torch.arange(rows * int(np.prod(s)))).view(rows, *s).to(k),
        shapes_of_a_row,
        kinds,
        st.integers(0, 99),
    )


def structures(rows: int) -> st.SearchStrategy[Any]:
    def wider(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(
            st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3),
            st.lists(inner, min_size=1, max_size=3),
            st.builds(lambda *parts: parts, inner, inner),
            st.builds(Pair, inner, inner),
            st.builds(Sentence, inner, st.one_of(st.none(), inner)),
        )

    return st.recursive(leaves(rows), wider, max_leaves=5)


BATCHES = st.integers(1, 6).flatmap(structures)
ordinary = settings(deadline=None, max_examples=30, derandomize=True)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    assert list(tensors(found)) == list(tensors(expected))
    for name, t in tensors(expected).items():
        assert t.dtype == tensors(found)[name].dtype
        assert torch.equal(t, tensors(found)[name])


@ordinary
@given(batch=BATCHES)
def test_a_batch_is_rebuilt_from_its_tensors(batch):
    assert_same(rebuild(batch, list(tensors(batch).values())), batch)
    assert_same(together(lambda parts: parts[0], [batch, batch]), batch)


@ordinary
@given(batch=BATCHES, size=st.integers(1, 7))
def test_parts_of_a_batch_put_together_are_the_batch(batch, size):
    parts = list(split(batch, size))
    assert [num_rows(part) for part in parts[:-1]] == [size] * (len(parts) - 1)
    assert_same(cat(parts), batch)


@ordinary
@given(batch=BATCHES, count=st.integers(1, 3))
def test_rows_are_the_same_at_every_place(batch, count):
    n = num_rows(batch)
    many = repeat(batch, count)
    assert num_rows(many) == count * n
    assert_same(take(many, slice((count - 1) * n, None)), batch)
    backwards = torch.arange(n).flip(0)
    assert_same(take(take(batch, backwards), backwards), batch)
    assert sum(num_rows(part) for part in first_rows([batch, batch], n + 1)) == n + 1


@ordinary
@given(batch=BATCHES)
def test_only_floating_point_numbers_take_the_type_of_the_weights(batch):
    fitted = fit_to(batch, nn.Linear(1, 1).double())
    for before, after in zip(tensors(batch).values(), tensors(fitted).values(), strict=True):
        assert after.dtype == (torch.float64 if before.is_floating_point() else before.dtype)
    assert_same(fit_to(batch, nn.Flatten()), batch)


def test_batches_of_the_same_shape_are_put_together():
    short, long = torch.ones(2, 3), torch.ones(1, 5)
    found = cat_alike([short, long, 2 * short, 3 * long])
    assert [part[:, 0].tolist() for part in found] == [[1, 1, 2, 2], [1, 3]]
    assert cat_alike([]) == []


def test_names_shapes_and_words():
    batch = {"a": torch.zeros(2, 3), "b": Pair(torch.zeros(2), [torch.zeros(2, 1, 4)])}
    assert list(tensors(batch)) == ["a", "b.left", "b.right.0"]
    assert shapes(batch) == (("a", (3,)), ("b.left", ()), ("b.right.0", (1, 4)))
    assert shapes(batch["a"]) == (3,)
    assert describe(batch) == "parts a (2, 3), b.left (2,), b.right.0 (2, 1, 4)"
    assert describe(batch["a"]) == "shape (2, 3)"
    assert describe(None) == "type NoneType"


def test_a_dataclass_keeps_what_is_no_tensor():
    doubled = each(lambda t: 2 * t, Sentence(torch.ones(2, 3)))
    assert (doubled.ids == 2).all()
    assert (doubled.mask, doubled.text) == (None, "kept")


# From what users give to tensors

NUMBERS = np.arange(6).reshape(2, 3)


KINDS = {"f4": torch.float32, "f8": torch.float64, "f2": torch.float16, ">f4": torch.float32, "g": torch.float64}
KINDS |= {"i4": torch.int32, "u1": torch.uint8, "u2": torch.int64, "u4": torch.int64, "?": torch.bool}


@pytest.mark.parametrize(("kind", "expected"), KINDS.items())
def test_arrays_of_every_type_of_numbers_keep_their_values(kind, expected):
    array = NUMBERS.astype(kind)
    found = as_batch({"x": array, "name": "text", "names": ["a", "b"], "raw": np.array(["a", "b"])})
    assert list(found) == ["x"]
    assert found["x"].dtype == expected
    assert np.array_equal(found["x"].numpy(), array.astype(found["x"].numpy().dtype))


def test_unsigned_numbers_that_are_too_large_for_signed_ones_do_not_become_negative():
    values = np.array([[2**64 - 1, 1], [2**63, 1]], dtype=np.uint64)
    assert as_batch(values).tolist() == [[2.0**64, 1.0], [2.0**63, 1.0]]
    assert as_batch(np.array([2**63 - 1], dtype=np.uint64)).tolist() == [2**63 - 1]
    assert as_batch(np.zeros((0, 2), dtype=np.uint64)).shape == (0, 2)


def test_numbers_lists_and_nested_structures_become_tensors():
    found = as_batch(Pair(Sentence([1, 2], 0.5), [np.float32(1), np.float32(2)]))
    assert isinstance(found, Pair)
    assert found.left.ids.tolist() == [1, 2]
    assert found.left.mask.shape == ()
    assert found.right.tolist() == [1.0, 2.0]
    assert as_batch(None) is None


def test_an_array_is_copied_and_a_file_is_not(tmp_path):
    array = NUMBERS.astype("f4")
    batch = as_batch(array)
    array[:] = 9
    assert batch.max() == 5
    np.save(tmp_path / "x.npy", array)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert as_batch(mapped).data_ptr() == mapped.ctypes.data


@pytest.mark.parametrize("array", [np.array([["a"]]), np.array([[object()]]), np.array([[1j]])])
def test_arrays_without_numbers_are_refused(array):
    with pytest.raises(ValueError, match="inputs must hold numbers; got an array of type"):
        as_batch(array)


def test_other_objects_are_refused_with_what_would_do():
    with pytest.raises(ValueError, match=r"held-out inputs must be tensors, arrays, data frames.*got object"):
        as_batch({"x": object()}, "held-out inputs")


# Checks


def test_parts_must_have_the_same_number_of_rows_and_be_finite():
    check_batch({"a": torch.zeros(2, 3), "b": torch.zeros(2)})
    with pytest.raises(ValueError, match="same number of rows; a has 2, b has 3"):
        check_batch({"a": torch.zeros(2, 3), "b": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"inputs, part b, must be finite.*the first at row 11\b"):
        check_batch({"a": torch.zeros(2, 3), "b": torch.tensor([0.0, torch.nan])}, first_row=10)
    with pytest.raises(ValueError, match="inputs must hold tensors; got dict without any"):
        check_batch({"a": "text"})
    with pytest.raises(ValueError, match=r"part a, must be a batch.*single example"):
        check_batch({"a": torch.tensor(1.0)})


@pytest.mark.parametrize("x", [torch.ones(2, 2).to_sparse(), torch.ones(2, 2, dtype=torch.complex64)])
def test_only_dense_real_numbers_are_inputs(x):
    with pytest.raises(ValueError, match="inputs must be real numbers in a dense tensor"):
        check_batch(x)


# From a batch to class scores


class Two(nn.Module):
    def forward(self, left, right=None, *, scale=1.0):
        return left if right is None else scale * (left - right)


class Whole(nn.Module):
    def forward(self, batch):
        return batch["left"]


class Any_(nn.Module):
    def forward(self, **named):
        return {"logits": named["left"]}


A, B = torch.ones(2, 3), 5 * torch.ones(2, 3)


@pytest.mark.parametrize(
    ("net", "batch", "expected"),
    [
        (Two(), A, A),
        (Two(), (A, B), A - B),
        (Two(), Pair(A, B), A - B),
        (Two(), {"right": B, "left": A}, A - B),
        (Two(), OrderedDict(left=A, right=B, scale=2), 2 * (A - B)),
        (Whole(), {"left": A, "right": B}, A),
        (Any_(), {"left": A, "right": B}, A),
        (nn.DataParallel(Two()), (A, B), A - B),
        (nn.Identity(), Sentence(A), None),
    ],
)
def test_a_network_is_called_as_its_forward_takes_it(net, batch, expected):
    if expected is None:
        assert call(net, batch) is batch
    else:
        assert torch.equal(scores(net, batch), expected)
        assert torch.equal(Scores(net)(batch), expected)


def test_a_compiled_network_is_asked_for_its_own_parameters():
    compiled = torch.compile(Two(), backend="eager")
    assert [each.name for each in parameters_of(compiled)] == ["left", "right", "scale"]


def test_the_network_that_meets_the_inputs_is_found_in_wrappers():
    net = Two()
    assert reads(nn.Sequential(nn.Sequential(Scores(net), nn.ReLU()), nn.Flatten())) is net
    plain = nn.Sequential(nn.Linear(2, 2))
    assert reads(plain) is plain


@pytest.mark.parametrize("output", [(A, B), {"loss": A}, None, 1.0])
def test_what_are_no_class_scores_is_refused(output):
    with pytest.raises(ValueError, match=r"a classifier must return one tensor .*; Net returns a"):
        as_scores(output, "Net")
