"""Novelty: honest p-values, ranks that never tie, and the order that entropy and precision impose."""

import math

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from opu.distributions.dirichlet import Dirichlet
from opu.measures import predictive_entropy
from opu.novelty import FEWEST_INPUTS, FOR_TABLES, MOST_QUANTILES, Blend, Novelty, negative_log_p

laws = settings(deadline=None, max_examples=60, derandomize=True, phases=(Phase.explicit, Phase.generate))
LEVELS = (0.01, 0.05, 0.1, 0.5)


def both_vary(count: int) -> Dirichlet:
    """Ordinary answers whose entropy and precision go together, as those of a student do."""
    margin = torch.randn(count, dtype=torch.float64)
    logits = torch.stack([2 + margin, torch.zeros_like(margin), torch.zeros_like(margin)], -1)
    return Dirichlet.from_logits(logits, 3 + 0.7 * margin + torch.randn(count, dtype=torch.float64))


def precision_is_constant(count: int) -> Dirichlet:
    """What a saturated link gives: the same C for every input."""
    return Dirichlet.from_logits(both_vary(count).log_mean, torch.full((count,), 7.0, dtype=torch.float64))


def entropy_is_constant(count: int) -> Dirichlet:
    q = both_vary(count)
    return Dirichlet.from_logits(torch.tensor([[3.0, 0.0, 0.0]]).double().expand(count, -1), q.log_precision)


def flagged(make, rates: tuple[float, ...], *, calibrations: int, size: int, fresh: int) -> tuple[Tensor, np.ndarray]:
    """How often fresh ordinary inputs have p-values up to each rate, and four standard errors of that.

    Both the calibration inputs and the fresh ones are drawn anew each time.
    """
    hits = [
        torch.stack([(novelty.p_value(make(fresh)) <= rate).double().mean() for rate in rates])
        for novelty in (Novelty.fit(make(size)) for _ in range(calibrations))
    ]
    share = np.array(rates)
    return torch.stack(hits).mean(0), 4 * np.sqrt(share * (1 - share) * (1 / size + 1 / fresh) / calibrations)


# p-values


@pytest.mark.parametrize("size", [500, 1500, 2 * MOST_QUANTILES])
def test_p_values_of_fresh_ordinary_inputs_are_uniform(size):
    got, band = flagged(both_vary, LEVELS, calibrations=20, size=size, fresh=1500)
    # The tail beyond the range of calibration is a continuation, so one part in the sample is forgiven.
    np.testing.assert_array_less(abs(got.numpy() - LEVELS), band + 1 / size)


def test_p_values_are_roughly_right_from_ten_inputs():
    got, band = flagged(both_vary, (0.2, 0.5), calibrations=300, size=FEWEST_INPUTS, fresh=50)
    np.testing.assert_array_less(abs(got.numpy() - (0.2, 0.5)), band + 0.05)


def test_p_values_are_uniform_where_all_precisions_tie():
    got, band = flagged(precision_is_constant, LEVELS, calibrations=20, size=1000, fresh=1000)
    np.testing.assert_array_less(abs(got.numpy() - LEVELS), band + 1 / 1000)


def test_p_values_are_uniform_where_all_entropies_tie():
    # C alone speaks, and only of its rarest ninth; above that share p-values pile up.
    rates = (0.01, 0.05, 0.1)
    got, band = flagged(entropy_is_constant, rates, calibrations=20, size=1000, fresh=1000)
    np.testing.assert_array_less(abs(got.numpy() - rates), band + 1 / 1000)


def test_p_values_never_flag_too_often_where_everything_ties():
    novelty = Novelty.fit(both_vary(1)[[0] * 50])
    same = both_vary(1)[[0] * 3]
    assert (novelty.p_value(same) <= 1).all()
    stranger = Dirichlet.from_logits(torch.zeros(1, 3, dtype=torch.float64), torch.tensor([-5.0]).double())
    assert (novelty(stranger) > novelty.scores.max()).all()


