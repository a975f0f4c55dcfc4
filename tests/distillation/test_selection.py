"""Which epoch is kept: the last, unless an earlier one is clearly better on most held-out inputs."""

import math
import warnings

import pytest
import torch
from scipy.stats import wilcoxon
from torch import nn

import opu
from opu.distillation.selection import Selection, compare
from opu.objectives import CriticEMD


def weights_of(epoch):
    return {"w": torch.tensor([float(epoch)])}


def selected(*epochs):
    """The selection after epochs with these held-out losses."""
    selection = Selection()
    for number, values in enumerate(epochs, 1):
        selection.see(number, None if values is None else torch.as_tensor(values), weights_of(number))
    return selection


def test_signed_ranks_are_wilcoxons():
    first, second = torch.randn(60).double(), torch.randn(60).double() + 0.3
    expected = wilcoxon(second - first, alternative="greater", method="asymptotic", correction=False).zstatistic
    assert compare(first, second).z == pytest.approx(expected, rel=1e-9)
    assert compare(second, first).z == pytest.approx(-expected, rel=1e-9)


def test_signed_ranks_of_equal_epochs_have_variance_one():
    z = [compare(torch.zeros(30), torch.randn(30).exp() * torch.randn(30).sign()).z for _ in range(2000)]
    assert abs(torch.tensor(z).mean()) < 0.1
    assert torch.tensor(z).std() == pytest.approx(1.0, abs=0.06)


def test_ties_and_infinities_count_as_neither_better():
    values = torch.tensor([1.0, math.inf, math.nan, 2.0])
    assert compare(values, values) == (0, 0)
    assert compare(values, torch.tensor([1.0, math.nan, math.inf, 2.0])) == (0, 0)


def test_the_balance_is_the_share_of_ranks_that_lost_less_that_which_gained():
    assert compare(torch.zeros(4), torch.tensor([1.0, 2.0, 3.0, -4.0])).balance == pytest.approx((1 + 2 + 3 - 4) / 10)
    assert compare(torch.zeros(4), torch.ones(4)).balance == 1


def test_over_thousands_of_inputs_a_difference_beyond_noise_is_not_enough():
    """Each input loses or gains about 1; a shift by a tenth is six standard errors, and means next to nothing."""
    early = torch.zeros(4000)
    last = torch.randn(4000) + 0.1
    assert compare(early, last).z > 4
    assert selected(early, last).kept_epoch == 2


def test_one_input_cannot_choose_the_epoch():
    """The digits of the report: one augmented input of 134 loses 450 at the end, and all others gain a little."""
    early, last = torch.randn(134), torch.randn(134)
    last = early - 0.1 - 0.3 * last.abs()
    last[7] = 450.0
    assert early.mean() < last.mean()
    assert selected(early, last).kept_epoch == 2


def test_the_lowest_of_many_noisy_epochs_is_not_kept():
    """On a plateau the lowest mean is anywhere; the last epoch is kept in nearly all runs."""
    kept = []
    for _ in range(40):
        level = torch.randn(100)
        kept.append(selected(*(level + 0.1 * torch.randn(100) for _ in range(60))))
    assert sum(each.kept_epoch == 60 for each in kept) >= 30


@pytest.mark.parametrize("outlier", [0.0, 1e6], ids=["plain", "with an outlier in the good epoch"])
def test_a_run_that_diverges_keeps_the_best_epoch_before(outlier):
    good = torch.randn(50)
    good[3] += outlier
    selection = selected(good + 5, good, good + 0.5, torch.randn(50) + 8)
    assert selection.kept_epoch == 2
    assert selection.kept_weights["w"] == 2


def test_a_slow_decline_is_seen_though_no_step_of_it_is():
    """Each epoch is compared with the best one and not with the one before."""
    level = torch.randn(100)
    epochs = [level + 0.002 * t + 0.05 * torch.randn(100) for t in range(60)]
    assert not compare(epochs[-2], epochs[-1]).clear
    assert selected(*epochs).kept_epoch < 20


def test_equal_epochs_keep_the_last():
    same = torch.randn(20)
    selection = selected(same, same, same)
    assert selection.kept_epoch == 3
    assert selection.kept_weights is None
    assert selection.advice() is None


@pytest.mark.parametrize(("count", "kept"), [(1, 2), (5, 2), (8, 1), (100, 1)])
def test_few_inputs_are_not_enough_to_leave_the_last_epoch(count, kept):
    values = torch.arange(count).double()
    assert selected(values, values + 1 + 0.1 * values).kept_epoch == kept


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_an_epoch_with_nothing_finite_is_never_kept(count, broken):
    good = torch.randn(count)
    assert selected(good, torch.full((count,), broken)).kept_epoch == 1
    assert selected(torch.full((count,), broken), good).kept_epoch == 2


def test_one_broken_input_does_not_cost_the_last_epoch():
    early, last = torch.randn(50), torch.randn(50) - 3
    last[0] = math.nan
    assert selected(early, last).kept_epoch == 2


def test_epochs_that_cannot_be_compared_keep_the_last_and_hold_no_weights():
    selection = selected(None, None, None)
    assert selection.kept_epoch == 3
    assert selection.best_weights == {}
    assert selection.advice() is None


def test_only_an_early_epoch_gives_a_warning():
    good, bad = torch.randn(30), torch.randn(30) + 9
    assert "epoch 1 of 4 was kept, since the last is clearly worse" in selected(good, bad, bad, bad).advice()
    assert selected(good + 3, good + 2, good, bad).advice() is None
    assert selected(bad, bad, bad, good).advice() is None


def test_weights_are_copied():
    w = torch.zeros(3)
    selection = Selection()
    selection.see(1, torch.zeros(20), {"w": w})
    w.add_(1)
    selection.see(2, torch.ones(20), {"w": w})
    assert (selection.kept_weights["w"] == 0).all()


# Within a run


class Ruin(torch.optim.SGD):
    """Gradient steps, and nonsense after the first of them."""

    after = 10**9

    def step(self, closure=None):
        self.after -= 1
        if self.after >= 0:
            return super().step(closure)
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.add_(0.5)


def distil(after=10**9, **options):
    teacher = opu.teachers.MCDropout(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)))

    def ruin(parameters):
        optimizer = Ruin(parameters, 1e-2)
        optimizer.after = after
        return optimizer

    recipe = {"epochs": 8, "batch_size": 16, "num_particles": 8, "optimizer": ruin} | options.pop("recipe", {})
    student = opu.students.mlp(4, 3, (16,))
    return opu.distill(teacher, student, torch.randn(120, 4), recipe=opu.Recipe(**recipe), progress=False, **options)


def test_a_run_that_got_worse_says_so_to_the_one_who_called():
    with pytest.warns(UserWarning, match=r"epoch \d of 8 was kept, since the last is clearly worse") as seen:
        done = distil(after=14)
    assert not seen[0].filename.endswith("loop.py")
    assert done.best_epoch <= 3
    assert done.warnings == [str(seen[0].message)]


def test_an_ordinary_run_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = distil(recipe={"optimizer": "adam"})
    assert done.warnings == []


@pytest.mark.filterwarnings("ignore:the log-precision of")
@pytest.mark.parametrize(
    "options", [{"held_out": 0}, {"recipe": {"objective": CriticEMD(critic_steps=1, hidden=8)}}], ids=["none", "critic"]
)
def test_without_a_judge_the_last_epoch_is_kept(options):
    done = distil(after=14, **options)
    assert done.best_epoch == 8
    assert len(done.held_out) == 8
