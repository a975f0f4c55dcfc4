"""How the tabular experiments prepare their data."""

import numpy as np
import pytest
import torch

from reproduction.tabular.setups import SETUPS, Setup, held_out_cluster, prepare, several_ood_sets

PAPER = Setup("pima", "paper", "column_norm", ood="scaled_gaussian")
STANDARDISED = Setup("pima", "standardised", "standard")


@pytest.fixture(autouse=True)
def _data(data_folder, monkeypatch):
    monkeypatch.setenv("OPU_DATA", str(data_folder))


def test_a_tenth_is_for_testing_and_nothing_is_lost_or_seen_twice():
    data = prepare(STANDARDISED, 0)
    outside = len(data.ood["cluster"])
    assert len(data.x) + len(data.held_out) + len(data.test) + outside == 768
    assert len(data.test) == round(0.1 * (768 - outside))
    rows = {tuple(row) for part in (data.x, data.held_out, data.test, data.ood["cluster"]) for row in part.tolist()}
    assert len(rows) == 768  # no row of Pima occurs twice


def test_the_paper_preset_trains_on_all_that_is_not_for_testing():
    data = prepare(PAPER, 0)
    assert (len(data.x), len(data.test)) == (691, 77)
    assert {tuple(row) for row in data.held_out.tolist()} <= {tuple(row) for row in data.x.tolist()}


def test_scaling_is_learned_from_the_training_rows():
    torch.testing.assert_close(prepare(PAPER, 0).x.norm(dim=0), torch.ones(8))
    x = prepare(STANDARDISED, 0).x
    torch.testing.assert_close(x.mean(0), torch.zeros(8), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(8), atol=1e-5, rtol=0)


def test_the_papers_ood_inputs_are_normal_before_or_after_scaling():
    after = prepare(PAPER, 0).ood["gaussian"]
    assert after.shape == (77, 8)
    assert float(after.std()) == pytest.approx(1, abs=0.1)
    before = prepare(Setup("pima", "paper", "column_norm", ood="raw_gaussian"), 0).ood["gaussian"]
    assert float(before.abs().max()) < 0.5  # divided by the length of a column of 691 rows


def test_ood_sets_keep_what_they_say():
    random = np.random.default_rng(0)
    train = random.normal(size=(4000, 3)) @ np.array([[2.0, 0, 0], [1, 1, 0], [0, 0, 0.1]])
    test = train[:2000]
    found = several_ood_sets(train, test, random)
    np.testing.assert_allclose(np.cov(found["gaussian"].T), np.cov(train.T), atol=0.35)
    np.testing.assert_array_equal(np.sort(found["permuted"], 0), np.sort(test, 0))
    assert abs(np.corrcoef(found["permuted"].T)[0, 1]) < 0.1 < abs(np.corrcoef(test.T)[0, 1])
    moved = (found["shifted"] - test) / train.std(0)
    assert np.mean(moved > 0) == pytest.approx(1 / 3, abs=0.03)
    assert moved[moved > 0].min() >= 3 - 1e-9
    assert moved.max() <= 10


def test_a_cluster_is_held_out_whole_and_without_labels():
    random = np.random.default_rng(0)
    centres = 20 * random.normal(size=(8, 2))
    sizes = [100, 40, 200, 150, 150, 120, 120, 120]
    rows = np.concatenate([c + random.normal(size=(n, 2)) for c, n in zip(centres, sizes, strict=True)])
    outside = held_out_cluster(rows, 0)
    assert outside.sum() == 100
    assert outside[:100].all()


def test_seeds_give_other_splits_and_the_same_seed_the_same():
    first, again, other = prepare(STANDARDISED, 1), prepare(STANDARDISED, 1), prepare(STANDARDISED, 2)
    assert torch.equal(first.test, again.test)
    assert torch.equal(first.ood["shifted"], again.ood["shifted"])
    assert first.test.shape != other.test.shape or not torch.equal(first.test, other.test)


@pytest.mark.parametrize("table", SETUPS)
def test_both_tables_have_both_data_sets_in_both_presets(table):
    assert sorted(setup.name for setup in SETUPS[table]) == [
        "pima (paper)", "pima (standardised)", "spambase (paper)", "spambase (standardised)",
    ]  # fmt: skip