@pytest.mark.parametrize("make", [both_vary, precision_is_constant, entropy_is_constant])
def test_calibration_does_not_depend_on_the_order_of_the_inputs(make):
    q = make(200)
    one, other = Novelty.fit(q), Novelty.fit(q[torch.randperm(200)])
    for name, buffer in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], buffer, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [both_vary, precision_is_constant])
@pytest.mark.parametrize("rate", LEVELS)
def test_a_threshold_flags_about_its_rate(rate, make):
    size, fresh, repeats = 1000, 1000, 20
    rates = []
    for _ in range(repeats):
        novelty = Novelty.fit(make(size))
        rates.append((novelty(make(fresh)) > novelty.threshold(rate)).double().mean().item())
    band = 4 * math.sqrt(rate * (1 - rate) * (1 / size + 1 / fresh) / repeats) + 1 / size
    assert abs(np.mean(rates) - rate) < band


def test_a_threshold_falls_as_its_rate_rises():
    novelty = Novelty.fit(both_vary(300))
    thresholds = [novelty.threshold(rate) for rate in (0.001, 0.01, 0.1, 0.5, 0.9)]
    assert thresholds == sorted(thresholds, reverse=True)


@laws
@given(st.integers(0, 2**31), st.integers(10, 200))
def test_p_values_fall_as_novelty_rises(seed, size):
    torch.manual_seed(seed)
    novelty, q = Novelty.fit(both_vary(size)), both_vary(50)
    score, p = novelty(q), novelty.p_value(q)
    assert ((p > 0) & (p < 1)).all()
    order = score.argsort()
    assert (p[order].diff() <= 0).all()
    smallest = 1 / (size + 1)  # so few inputs prove no more
    assert float(p.min()) >= smallest * (1 - 1e-9)
    above = (score[order].diff() > 1e-9) & (p[order][1:] > smallest * (1 + 1e-9))
    assert (p[order].diff()[above] < 0).all()


# NegativeLogP


@laws
@given(st.lists(st.integers(-5, 5).map(float), min_size=10, max_size=40))
def test_rarity_counts_the_ordinary_values_that_are_at_least_as_large(values):
    ordinary = torch.tensor(values, dtype=torch.float64).sort().values
    at_least = (ordinary.unsqueeze(0) >= ordinary.unsqueeze(1)).sum(-1)
    want = -torch.log(at_least.double() / (len(values) + 1))
    torch.testing.assert_close(negative_log_p(ordinary, ordinary), want, rtol=1e-12, atol=1e-12)


@laws
@given(st.lists(st.floats(-10, 10), min_size=10, max_size=40), st.lists(st.floats(-30, 30), min_size=2, max_size=60))
def test_rarity_rises_strictly_within_and_beyond_the_ordinary_range(values, asked):
    ordinary = torch.tensor([round(v, 3) for v in values], dtype=torch.float64).sort().values
    spread = max(ordinary[-1] - ordinary[0], torch.tensor(1.0))
    beyond = torch.tensor([0.001, 0.01, 0.1, 1.0, 2.0]) * spread
    probes = [ordinary, torch.tensor([round(v, 3) for v in asked]).double(), ordinary[-1] + beyond]
    probes.append(ordinary[0] - beyond[:3])
    points = torch.cat(probes).unique()
    points = points[points > ordinary[0] - 0.2 * spread]  # farther below, the distance from 1 drowns in rounding
    assert (negative_log_p(points, ordinary).diff() > 0).all()


def test_rarity_does_not_tie_far_from_the_ordinary_range():
    ordinary = torch.linspace(0, 1, 100, dtype=torch.float64)
    above = negative_log_p(torch.tensor([1.0, 1.001, 2.0, 10.0, 1e3, 1e6]).double(), ordinary)
    below = negative_log_p(torch.tensor([-1.0, -0.5, -0.1, -0.001, 0.0]).double(), ordinary)
    assert (above.diff() > 0).all()
    assert (below.diff() > 0).all()
    assert (below > 0).all()


def test_rarity_goes_on_smoothly_at_both_ends():
    ordinary = torch.randn(200, dtype=torch.float64).sort().values
    for end in (ordinary[0], ordinary[-1]):
        step = 1e-9
        values = negative_log_p(torch.stack([end - step, end, end + step]), ordinary)
        assert values.diff().abs().max() < 1e-6


