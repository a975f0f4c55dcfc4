"""The cascade: the budget is kept, the doubtful rows are the teacher's, and nothing else changes."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import opu
from opu import Cascade, measures


class Known(nn.Module):
    """A student whose doubt is the input itself: a mean that flattens as ``x`` grows."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(-1.0))

    def forward(self, x):
        logits = torch.stack([-self.scale * (5 - x[:, 0]), torch.zeros(len(x))], -1)
        return opu.Dirichlet.from_logits(logits, x[:, 0])


def teacher(x, num_particles):
    """Sure of class 1, always."""
    logits = torch.tensor([0.0, 9.0]) + 0.1 * torch.randn(num_particles, len(x), 2)
    return logits.log_softmax(-1)


def test_the_most_doubtful_rows_are_the_teachers_and_the_others_are_untouched():
    x = torch.linspace(0, 4, 100).unsqueeze(1)
    cascade = Cascade(Known(), teacher, 0.1).calibrate(x)
    prediction = cascade(x)
    assert prediction.by_teacher.nonzero()[0].tolist() == list(range(91, 100))  # nine lie above the tenth largest
    assert prediction.fraction == pytest.approx(0.09)
    np.testing.assert_allclose(prediction.probabilities[:91], Known()(x).mean.detach()[:91])
    assert (prediction.probabilities[91:, 1] > 0.99).all()


@pytest.mark.parametrize("budget", [0.02, 0.05, 0.3])
def test_on_fresh_inputs_the_budget_is_kept_on_average(budget):
    fractions = []
    for _ in range(200):
        cascade = Cascade(Known(), teacher, budget).calibrate(4 * torch.rand(60, 1))
        fractions.append(cascade(4 * torch.rand(200, 1)).fraction)
    found = torch.tensor(fractions)
    expected = math.floor(budget * 61) / 61  # the k-th largest of n is exceeded with probability k / (n + 1)
    assert float(found.mean()) == pytest.approx(expected, abs=4.5 * float(found.std()) / 200**0.5)
    assert expected <= budget


@pytest.mark.parametrize("score", list(measures.MEASURES))
@pytest.mark.parametrize("family", ["dirichlet", "logistic_normal"])
@pytest.mark.parametrize("shift", [0.0, -8.0])
def test_the_budget_is_kept_where_rows_tie_in_any_batch_and_type(score, family, shift):
    for seed in range(4):
        torch.manual_seed(seed)
        student = opu.students.mlp(2, 3, (32, 32), family=family).eval()
        with torch.no_grad():
            for weight in student.parameters():
                weight.mul_(3)
            if family == "logistic_normal":  # scales of exp(-8), whose information is far below the entropy
                list(student.precision_net.parameters())[-1].add_(shift)
        rows, fresh = torch.randint(2, (2, 400, 2)).float()
        if score == "novelty":
            opu.calibrate(student, torch.randint(2, (200, 2)).float())
        members = opu.teachers.Ensemble([nn.Linear(2, 3), nn.Linear(2, 3)])
        cascade = Cascade(student, members, 0.05, score=score, num_particles=2).calibrate(rows)
        one_by_one = np.mean([cascade(row[None]).by_teacher[0] for row in fresh[:60]])
        together = cascade(fresh).fraction
        student.double()
        assert max(one_by_one, together, cascade(fresh).fraction) <= 0.06


def test_a_budget_of_nothing_asks_nothing_and_one_of_all_asks_everything():
    x = torch.linspace(0, 4, 50).unsqueeze(1)
    assert not Cascade(Known(), teacher, 0).calibrate(x)(x).by_teacher.any()
    assert Cascade(Known(), teacher, 1).calibrate(x)(x).by_teacher.all()


@pytest.mark.parametrize("score", ["predictive_entropy", "negative_log_precision", "novelty"])
def test_any_measure_can_be_the_score(score):
    student = opu.students.mlp(3, 4, (8,))
    x = torch.randn(80, 3)
    opu.calibrate(student, x)
    cascade = Cascade(student, lambda x, s: torch.randn(s, len(x), 4).log_softmax(-1), 0.2, score=score).calibrate(x)
    q = student(x)
    uncertainty = student.novelty(q) if score == "novelty" else measures.MEASURES[score](q)
    chosen = cascade(x).by_teacher
    assert int(chosen.sum()) == 15
    assert uncertainty[chosen].min() >= uncertainty[~chosen].max()


def test_a_score_that_is_no_number_goes_to_the_teacher_unless_the_input_is_none():
    class Broken(Known):
        def forward(self, x):
            q = super().forward(x)
            return opu.Dirichlet(torch.where(x == 2, torch.nan, q.mean), q.log_precision)

    cascade = Cascade(Broken(), teacher, 0.1).calibrate(torch.linspace(0, 1, 100).unsqueeze(1))
    prediction = cascade(torch.tensor([[0.5], [2.0], [torch.nan]]))
    assert prediction.by_teacher.tolist() == [False, True, False]
    assert prediction.finite.tolist() == [True, True, False]


def test_the_report_adds_up():
    x = torch.linspace(0, 4, 200).unsqueeze(1)
    labels = torch.ones(200, dtype=torch.int64)
    found = Cascade(Known(), teacher, 0.25, num_particles=20).calibrate(x).report(x, labels)
    assert found["budget"] == 0.25
    assert found["fraction"] == pytest.approx(49 / 200)
    assert found["teacher"]["accuracy"] == 100
    assert found["student"]["accuracy"] == 0
    assert found["cascade"]["accuracy"] == pytest.approx(100 * 49 / 200)
    assert found["teacher"]["nll"] < found["cascade"]["nll"] < found["student"]["nll"]
    assert all(found[name]["seconds_per_input"] > 0 for name in ("student", "cascade", "teacher"))


def test_mistakes_are_told():
    with pytest.raises(ValueError, match=r"budget is a fraction of the inputs, from 0 to 1; got 5"):
        Cascade(Known(), teacher, 5)
    with pytest.raises(ValueError, match="num_particles must be at least 1; got 0"):
        Cascade(Known(), teacher, num_particles=0)
    with pytest.raises(ValueError, match=r"the score must be predictive_entropy, .* or novelty; got 'doubt'"):
        Cascade(Known(), teacher, score="doubt")
    with pytest.raises(ValueError, match="novelty is not calibrated"):
        Cascade(opu.students.mlp(2, 2, (4,)), teacher, score="novelty")
    with pytest.raises(ValueError, match="no threshold yet; call calibrate"):
        Cascade(Known(), teacher)(torch.ones(3, 1))
    with pytest.raises(
        ValueError, match=r"budget of 0.05 needs at least 19 in-distribution inputs to calibrate on; got 18"
    ):
        Cascade(Known(), teacher).calibrate(torch.ones(18, 1))
    with pytest.raises(ValueError, match="above every label"):
        Cascade(Known(), teacher).calibrate(torch.rand(60, 1)).report(torch.rand(3, 1), torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match="at least 10 in-distribution inputs, better some hundreds; got 9"):
        Cascade(Known(), teacher).calibrate(torch.ones(9, 1))
