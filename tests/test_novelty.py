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
from opu.novelty import FEWEST_INPUTS, FOR_IMAGES, FOR_TABLES, MOST_INPUTS, Blend, Novelty
from opu.ranks import Slack, combined, left_out, negative_log_p

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


@pytest.mark.parametrize("size", [500, 1500, 2 * MOST_INPUTS])
def test_p_values_of_fresh_ordinary_inputs_are_uniform(size):
    got, band = flagged(both_vary, LEVELS, calibrations=20, size=size, fresh=1500)
    # The tail beyond the range of calibration is a continuation, so one part in the sample is forgiven.
    np.testing.assert_array_less(abs(got.numpy() - LEVELS), band + 1 / size)


def opposed(count: int) -> Dirichlet:
    """Entropy and precision that have nothing to do with one another, with long tails."""
    logits = torch.randn(count, 4, dtype=torch.float64) * torch.rand(count, 1, dtype=torch.float64) * 4
    return Dirichlet.from_logits(logits, 3 - torch.randn(count, dtype=torch.float64).exp())


@pytest.mark.parametrize("make", [both_vary, opposed])
@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("size", [FEWEST_INPUTS, 60])
def test_p_values_from_few_inputs_never_flag_too_often(size, share, make):
    # Each rate is one that so many inputs can hold exactly: k / (n + 1).
    rates = [k / (size + 1) for k in (1, 2, max(2, size // 4))]
    repeats, fresh = 150, 40
    hits = torch.zeros(3)
    for _ in range(repeats):
        p = Novelty.fit(make(size), Blend(share, 0.0)).p_value(make(fresh))
        hits += torch.tensor([(p <= rate * (1 + 1e-9)).double().mean() for rate in rates])
    got = (hits / repeats).numpy()
    # The inputs of one calibration share its error, so that only calibrations count as independent.
    band = 4 * np.sqrt(np.array(rates) * (1 - np.array(rates)) / repeats * (1 / fresh + 1 / size))
    np.testing.assert_array_less(got, np.array(rates) + band)
    assert got[2] > 0.6 * rates[2]  # and nearly as often as they may


def test_a_score_among_others_is_the_score_without_oneself():
    q = both_vary(40)
    columns = torch.stack([predictive_entropy(q), -q.log_precision], -1)
    columns[::3] = columns[0]  # some tie
    slack, shares = Slack.of(columns), torch.tensor([0.9, 0.1]).double()
    got = left_out(columns, shares, slack)
    for i, row in enumerate(slack(columns)):
        others = columns[torch.arange(40) != i].T.sort(-1).values.contiguous()
        # A fresh input is one more of them, and below them all.
        pool = torch.cat([others[:, :1] - 1e-9, others], -1)
        parts = torch.stack([negative_log_p(row[j : j + 1], pool[j]) for j in (0, 1)], -1)
        # Up to the scale of the tail, which the largest and the smallest value have from all others.
        inside = (others[:, 0] <= columns[i]) & (columns[i] <= others[:, -1])
        if bool(inside.all()):
            torch.testing.assert_close(got[i], combined(parts, shares)[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
def test_false_alarms_are_no_more_than_promised_for_any_blend_and_ten_inputs(share):
    def drawn(count):
        u = torch.randn(count, dtype=torch.float64)
        return Dirichlet.from_logits(torch.stack([u.exp(), 0 * u], -1), -3 * u)

    rate, repeats = 5 / 11, 1000
    flagged_shares = torch.stack(
        [
            (Novelty.fit(drawn(10), Blend(share, 0.5)).p_value(drawn(100)) <= rate + 1e-12).double().mean()
            for _ in range(repeats)
        ]
    )
    assert float(flagged_shares.mean()) < rate + 3 * float(flagged_shares.std()) / repeats**0.5


def test_predictions_next_to_certainty_tie_in_every_type():
    # One minus their largest probability is 1e-14 to 1e-17, which a number next to 1 can hardly hold.
    gaps = torch.linspace(32, 39, 400)
    logits = torch.stack([gaps, torch.zeros_like(gaps)], -1)
    q = Dirichlet.from_logits(logits, torch.zeros_like(gaps))
    novelty = Novelty.fit(Dirichlet.from_logits(torch.cat([logits, 0.01 * logits]), torch.zeros(800)))
    assert bool((novelty.p_value(q.to(torch.float64)) == novelty.p_value(q)).all())
    assert float(novelty.p_value(q).min()) > 0.4


def test_p_values_are_uniform_where_all_precisions_tie():
    got, band = flagged(precision_is_constant, LEVELS, calibrations=20, size=1000, fresh=1000)
    np.testing.assert_array_less(abs(got.numpy() - LEVELS), band + 1 / 1000)


def test_p_values_are_uniform_where_all_entropies_tie():
    # C alone speaks, and only of its rarest ninth; above that share p-values pile up.
    rates = (0.01, 0.05, 0.1)
    got, band = flagged(entropy_is_constant, rates, calibrations=20, size=1000, fresh=1000)
    np.testing.assert_array_less(abs(got.numpy() - rates), band + 1 / 1000)


def test_identical_predictions_have_a_p_value_of_one():
    one = both_vary(1)
    for blend in (FOR_IMAGES, FOR_TABLES):
        novelty = Novelty.fit(one[[0] * 50], blend)
        assert novelty.p_value(one[[0] * 2]).tolist() == [1, 1]


@laws
@given(st.integers(0, 2**31), st.integers(2, 8), st.sampled_from([1e-7, 1e-6, 1e-5]), st.sampled_from([0.1, 0.9]))
def test_rounding_does_not_break_ties(seed, num_groups, rounding, share):
    """A few groups of alike inputs, as rows of binary columns are, with the errors of float32 in logits and precision."""
    torch.manual_seed(seed)
    logits, g = 4 * torch.randn(num_groups, 3, dtype=torch.float64), 3 * torch.randn(num_groups, dtype=torch.float64)

    def rows(count):
        which = torch.randint(num_groups, (count,))
        off = [1 + rounding * (2 * torch.rand(n, dtype=torch.float64) - 1) for n in ((count, 3), (count,))]
        return Dirichlet.from_logits(logits[which] * off[0], g[which] * off[1]), which

    q, which = rows(300)
    fresh, group = rows(100)
    novelty = Novelty.fit(q, Blend(share, 0.0))
    p = novelty.p_value(fresh)
    for k in group.unique():
        # All inputs of its own group, and of groups that are more novel, are at least as novel.
        own = int((which == k).sum())
        assert float(p[group == k].min()) >= (own + 1) / 301 - 1e-9
    limits = [novelty.threshold(rate) for rate in (0.01, 0.05, 0.2)]
    for rate, limit in zip((0.01, 0.05, 0.2), limits, strict=True):
        assert torch.equal(novelty(fresh).float() > limit, p <= rate + 1e-9)


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
    thresholds = [novelty.threshold(rate) for rate in (0.004, 0.01, 0.1, 0.5, 0.9)]
    assert thresholds == sorted(thresholds, reverse=True)


@laws
@given(st.integers(0, 2**31), st.integers(10, 200))
def test_p_values_fall_as_novelty_rises(seed, size):
    torch.manual_seed(seed)
    novelty, q = Novelty.fit(both_vary(size)), both_vary(50)
    score, p = novelty(q), novelty.p_value(q)
    assert ((p > 0) & (p <= 1)).all()
    order = score.argsort()
    assert (p[order].diff() <= 0).all()
    # One more than the number of calibration scores that are at least as large, of one more than all of them.
    at_least = (novelty.scores >= score.unsqueeze(-1)).sum(-1)
    torch.testing.assert_close(p, (1 + at_least).double() / (size + 1), rtol=1e-12, atol=0)


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
    # Up to the slack of rounding, which lowers E by a fraction of 2e-4.
    torch.testing.assert_close(novelty(q), want, rtol=0, atol=0.1)
    assert float((novelty(q) - want).abs().median()) < 1e-3


# Invariance


@laws
@given(st.integers(0, 2**31), st.floats(-8, 8), st.floats(0.1, 10))
def test_novelty_does_not_depend_on_the_scale_of_log_precision(seed, shift, scale):
    torch.manual_seed(seed)

    def moved(q: Dirichlet) -> Dirichlet:
        return Dirichlet(q.mean, shift + scale * q.log_precision, q.log_mean)

    ordinary, fresh = both_vary(60), both_vary(60)
    before, after = Novelty.fit(ordinary)(fresh), Novelty.fit(moved(ordinary))(moved(fresh))
    assert float((after - before).abs().median()) < 1e-2  # the slack of rounding does not move along
    torch.testing.assert_close(after, before, rtol=1e-2, atol=0.2)


def test_ranks_within_the_calibration_inputs_survive_any_monotone_map():
    def bent(q: Dirichlet) -> Dirichlet:
        return Dirichlet(q.mean, q.log_precision**3 / 10 + q.log_precision, q.log_mean)

    q = both_vary(200)
    torch.testing.assert_close(Novelty.fit(bent(q))(bent(q)), Novelty.fit(q)(q), rtol=1e-3, atol=0.02)


# Storage and refusals


@pytest.mark.parametrize("size", [FEWEST_INPUTS, 300, MOST_INPUTS + 1000])
def test_state_survives_a_round_trip(size):
    novelty, fresh = Novelty.fit(both_vary(size), Blend(0.7, 0.3)), both_vary(40)
    stored = {name: buffer.clone() for name, buffer in novelty.state_dict().items()}
    assert stored.keys() == {"entropy", "dispersion", "scores", "blend"}
    assert all(len(buffer) == min(size, MOST_INPUTS) for name, buffer in stored.items() if name != "blend")
    other = Novelty(**{name: torch.zeros_like(buffer) for name, buffer in stored.items()})
    other.load_state_dict(stored)
    assert torch.equal(other(fresh), novelty(fresh))
    assert torch.equal(other.p_value(fresh), novelty.p_value(fresh))
    assert other.threshold(0.1) == novelty.threshold(0.1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_calibration_values_stay_exact_in_a_student_of_any_type(dtype):
    novelty = Novelty.fit(both_vary(300))
    before = {name: buffer.clone() for name, buffer in novelty.state_dict().items()}
    novelty.to(dtype)
    for name, buffer in novelty.state_dict().items():
        assert buffer.dtype == torch.float64
        assert torch.equal(buffer, before[name])


def test_predictions_that_are_no_numbers_are_novel():
    novelty, q = Novelty.fit(both_vary(300)), both_vary(5)
    bad = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, 0.0]).double()
    precision = Dirichlet(q.mean, q.log_precision + bad, q.log_mean)
    mean = Dirichlet(q.mean + bad[:, None], q.log_precision, q.log_mean + bad[:, None])
    for broken in (precision, mean):
        assert (novelty.p_value(broken)[:3] == novelty.least_p_value).all()
        assert (novelty(broken)[:3] > novelty.scores.max()).all()
        torch.testing.assert_close(novelty(broken)[3:], novelty(q)[3:])


def test_predictions_that_are_no_numbers_do_not_calibrate():
    q = both_vary(30)
    log_precision = q.log_precision.clone()
    log_precision[[3, 5]] = torch.nan
    with pytest.raises(ValueError, match=r"predictions that are numbers; 2 of 30 are NaN or infinite"):
        Novelty.fit(Dirichlet(q.mean, log_precision, q.log_mean))


@pytest.mark.parametrize(("size", "rate", "needed"), [(20, 0.01, 99), (98, 0.01, 99), (10, 0.05, 19), (60, 0.001, 999)])
def test_a_rate_that_so_few_inputs_cannot_hold_is_refused(size, rate, needed):
    with pytest.raises(ValueError, match=rf"needs at least {needed} calibration inputs; there were {size}"):
        Novelty.fit(both_vary(size)).threshold(rate)


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


@pytest.mark.parametrize("size", [MOST_INPUTS - 1, MOST_INPUTS, MOST_INPUTS + 1, MOST_INPUTS + 2, 5000, 20_000])
def test_inputs_that_tie_are_not_novel_however_many_there_are(size):
    q = Dirichlet.from_logits(torch.zeros(size, 3), torch.zeros(size))
    assert (Novelty.fit(q).p_value(q[:5]) == 1).all()


@pytest.mark.parametrize("columns", [1, 2, 3, 4])
def test_rates_hold_for_many_inputs_of_few_kinds(columns):
    """A table of a few binary columns: the share of p-values up to a level is at most that level."""
    torch.manual_seed(columns)
    weight, bias = torch.randn(columns, 3), torch.randn(columns)

    def predictions(count):
        x = (torch.rand(count, columns) < 0.3).float()
        return Dirichlet.from_logits(2 * x @ weight, x @ bias)

    novelty, fresh = Novelty.fit(predictions(10_000)), predictions(20_000)
    p = novelty.p_value(fresh)
    for level in (0.01, 0.05, 0.1, 0.25, 0.5):
        assert (p <= level).double().mean() < level + 4 * (level * (1 - level) * (1 / MOST_INPUTS + 1 / 20_000)) ** 0.5
