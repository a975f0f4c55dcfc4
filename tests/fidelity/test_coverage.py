"""Coverage by hand, deciles that hold every input once, and ensembles told from samples of a posterior."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import opu
from opu.fidelity.coverage import by_decile, class_coverage, deciles, distinct_members


def predictions(family, count=40, num_classes=4):
    logits = 2 * torch.randn(count, num_classes, dtype=torch.float64)
    if family == "dirichlet":
        return opu.Dirichlet.from_logits(logits, 2 + torch.randn(count, dtype=torch.float64))
    shared = 0.5 * torch.randn(count, num_classes, 1, dtype=torch.float64)
    return opu.LogisticNormal(logits, 0.3 * torch.randn(count, num_classes, dtype=torch.float64), shared)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(count=st.integers(1, 137), seed=st.integers(0, 1000))
def test_deciles_hold_every_input_once_and_grow(count, seed):
    by = torch.randn(count, generator=torch.Generator().manual_seed(seed)).round(decimals=1)  # with ties
    groups = deciles(by)
    assert len(groups) == min(count, 10)
    assert sorted(torch.cat(groups).tolist()) == list(range(count))
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
    means = by_decile(by, by)
    assert means == sorted(means)
    weighted = sum(mean * len(rows) for mean, rows in zip(by_decile(by, by.square()), groups, strict=True))
    assert weighted == pytest.approx(float(by.double().square().sum()), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("family", ["dirichlet", "logistic_normal"])
def test_each_share_is_counted_by_hand(family):
    q, particles = predictions(family), predictions(family).log_rsample(50)
    found, (low, high) = class_coverage(q, particles, 0.8), q.interval(0.8)
    for row in range(len(q)):
        first, second = q.mean[row].argsort(descending=True)[:2].tolist()
        cloud = particles[:, row].exp()
        inside = (cloud >= low[row]) & (cloud <= high[row])
        assert float(found["predicted"][row]) == pytest.approx(float(inside[:, first].double().mean()))
        assert float(found["runner_up"][row]) == pytest.approx(float(inside[:, second].double().mean()))
        assert float(found["all"][row]) == pytest.approx(float(inside.double().mean()))
        assert float(found["below"][row]) == pytest.approx(float((cloud[:, first] < low[row, first]).double().mean()))
    torch.testing.assert_close(found["below"] + found["above"] + found["predicted"], torch.ones(len(q)).double())


@pytest.mark.parametrize("family", ["dirichlet", "logistic_normal"])
def test_what_a_student_predicts_is_held_at_its_level_with_equal_tails(family):
    q = predictions(family, 200)
    found = class_coverage(q, q.log_rsample(500))
    assert float(found["predicted"].mean()) == pytest.approx(0.9, abs=0.015)
    assert float(found["below"].mean()) == pytest.approx(0.05, abs=0.01)
    assert float(found["above"].mean()) == pytest.approx(0.05, abs=0.01)


def test_particles_that_float32_rounds_to_one_are_counted_as_they_are():
    location = torch.tensor([[25.0, 0.0, 0.0]], dtype=torch.float64)  # a probability of 1 - 3e-11
    q = opu.LogisticNormal(location, torch.zeros(1, 3).double(), torch.zeros(1, 3, 0).double())
    particles = q.log_rsample(2000)
    assert bool((particles.float()[..., 0].exp() == 1).all())
    exact, rounded = (class_coverage(q, each)["predicted"] for each in (particles, particles.float()))
    torch.testing.assert_close(exact, rounded, atol=0.01, rtol=0)
    assert float(rounded) == pytest.approx(0.9, abs=0.03)


def test_members_are_found_however_often_they_are_repeated():
    members = torch.randn(5, 30, 3).log_softmax(-1)
    repeated = members[torch.arange(103) % 5]
    torch.testing.assert_close(distinct_members(repeated), members)
    torch.testing.assert_close(distinct_members(members), members)
    assert distinct_members(torch.randn(20, 30, 3).log_softmax(-1)).shape == (20, 30, 3)
    assert distinct_members(torch.randn(21, 30, 3).log_softmax(-1)) is None
    # Two trees that agree at one input are two members nevertheless.
    alike = members.clone()
    alike[1, 0] = alike[0, 0]
    assert len(distinct_members(alike)) == 5