def test_rarity_of_an_exponential_law_goes_on_as_its_logarithm():
    # The excess over any threshold is exponential with mean 1, so -log P(X >= v) = v, also beyond the largest value.
    ordinary = torch.from_numpy(-np.log1p(-(np.arange(2000) + 0.5) / 2000))
    values = torch.tensor([0.5, 2.0, 5.0, 10.0, 20.0], dtype=torch.float64)
    torch.testing.assert_close(negative_log_p(values, ordinary), values, rtol=0.1, atol=0.01)


def test_rarity_keeps_the_shape_of_what_it_is_asked():
    ordinary = torch.linspace(0, 1, 20, dtype=torch.float64)
    values = torch.rand(2, 3, dtype=torch.float64)
    got = negative_log_p(values, ordinary)
    torch.testing.assert_close(got, negative_log_p(values.flatten(), ordinary).view(2, 3))
    torch.testing.assert_close(negative_log_p(values[0, 0], ordinary), got[0, 0])


# Order


def mixed(q: Dirichlet, share: float) -> Dirichlet:
    """The same precision, with the mean a step nearer to uniform."""
    return Dirichlet((1 - share) * q.mean + share / q.num_classes, q.log_precision)


@laws
@given(st.integers(0, 2**31), st.floats(0.01, 1.0), st.floats(0.01, 10.0))
def test_novelty_rises_with_entropy_and_as_precision_falls(seed, share, drop):
    torch.manual_seed(seed)
    novelty, q = Novelty.fit(both_vary(100)), both_vary(50)
    doubtful = mixed(q, share)
    blunt = Dirichlet(q.mean, q.log_precision - drop, q.log_mean)
    both = Dirichlet(doubtful.mean, blunt.log_precision)
    assert (predictive_entropy(doubtful) > predictive_entropy(q)).all()
    assert (novelty(doubtful) >= novelty(q)).all()
    assert (novelty(blunt) >= novelty(q)).all()
    assert (novelty(both) > novelty(q)).all()  # whichever of the two speaks, it speaks louder


def test_either_measure_alone_can_raise_the_alarm():
    novelty = Novelty.fit(both_vary(500))
    usual = Dirichlet.from_logits(torch.tensor([[2.0, 0.0, 0.0]]).double(), torch.tensor([3.0]).double())
    near = Dirichlet.from_logits(torch.zeros(1, 3).double(), torch.tensor([3.0]).double())
    far = Dirichlet.from_logits(torch.tensor([[2.0, 0.0, 0.0]]).double(), torch.tensor([-15.0]).double())
    assert novelty.p_value(usual) > 0.2
    assert novelty.p_value(near) < 0.1
    torch.testing.assert_close(
        novelty.p_value(far), torch.tensor([1 / 501]).double()
    )  # the least that 500 inputs allow


@pytest.mark.parametrize(("share", "of_entropy", "of_precision"), [(0.1, 1, 9), (0.5, 1, 1), (0.9, 9, 1), (0.75, 3, 1)])
def test_novelty_is_the_rarer_of_two_tails_each_with_its_share_of_the_alarms(share, of_entropy, of_precision):
    # For a tenth, N = max(-log p_E, -log 9 p_C): E has nine tenths of the false alarms, C has one.
    q = both_vary(100)
    novelty = Novelty.fit(q, Blend(share, 0.0))
    entropy = predictive_entropy(q)
    p_entropy = (entropy.unsqueeze(0) >= entropy.unsqueeze(1) - 1e-12).sum(-1) / 101
    p_precision = (q.log_precision.unsqueeze(0) <= q.log_precision.unsqueeze(1)).sum(-1) / 101
    want = torch.maximum(-(of_entropy * p_entropy).log(), -(of_precision * p_precision).log()).double()
    torch.testing.assert_close(novelty(q), want, rtol=1e-6, atol=1e-6)


# Invariance


