"""Helpers that teachers share: conversion to log-probabilities, choice of samples, modes, chunks and files."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from opu.files import write_state
from opu.teachers import Ensemble, as_teacher
from opu.teachers.base import choose, chunk_sizes, evaluating, read_saved, to_log_probabilities

laws = settings(deadline=None, max_examples=50, derandomize=True)
LOG_P = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log_softmax(-1)


@laws
@given(st.lists(st.floats(-60, 60), min_size=2, max_size=6), st.floats(-1000, 1000))
def test_logits_are_normalised_whatever_their_shift(logits, shift):
    values = torch.tensor([[[*logits]]], dtype=torch.float64)
    assume(float((values + shift).min()) < 0 or abs(float((values + shift).sum()) - 1) > 1e-3)  # else on the simplex
    shifted = to_log_probabilities(values + shift, "logits")
    torch.testing.assert_close(shifted.exp().sum(-1), torch.ones(1, 1, dtype=torch.float64))
    torch.testing.assert_close(shifted, values.log_softmax(-1), rtol=1e-9, atol=1e-9)


@laws
@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.sampled_from([1e-12, 1e-6, 1e-3]))
def test_probabilities_are_kept_and_zeros_raised_to_the_floor(weights, floor):
    p = torch.tensor([[[*weights, 1.0]]], dtype=torch.float64)
    p = p / p.sum()
    log_p = to_log_probabilities(p, "probabilities", floor)
    raised = p.clamp(min=floor)
    torch.testing.assert_close(log_p.exp(), raised / raised.sum(), rtol=1e-9, atol=0)
    assert bool(torch.isfinite(log_p).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_exact_zeros_have_a_finite_logarithm_in_every_precision(dtype):
    log_p = to_log_probabilities(torch.tensor([[[1.0, 0.0]]], dtype=dtype), "probabilities")
    assert bool(torch.isfinite(log_p).all())
    assert float(log_p[0, 0, 0]) == pytest.approx(0, abs=1e-6)


def test_log_probabilities_stay_as_they_are():
    torch.testing.assert_close(to_log_probabilities(LOG_P, "log_probabilities"), LOG_P, rtol=0, atol=1e-12)


def test_probabilities_announced_as_log_probabilities_are_refused():
    """A log_softmax would flatten them silently, as it would probabilities announced as logits."""
    with pytest.raises(ValueError, match="probabilities"):
        to_log_probabilities(LOG_P.exp(), "log_probabilities")


@pytest.mark.parametrize(
    "values", [[0.7, 0.7], [0.5, 0.2], [1.2, -0.2], [torch.nan, 1.0]], ids=["above", "below", "negative", "NaN"]
)
def test_values_off_the_simplex_are_refused(values):
    with pytest.raises(ValueError, match="must lie on the simplex; got values in"):
        to_log_probabilities(torch.tensor([[values]]), "probabilities")


def test_an_unknown_kind_of_output_is_refused():
    with pytest.raises(ValueError, match="outputs must be logits, log_probabilities or probabilities; got 'odds'"):
        to_log_probabilities(LOG_P, "odds")


def test_outputs_that_lie_on_the_simplex_are_not_logits():
    with pytest.raises(ValueError, match="announced as logits but lie on the simplex"):
        to_log_probabilities(LOG_P.exp(), "logits")


# --- which posterior samples -----------------------------------------------------------------------------------------


@laws
@given(st.integers(1, 40), st.integers(1, 60))
def test_a_choice_never_repeats_a_sample_and_more_than_all_are_all_in_order(total, count):
    chosen = choose(total, count).tolist()
    assert len(set(chosen)) == len(chosen) == min(total, count)
    assert set(chosen) <= set(range(total))
    if count >= total:
        assert chosen == list(range(total))


def test_every_sample_is_chosen_as_often_as_any_other():
    counts = torch.stack([choose(6, 2).bincount(minlength=6) for _ in range(3000)]).sum(0).numpy()
    # Without repetition the counts vary a little less than a chi-square test supposes.
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(3000 * (1 / 3) * (2 / 3))


# --- modes, chunks, files --------------------------------------------------------------------------------------------


def test_every_mode_is_restored_even_after_an_error():
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).train()
    net[0].eval()
    with evaluating(net):
        assert not any(child.training for child in net.modules())
        assert not net[0](torch.zeros(1, 2)).requires_grad
    with pytest.raises(RuntimeError), evaluating(net):
        net(torch.zeros(1, 3))
    assert [child.training for child in net.modules()] == [True, False, True]


@laws
@given(st.integers(1, 10**6), st.integers(1, 1000), st.integers(1, 1000), st.integers(0, 1000))
def test_chunks_fit_the_budget_as_long_as_one_row_does_and_rows_are_split_last(budget, per_row, num_rows, fixed):
    rows, samples = chunk_sizes(budget, per_row, num_rows, fixed)
    assert 1 <= rows <= num_rows
    assert samples >= 1
    if fixed + per_row <= budget:
        assert samples * (fixed + rows * per_row) <= budget
    else:
        assert (rows, samples) == (1, 1)
    if rows < num_rows:
        assert fixed + (rows + 1) * per_row > budget


def test_a_plain_callable_gets_the_defaults_of_a_teacher():
    teacher = as_teacher(lambda x, s: LOG_P[:s])
    assert torch.equal(teacher(torch.zeros(5, 2), 2), LOG_P[:2])
    assert teacher.bind([torch.zeros(5, 2)]) is teacher
    assert teacher.network() is None
    assert not teacher.known_inputs_only
    ensemble = Ensemble([nn.Linear(2, 2), nn.Linear(2, 2)])
    assert as_teacher(ensemble) is ensemble


def test_files_of_other_kinds_are_refused(tmp_path):
    write_state(tmp_path / "file", {"kind": "mine", "number": 3})
    assert read_saved(tmp_path / "file", "mine") == {"number": 3}
    with pytest.raises(ValueError, match="kind 'yours'; got 'mine'"):
        read_saved(tmp_path / "file", "yours")
    with pytest.raises(ValueError, match=r"there is no file .*none; give the path"):
        read_saved(tmp_path / "none", "mine")
