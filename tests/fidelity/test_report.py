"""The report: every number by hand where that is possible, and the sentence blames what is to blame."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

import opu
from opu import fidelity, measures
from opu.fidelity.report import calibration


class Table(nn.Module):
    """A student that looks its predictions up in a table."""

    def __init__(self, q):
        super().__init__()
        self.q, self.unused = q, nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.q[x[:, 0].long()]


def dirichlets(count, num_classes=3, seed=0, sharper=0.0):
    source = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, num_classes, generator=source, dtype=torch.float64)
    return opu.Dirichlet.from_logits(logits, 2 + sharper + torch.randn(count, generator=source, dtype=torch.float64))


def drawn_from(q):
    """A teacher that draws from known Dirichlets."""
    return lambda x, num_particles: q[x[:, 0].long()].log_rsample(num_particles)


def places(count):
    return torch.arange(count, dtype=torch.float64).unsqueeze(1)


def test_a_perfect_student_is_off_by_noise_and_its_intervals_hold():
    q = dirichlets(60)
    found = fidelity.report(Table(q), drawn_from(q), places(60), num_particles=100)
    assert found.summary["dominant"] == "noise"
    assert found.sentence.endswith("as close as this number of particles can show; draw more of them.")
    assert found.summary["coverage"]["of_teacher"] == pytest.approx(90, abs=1.0)
    assert found.summary["total_variation"] < 0.04
    assert found.summary["spearman_of_mutual_information"] > 0.95


def logistic_normals(count, num_classes=4, seed=0):
    source = torch.Generator().manual_seed(seed)
    location = 2 * torch.randn(count, num_classes, generator=source, dtype=torch.float64)
    shared = 0.7 * torch.randn(count, num_classes, 1, generator=source, dtype=torch.float64)
    return opu.LogisticNormal(location, torch.zeros_like(location), shared)


def test_a_perfect_logistic_normal_is_off_by_noise_and_holds_its_particles_in_every_decile():
    q = logistic_normals(100)
    found = fidelity.report(Table(q), drawn_from(q), places(100), num_particles=200)
    assert found.summary["dominant"] == "noise"
    assert found.summary["family"] == "logistic_normal"
    for part in ("predicted", "runner_up"):
        assert found.summary["coverage"]["by_decile"][part] == pytest.approx([90] * 10, abs=4)
    assert found.summary["log_odds"]["shift"] < 0.15
    assert found.summary["log_odds"]["spread"] == pytest.approx(1, abs=0.05)
    assert found.families.rank == 1
    assert found.families.advice == "logistic_normal"


def test_a_dirichlet_of_such_particles_holds_most_classes_and_not_the_predicted_one():
    law = logistic_normals(100, 10)
    particles = law.log_rsample(400)
    likely = opu.maximum_likelihood(particles)
    found = fidelity.report(Table(likely), lambda x, _: particles[:, x[:, 0].long()], places(100), num_particles=400)
    coverage = found.summary["coverage"]
    assert coverage["of_teacher"] > coverage["predicted"] + 10
    assert found.summary["families"]["advice"] == "logistic_normal"
    torch.testing.assert_close(found.coverage["all"], found.covered)
    counts = coverage["by_decile"]["num_inputs"]
    assert sum(counts) == 100
    for part in ("predicted", "runner_up"):
        shares = coverage["by_decile"][part]
        mean = sum(count * share for count, share in zip(counts, shares, strict=True)) / 100
        assert coverage[part] == pytest.approx(mean)


def test_what_no_logistic_normal_can_say_is_its_familys_fault():
    inside = torch.tensor([[0.45, 0.45, 0.1], [0.1, 0.45, 0.45]], dtype=torch.float64).log()
    cloud = inside[torch.arange(1600) % 2].unsqueeze(1) + 0.001 * torch.randn(1600, 6, 3).double()
    cloud = cloud.log_softmax(-1)
    student = Table(opu.fit_logistic_normal(cloud, 1))
    found = fidelity.report(student, lambda x, _: cloud, places(6), num_particles=1600)
    assert found.summary["dominant"] == "family"
    assert "no logistic-normal fits these particles" in found.sentence


@pytest.mark.parametrize("family", ["dirichlet", "logistic_normal"])
def test_an_ensembles_members_are_counted_once_and_left_out_in_turn(family):
    law = logistic_normals(40, 3)
    members = law.log_rsample(5)
    q = law if family == "logistic_normal" else dirichlets(40)
    reports = [
        fidelity.report(
            Table(q), lambda x, _, cloud=cloud: cloud[:, x[:, 0].long()], places(40), num_particles=len(cloud)
        )
        for cloud in (members, members[torch.arange(52) % 5])  # two members one time more than the others
    ]
    for found in reports:
        assert found.summary["num_members"] == 5
        assert found.families.num_members == 5
        assert found.families.num_fitted == 4
    once, often = (found.summary["coverage"]["by_decile"] for found in reports)
    assert once == often
    inside = fidelity.coverage.class_coverage(q, members)["predicted"]
    assert reports[0].summary["coverage"]["predicted"] == pytest.approx(100 * float(inside.mean()))


def test_particles_that_all_agree_are_compared_without_families():
    q = dirichlets(6)
    same = q.log_mean.expand(30, 6, 3)
    found = fidelity.report(Table(q), lambda x, _: same[:, x[:, 0].long()], places(6), num_particles=30)
    assert found.families is None
    assert found.summary["families"] is None
    assert found.summary["num_members"] == 1


def test_each_number_is_what_it_says():
    q, law = dirichlets(20, seed=1), dirichlets(20, seed=2)
    particles = law.log_rsample(50)
    found = fidelity.report(Table(q), lambda x, _: particles[:, x[:, 0].long()], places(20), num_particles=50)
    variation = (q.mean - particles.exp().mean(0)).abs().sum(-1) / 2
    torch.testing.assert_close(found.total_variation, variation)
    ranks = spearmanr(measures.mutual_information(particles), q.mutual_information()).statistic
    assert found.summary["spearman_of_mutual_information"] == pytest.approx(ranks)
    low, high = q.marginals().interval(0.9)
    inside = ((particles.exp() >= low) & (particles.exp() <= high)).double().mean((0, 2))
    torch.testing.assert_close(found.covered, inside)
    assert found.summary["same_class"] == pytest.approx(
        100 * float((q.mean.argmax(-1) == particles.exp().mean(0).argmax(-1)).double().mean())
    )
    torch.testing.assert_close(found.gaps.total, fidelity.gaps(q, particles).total)
    worst = found.worst(3)
    assert len(worst) == 3
    assert float(found.gaps.amortisation[worst[0]]) == float(found.gaps.amortisation.max())


def test_a_dull_student_is_told_to_grow_and_one_of_narrow_inputs_to_see_more():
    law = dirichlets(80, seed=3)
    dull = opu.Dirichlet.from_logits(torch.zeros(80, 3).double(), torch.full((80,), 2.0).double())
    here, seen = places(80)[:40], places(80)[40:]
    everywhere = fidelity.report(Table(dull), drawn_from(law), here, seen=seen, num_particles=100)
    assert everywhere.summary["dominant"] == "network"
    assert "on training inputs too: train longer, or use a larger network" in everywhere.sentence
    knows_the_seen = opu.Dirichlet.from_logits(
        torch.cat([dull.log_mean[:40], law.log_mean[40:]]), torch.cat([dull.log_precision[:40], law.log_precision[40:]])
    )
    narrow = fidelity.report(Table(knows_the_seen), drawn_from(law), here, seen=seen, num_particles=100)
    assert narrow.summary["dominant"] == "inputs"
    assert "on new inputs only: distil on more inputs" in narrow.sentence
    unknown = fidelity.report(Table(dull), drawn_from(law), here, num_particles=100)
    assert unknown.summary["dominant"] == "amortisation"


def test_what_no_dirichlet_can_say_is_the_familys_fault():
    inside = torch.tensor([[0.45, 0.45, 0.1], [0.1, 0.45, 0.45]], dtype=torch.float64).log()
    cloud = inside[torch.arange(1600) % 2].unsqueeze(1).expand(1600, 6, 3).contiguous()
    best = opu.minimum_mmd(cloud)
    found = fidelity.report(Table(best), lambda x, _: cloud, places(6), num_particles=1600)
    assert found.summary["dominant"] == "family"
    assert "no Dirichlet fits these particles" in found.sentence


def test_a_reliability_diagram_holds_its_bins():
    probabilities = torch.tensor([[0.95, 0.05], [0.92, 0.08], [0.55, 0.45], [0.35, 0.65]])
    found = calibration(probabilities, torch.tensor([0, 1, 0, 1]))
    confidence, accuracy, count = zip(*found["bins"], strict=True)
    np.testing.assert_allclose(confidence, [0.55, 0.65, 0.935], rtol=1e-6)
    assert accuracy == (1.0, 1.0, 0.5)
    assert count == (1, 1, 2)
    assert found["accuracy"] == 75


def test_labels_give_calibration_of_both():
    q = dirichlets(30)
    labels = q.mean.argmax(-1)
    found = fidelity.report(Table(q), drawn_from(q), places(30), labels=labels, num_particles=200)
    assert found.summary["calibration"]["student"]["accuracy"] == 100
    assert found.summary["calibration"]["teacher"]["accuracy"] > 85


def test_corners_are_counted_in_float64():
    # The mean sits so near to a corner that float32 cannot tell an interval's end from 1.
    logits = torch.tensor([[40.0, 0.0, 0.0]]).double()
    q = opu.Dirichlet.from_logits(logits, torch.tensor([2.0]).double())
    law = opu.Dirichlet.from_logits(logits - torch.tensor([30.0, 0, 0]), torch.tensor([6.0]).double())
    single = opu.Dirichlet.from_logits(q.log_mean.float(), q.log_precision.float())
    particles = law.log_rsample(200)
    wide, narrow = (
        fidelity.report(Table(q), lambda x, _, cloud=cloud: cloud, places(1), num_particles=200).covered
        for q, cloud in ((q, particles), (single, particles.float()))
    )
    torch.testing.assert_close(wide, narrow, atol=0.02, rtol=0)


def test_mistakes_are_told():
    q = dirichlets(5)
    with pytest.raises(ValueError, match="above every label; got 3, a label 3"):
        fidelity.report(Table(q), drawn_from(q), places(5), labels=torch.tensor([1, 2, 3, 1, 2]), num_particles=9)
    with pytest.raises(ValueError, match="at least four particles per input; got 2"):
        fidelity.report(Table(q), drawn_from(q), places(5), num_particles=2)
    with pytest.raises(ValueError, match=r"one class for each of the 5 inputs; got shape \(4,\)"):
        fidelity.report(Table(q), drawn_from(q), places(5), labels=torch.zeros(4), num_particles=9)
    with pytest.raises(ValueError, match="inputs must have at least one row"):
        fidelity.report(Table(q), drawn_from(q), places(0), num_particles=9)
    with pytest.raises(ValueError, match="classes"):
        fidelity.report(Table(q), drawn_from(dirichlets(5, 4)), places(5), num_particles=9)
