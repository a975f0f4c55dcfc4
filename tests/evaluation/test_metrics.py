"""Metrics by hand, by brute force over pairs and thresholds, and an interval that covers what it says."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy import stats

from opu.evaluation import metrics

laws = settings(deadline=None, max_examples=30, derandomize=True, phases=(Phase.explicit, Phase.generate))


@st.composite
def scored(draw: st.DrawFn) -> tuple[list[float], list[bool]]:
    """Scores with many ties, and both classes."""
    size = draw(st.integers(2, 30))
    scores = draw(st.lists(st.integers(0, 8).map(float), min_size=size, max_size=size))
    positive = draw(st.lists(st.booleans(), min_size=size, max_size=size).filter(lambda p: len(set(p)) == 2))
    return scores, positive


def operating_points(scores, positive):
    """(false-positive rate, true-positive rate, precision) at every threshold, from the highest down."""
    scores, positive = np.array(scores), np.array(positive)
    for threshold in sorted(set(scores.tolist()), reverse=True):
        taken = scores >= threshold
        yield taken[~positive].mean(), taken[positive].mean(), positive[taken].mean()


# Detection


def test_detection_by_hand():
    # From the top: 0.8 found, 0.4 false, 0.35 found, 0.1 left. Three of the four pairs are in order.
    got = metrics.detection([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    assert got == pytest.approx({"auroc": 75.0, "aupr": 100 * (0.5 * 1 + 0.5 * 2 / 3), "fpr95": 50.0})


@laws
@given(scored())
def test_detection_agrees_with_counting(data):
    scores, positive = data
    good = [s for s, p in zip(scores, positive, strict=True) if p]
    bad = [s for s, p in zip(scores, positive, strict=True) if not p]
    pairs = [1.0 if g > b else 0.5 if g == b else 0.0 for g, b in itertools.product(good, bad)]
    points = list(operating_points(scores, positive))
    recalls = np.array([recall for _, recall, _ in points])
    precisions = np.array([precision for _, _, precision in points])
    want = {
        "auroc": 100 * np.mean(pairs),
        "aupr": 100 * np.sum(np.diff(recalls, prepend=0) * precisions),
        "fpr95": 100 * next(false for false, recall, _ in points if recall >= 0.95),
    }
    assert metrics.detection(scores, positive) == pytest.approx(want, abs=1e-9)
    assert metrics.auroc(scores, positive) == pytest.approx(want["auroc"], abs=1e-9)


@laws
@given(scored(), st.floats(0.01, 1.0))
def test_fpr_at_any_tpr_is_the_first_threshold_that_reaches_it(data, tpr):
    want = next(false for false, recall, _ in operating_points(*data) if recall >= tpr)
    assert metrics.fpr_at_tpr(*data, tpr=tpr) == pytest.approx(want)


def test_fpr95_counts_nineteen_of_twenty():
    # Twenty positives: the lowest may be missed, so both negatives below the second lowest are not flagged.
    scores = [*range(1, 21), 1.5, 1.7, 2.5, 30]
    positive = [1] * 20 + [0] * 4
    assert metrics.fpr_at_tpr(scores, positive) == pytest.approx(0.5)


def test_a_perfect_a_reversed_and_a_blind_detector():
    positive = np.array([0] * 60 + [1] * 20)
    assert metrics.detection(positive, positive) == {"auroc": 100.0, "aupr": 100.0, "fpr95": 0.0}
    reverse = metrics.detection(-positive, positive)
    assert (reverse["auroc"], reverse["fpr95"]) == (0.0, 100.0)
    blind = metrics.detection(np.zeros(80), positive)
    assert blind == pytest.approx({"auroc": 50.0, "aupr": 25.0, "fpr95": 100.0})  # AUPR is the base rate


def test_a_random_detector_is_at_chance():
    rng = np.random.default_rng(0)
    got = metrics.detection(rng.normal(size=20_000), rng.random(20_000) < 0.1)
    assert got == pytest.approx({"auroc": 50, "aupr": 10, "fpr95": 95}, abs=2)


def test_a_gaussian_detector_has_the_known_auroc():
    rng = np.random.default_rng(0)
    scores = np.concatenate([rng.normal(0, 1, 20_000), rng.normal(1, 1, 20_000)])
    positive = np.repeat([False, True], 20_000)
    assert metrics.auroc(scores, positive) == pytest.approx(100 * stats.norm.cdf(1 / math.sqrt(2)), abs=1)
    false_alarms = stats.norm.sf(stats.norm.ppf(0.05) + 1)
    assert metrics.fpr_at_tpr(scores, positive) == pytest.approx(false_alarms, abs=0.02)


@laws
@given(scored())
def test_detection_depends_on_ranks_alone(data):
    scores, positive = data
    assert metrics.detection(np.exp(np.array(scores)), positive) == metrics.detection(scores, positive)
    flipped = metrics.auroc([-s for s in scores], positive)
    assert flipped == pytest.approx(100 - metrics.auroc(scores, positive))


def test_tensors_and_lists_are_the_same():
    scores, positive = [0.3, 0.1, 0.9, 0.4], [False, True, True, False]
    assert metrics.detection(torch.tensor(scores).double(), torch.tensor(positive)) == metrics.detection(
        scores, positive
    )


@pytest.mark.parametrize("metric", [metrics.detection, metrics.auroc, metrics.fpr_at_tpr])
def test_detection_refuses_what_cannot_be_ranked(metric):
    with pytest.raises(ValueError, match=r"one length; got shapes \(3,\) and \(2,\)"):
        metric([1.0, 2.0, 3.0], [0, 1])
    with pytest.raises(ValueError, match=r"one length; got shapes \(1, 2\) and \(1, 2\)"):
        metric([[1.0, 2.0]], [[0, 1]])
    with pytest.raises(ValueError, match="must be finite to be ranked; got 2 that are not"):
        metric([1.0, math.nan, math.inf], [0, 1, 1])
    with pytest.raises(ValueError, match="both positives and negatives; got 2 positives only"):
        metric([1.0, 2.0], [1, 1])
    with pytest.raises(ValueError, match="both positives and negatives; got 2 negatives only"):
        metric([1.0, 2.0], [0, 0])


# Risk and coverage


def test_aurc_by_hand():
    # Accepted one by one, the most certain first: risks 0, 0, 1/3, 1/2.
    assert metrics.aurc([1, 2, 3, 4], [0, 0, 1, 1]) == pytest.approx(100 * (0 + 0 + 1 / 3 + 1 / 2) / 4)
    assert metrics.aurc([4, 3, 2, 1], [0, 0, 1, 1]) == pytest.approx(100 * (1 + 1 + 2 / 3 + 1 / 2) / 4)
    assert metrics.aurc([1, 1, 1, 1], [0, 1, 1, 0]) == pytest.approx(50.0)
    assert metrics.aurc([1.0, 2.0], [0, 0]) == 0.0


@laws
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_aurc_is_the_mean_over_all_orders_of_tied_inputs(rows):
    risks = []
    for order in itertools.permutations(rows):
        if [score for score, _ in order] == sorted(score for score, _ in rows):
            errors = np.cumsum([error for _, error in order])
            risks.append(np.mean(errors / np.arange(1, len(rows) + 1)))
    scores, errors = np.array(rows, dtype=float).T
    assert metrics.aurc(scores, errors) == pytest.approx(100 * np.mean(risks))


def test_no_order_has_less_risk_than_errors_last():
    rng = np.random.default_rng(0)
    errors = rng.random(50) < 0.3
    best, worst = metrics.aurc(errors, errors), metrics.aurc(~errors, errors)
    for _ in range(50):
        assert best <= metrics.aurc(rng.random(50), errors) <= worst


# Calibration


def test_accuracy_likelihood_and_brier_by_hand():
    probabilities = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.0, 1.0, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 1])
    assert metrics.accuracy(probabilities, labels) == pytest.approx(200 / 3)
    assert metrics.negative_log_likelihood(probabilities, labels) == pytest.approx(-(math.log(0.7) + math.log(0.3)) / 3)
    brier = [0.3**2 + 0.2**2 + 0.1**2, 0.3**2 + 0.7**2 + 0.4**2, 0.0]
    assert metrics.brier_score(probabilities, labels) == pytest.approx(sum(brier) / 3)


def test_an_impossible_label_costs_the_log_of_a_millionth_of_a_millionth():
    got = metrics.negative_log_likelihood(torch.tensor([[0.0, 1.0]]), torch.tensor([0]))
    assert got == pytest.approx(12 * math.log(10))


def test_uniform_probabilities_have_the_known_scores():
    probabilities, labels = torch.full((40, 4), 0.25), torch.arange(40) % 4
    assert metrics.negative_log_likelihood(probabilities, labels) == pytest.approx(math.log(4))
    assert metrics.brier_score(probabilities, labels) == pytest.approx(0.75)
    assert metrics.calibration_error(probabilities, labels) == pytest.approx(0.0)


def test_calibration_error_by_hand():
    # Two bins of five: confidences 0.9 (three inputs, two right) and 0.7 (two inputs, none right).
    high = torch.tensor([0.9, 0.9, 0.9, 0.7, 0.7], dtype=torch.float64)
    probabilities = torch.stack([high, 1 - high], -1)
    labels = torch.tensor([0, 0, 1, 1, 1])
    gap = 3 / 5 * abs(2 / 3 - 0.9) + 2 / 5 * abs(0 - 0.7)
    assert metrics.calibration_error(probabilities, labels, num_bins=5) == pytest.approx(100 * gap)
    together = abs(2 - 3 * 0.9 - 2 * 0.7) / 5
    assert metrics.calibration_error(probabilities, labels, num_bins=1) == pytest.approx(100 * together)


def test_full_confidence_falls_into_the_last_bin():
    probabilities = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert metrics.calibration_error(probabilities, torch.tensor([0, 0])) == 0.0
    assert metrics.calibration_error(probabilities, torch.tensor([0, 1])) == pytest.approx(50.0)


def test_probabilities_that_tell_the_truth_are_calibrated():
    high = 0.5 + 0.5 * torch.rand(100_000, dtype=torch.float64)
    probabilities = torch.stack([high, 1 - high], -1)
    labels = (torch.rand(100_000) > high).long()
    assert metrics.calibration_error(probabilities, labels) < 1
    overconfident = torch.stack([0.5 + high / 2, 0.5 - high / 2], -1)
    assert metrics.calibration_error(overconfident, labels) == pytest.approx(12.5, abs=1)  # mean of (1 - high) / 2


# Intervals


def fast_auroc(scores, positive):
    return 100 * (scores[positive][:, None] > scores[~positive][None]).mean()


def test_the_interval_covers_a_known_auroc_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    positive = np.repeat([False, True], 60)
    truth = 100 * stats.norm.cdf(1 / math.sqrt(2))
    inside = 0
    for seed in range(100):
        scores = rng.normal(size=120) + positive
        low, high = metrics.bootstrap_interval(
            fast_auroc, scores, positive, level=0.9, num_resamples=100, seed=seed, strata=positive
        )
        inside += low <= truth <= high
    assert 80 < inside < 97


def test_intervals_are_seeded_and_nested():
    rng = np.random.default_rng(0)
    scores, positive = rng.normal(size=80), np.repeat([False, True], 40)
    wide = metrics.bootstrap_interval(fast_auroc, scores, positive, strata=positive)
    assert wide == metrics.bootstrap_interval(fast_auroc, scores, positive, strata=positive)
    assert wide != metrics.bootstrap_interval(fast_auroc, scores, positive, strata=positive, seed=1)
    narrow = metrics.bootstrap_interval(fast_auroc, scores, positive, strata=positive, level=0.5)
    assert wide[0] < narrow[0] < fast_auroc(scores, positive) < narrow[1] < wide[1]


def test_the_interval_of_a_mean_is_the_known_one():
    values = np.random.default_rng(0).normal(size=400)
    low, high = metrics.bootstrap_interval(np.mean, values, num_resamples=2000)
    half = stats.norm.ppf(0.975) * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)


def test_strata_keep_their_sizes():
    positive = np.repeat([False, True], [30, 7])
    assert metrics.bootstrap_interval(np.sum, positive, strata=positive) == (7.0, 7.0)
    low, high = metrics.bootstrap_interval(np.sum, positive)
    assert low < 7 < high


def test_columns_are_resampled_together():
    values = np.arange(50.0)
    assert metrics.bootstrap_interval(lambda a, b: float(abs(a - b).max()), values, values) == (0.0, 0.0)


def test_metrics_for_rare_classes_are_those_of_scikit_learn():
    from sklearn import metrics as sk

    labels = torch.tensor([0] * 90 + [1] * 7 + [2] * 3)
    probabilities = (torch.rand(100, 3) + torch.nn.functional.one_hot(labels, 3)).softmax(-1).double()
    assert metrics.base_rate(labels) == pytest.approx(90)
    expected = sk.balanced_accuracy_score(labels, probabilities.argmax(-1))
    assert metrics.balanced_accuracy(probabilities, labels) == pytest.approx(100 * expected)
    expected = sk.roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    assert metrics.class_auroc(probabilities, labels) == pytest.approx(100 * expected)
    two = probabilities[:, :2] / probabilities[:, :2].sum(-1, keepdim=True)
    expected = sk.roc_auc_score(labels > 0, two[:, 1])
    assert metrics.class_auroc(two, (labels > 0).long()) == pytest.approx(100 * expected)
    constant = torch.tensor([[0.9, 0.1]]).double().expand(100, 2)
    assert metrics.balanced_accuracy(constant, (labels > 0).long()) == pytest.approx(50)