@laws
@given(st.integers(0, 2**31), st.floats(-8, 8), st.floats(0.1, 10))
def test_novelty_does_not_depend_on_the_scale_of_log_precision(seed, shift, scale):
    torch.manual_seed(seed)

    def moved(q: Dirichlet) -> Dirichlet:
        return Dirichlet(q.mean, shift + scale * q.log_precision, q.log_mean)

    ordinary, fresh = both_vary(60), both_vary(60)
    before, after = Novelty.fit(ordinary)(fresh), Novelty.fit(moved(ordinary))(moved(fresh))
    torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-9)


def test_ranks_within_the_calibration_inputs_survive_any_monotone_map():
    def bent(q: Dirichlet) -> Dirichlet:
        return Dirichlet(q.mean, q.log_precision**3 / 10 + q.log_precision, q.log_mean)

    q = both_vary(200)
    torch.testing.assert_close(Novelty.fit(bent(q))(bent(q)), Novelty.fit(q)(q), rtol=1e-6, atol=1e-9)


# Storage and refusals


@pytest.mark.parametrize("size", [FEWEST_INPUTS, 300, MOST_QUANTILES + 1000])
def test_state_survives_a_round_trip(size):
    novelty, fresh = Novelty.fit(both_vary(size), Blend(0.7, 0.3)), both_vary(40)
    stored = {name: buffer.clone() for name, buffer in novelty.state_dict().items()}
    assert stored.keys() == {"entropy", "dispersion", "scores", "blend"}
    assert all(len(buffer) == min(size, MOST_QUANTILES) for name, buffer in stored.items() if name != "blend")
    other = Novelty(**{name: torch.zeros_like(buffer) for name, buffer in stored.items()})
    other.load_state_dict(stored)
    assert torch.equal(other(fresh), novelty(fresh))
    assert torch.equal(other.p_value(fresh), novelty.p_value(fresh))
    assert other.threshold(0.05) == novelty.threshold(0.05)


def test_novelty_answers_in_the_dtype_of_the_student_and_calibrates_outside_its_graph():
    logits, log_precision = torch.randn(30, 3, requires_grad=True), torch.randn(30, requires_grad=True)
    q = Dirichlet.from_logits(logits, log_precision)
    novelty = Novelty.fit(q)
    assert not any(buffer.requires_grad for buffer in novelty.buffers())
    score, p = novelty(q.detach()), novelty.p_value(q.detach())
    assert score.dtype == p.dtype == torch.float32
    exact = Dirichlet(q.mean.double(), q.log_precision.double(), q.log_mean.double()).detach()
    torch.testing.assert_close(score.double(), novelty(exact), rtol=1e-4, atol=1e-4)


def test_too_few_inputs_are_refused():
    with pytest.raises(ValueError, match=r"at least 10 held-out inputs.*got 9"):
        Novelty.fit(both_vary(FEWEST_INPUTS - 1))


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 5.0, math.nan])
def test_a_share_outside_its_range_is_refused(share):
    with pytest.raises(ValueError, match=r"the fraction of false alarms by dispersion must lie between 0 and 1; got"):
        Blend(share, 0.0)


@pytest.mark.parametrize("tilt", [-0.1, 1.1, math.nan])
def test_a_tilt_outside_its_range_is_refused(tilt):
    with pytest.raises(ValueError, match=r"tilt of dispersion must lie between 0 and 1; got"):
        Blend(0.5, tilt)


def test_for_rows_bluntness_is_the_negative_mean_log_concentration():
    q = both_vary(100)
    novelty = Novelty.fit(q, FOR_TABLES)
    torch.testing.assert_close(novelty.dispersion, -q.log_concentration().mean(-1).sort(descending=True).values)
    # So sure a mean that the precision hides what the smallest concentration shows.
    sure = Dirichlet.from_logits(torch.tensor([[30.0, 0.0, 0.0]]).double(), q.log_precision.median()[None])
    assert novelty.p_value(sure) < 0.02
    assert Novelty.fit(q).p_value(sure) > 0.1


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 5.0, math.nan])
def test_a_rate_outside_its_range_is_refused(rate):
    with pytest.raises(ValueError, match=r"must lie between 0 and 1; got"):
        Novelty.fit(both_vary(20)).threshold(rate)
