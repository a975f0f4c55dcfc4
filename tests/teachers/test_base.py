"""Helpers that teachers share: choice of samples, chunks and files."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from opu.files import write_state
from opu.teachers import Ensemble, as_teacher
from opu.teachers.base import choose, chunk_sizes, read_saved

laws = settings(deadline=None, max_examples=50, derandomize=True)
LOG_P = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log_softmax(-1)


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


# --- chunks, files --------------------------------------------------------------------------------------------


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
