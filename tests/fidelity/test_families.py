"""Families on the same particles: each holds what was drawn from it, and the sentence names it."""

import json

import pytest
import torch

import opu
from opu.fidelity import compare_families
from opu.fidelity.families import DIRICHLETS, LOGISTIC_NORMALS, PARTICLES, reachable_coverage


def logistic_normals(count, num_classes=5, spread=1.5, sure=4.0):
    """Like samples of weights: a few sure inputs, many unsure ones, and logits that vary together."""
    location = torch.randn(count, num_classes).double()
    location[:, 0] += torch.linspace(0, 2 * sure, count).double()
    scale = torch.full((count, num_classes), spread).double().log()
    return opu.LogisticNormal(location, scale, 0.5 * torch.randn(count, num_classes, 2).double())


def dirichlets(count, num_classes=5):
    return opu.Dirichlet.from_logits(1.5 * torch.randn(count, num_classes).double(), 2 + torch.randn(count).double())


def test_gaussian_log_ratios_are_held_by_the_logistic_normal_in_every_decile_and_by_no_dirichlet():
    found = compare_families(logistic_normals(150, 10, sure=6.0).log_rsample(500), rank=2)
    for name in LOGISTIC_NORMALS:
        assert all(share == pytest.approx(0.9, abs=0.035) for share in found.families[name].coverage), name
    likely, nearest = (found.families[name] for name in DIRICHLETS)
    assert max(likely.coverage) < 0.8
    assert min(likely.coverage) < 0.5
    assert max(nearest.above[:4]) < 0.01  # it holds the right share, and has but one tail
    assert found.error(DIRICHLETS[1]) > 2 * found.error(found.best_logistic_normal)
    assert found.advice == "logistic_normal"
    assert found.sentence.endswith(' under the best logistic-normal: use family="logistic_normal".')
    assert found.num_members is None
    assert found.num_fitted == 250


def test_dirichlet_particles_are_held_by_the_dirichlet_which_is_advised():
    found = compare_families(dirichlets(150).log_rsample(500))
    for name in DIRICHLETS:
        assert all(share == pytest.approx(0.9, abs=0.03) for share in found.families[name].coverage), name
    assert found.advice == "dirichlet"
    assert found.sentence.endswith(': family="dirichlet" will do.')
    assert found.families["logistic_normal_full"].squared_mmd > 10 * abs(found.families[DIRICHLETS[0]].squared_mmd)


def test_other_numbers_are_those_of_the_half_that_no_fit_has_seen():
    particles = logistic_normals(30, 3).log_rsample(60)
    found, fitted, judged = compare_families(particles, rank=1), particles[::2], particles[1::2]
    q = opu.fit_logistic_normal(fitted, 1)
    row = found.families["logistic_normal"]
    variation = (q.mean - judged.exp().mean(0)).abs().sum(-1) / 2
    assert row.total_variation == pytest.approx(float(variation.mean()))
    entropy = opu.measures.predictive_entropy(particles)
    error = (q.mutual_information() - opu.measures.mutual_information(judged)).abs()
    assert row.mutual_information_error == pytest.approx(float(error[entropy.argsort()[-3:]].mean()))
    assert row.squared_mmd == pytest.approx(float(opu.objectives.ExactMMD()(None, judged, q).mean()), abs=2e-3)
    themselves = found.families[PARTICLES]
    assert abs(themselves.squared_mmd) < 3e-3
    assert themselves.total_variation == pytest.approx(
        float((fitted.exp().mean(0) - judged.exp().mean(0)).abs().sum(-1).mean() / 2)
    )
    for each in found.families.values():
        for shares in zip(each.coverage, each.below, each.above, strict=True):
            assert sum(shares) == pytest.approx(1)


def test_order_of_classes_means_nothing():
    particles = logistic_normals(40).log_rsample(100)
    found, turned = compare_families(particles), compare_families(particles[..., [3, 1, 4, 0, 2]])
    for name in found.families:
        assert found.families[name].coverage == pytest.approx(turned.families[name].coverage, abs=0.03)


def test_members_are_left_out_in_turn():
    members = logistic_normals(24, 3).log_rsample(6)
    found = compare_families(members, rank=1)
    assert (found.num_members, found.num_fitted, set(found.families)) == (6, 5, {*DIRICHLETS, *LOGISTIC_NORMALS})
    for name, fit in (
        ("dirichlet_maximum_likelihood", opu.maximum_likelihood),
        ("logistic_normal_full", opu.fit_logistic_normal),
    ):
        held = torch.zeros(24)
        for left_out in range(6):
            q = fit(members[[each for each in range(6) if each != left_out]])
            low, high = q.interval(0.9)
            one, predicted = members[left_out].exp(), q.mean.argmax(-1, keepdim=True)
            held += ((one >= low) & (one <= high)).gather(-1, predicted).squeeze(-1) / 6
        assert sum(found.families[name].coverage) / 10 == pytest.approx(float(held.mean()), abs=0.02)
    assert "of the members that were left out in turn (the right one, fitted to 5, would hold 79 %)" in found.sentence


def test_repeated_members_are_members_once():
    members = logistic_normals(20, 3).log_rsample(5)
    assert compare_families(members[torch.arange(200) % 5]) == compare_families(members)


@pytest.mark.parametrize("number", [3, 5, 12])
def test_right_intervals_hold_of_a_member_left_out_what_is_reachable(number):
    # Log-odds of two classes are Gaussian, so that the law is exact.
    law = opu.LogisticNormal(
        torch.randn(300, 2).double(), torch.zeros(300, 2).double(), torch.zeros(300, 2, 0).double()
    )
    found = compare_families(law.log_rsample(number))
    coverage = found.families["logistic_normal_full"].coverage
    assert sum(coverage) / 10 == pytest.approx(found.reachable, abs=0.05)


def test_reachable_coverage_is_known_for_few_and_is_the_level_for_many():
    assert reachable_coverage(2) == pytest.approx(0.592, abs=0.001)  # Cauchy: 2 atan(1.645 sqrt(2/3)) / pi
    assert reachable_coverage(4) == pytest.approx(0.762, abs=0.001)
    assert reachable_coverage(10**6, 0.8) == pytest.approx(0.8, abs=1e-5)


def test_many_inputs_and_particles_are_spread_evenly():
    particles = logistic_normals(90, 3).log_rsample(100)
    found = compare_families(particles, max_inputs=30, max_particles=40)
    assert (found.num_inputs, found.num_fitted) == (30, 20)
    assert len(found.families["logistic_normal"].coverage) == 10
    few = compare_families(particles[:, :4])
    assert (few.num_inputs, len(few.families["logistic_normal"].coverage)) == (4, 4)


def test_the_summary_is_json_with_shares_in_percent():
    found = compare_families(logistic_normals(20, 3).log_rsample(40))
    read = json.loads(json.dumps(found.summary()))
    assert read["families"]["logistic_normal"]["coverage"] == pytest.approx(
        [100 * share for share in found.families["logistic_normal"].coverage]
    )
    assert (read["advice"], read["sentence"], read["rank"]) == (found.advice, found.sentence, 1)


def test_it_neither_reads_nor_changes_the_random_state():
    particles, before = logistic_normals(20, 3).log_rsample(40), torch.get_rng_state()
    first = compare_families(particles)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(7)
    assert compare_families(particles) == first


def test_mistakes_are_told():
    particles = logistic_normals(5, 3).log_rsample(40)
    with pytest.raises(ValueError, match="at least three different particles per input; got 2"):
        compare_families(particles[torch.arange(40) % 2])
    with pytest.raises(ValueError, match="log-probabilities"):
        compare_families(particles.exp())
    with pytest.raises(ValueError, match="max_inputs must be at least 1; got 0"):
        compare_families(particles, max_inputs=0)
    with pytest.raises(ValueError, match="max_particles must be at least 6; got 5"):
        compare_families(particles, max_particles=5)
