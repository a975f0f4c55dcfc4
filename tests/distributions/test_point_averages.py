import math

import pytest
import torch

from opu import measures
from opu.distributions import LogisticNormal
from opu.distributions import point_averages as module
from opu.distributions.logistic_normal import LEAST_LOG_PROBABILITY
from opu.distributions.point_averages import point_averages

SHAPES = pytest.mark.parametrize(("num_classes", "rank"), [(2, 0), (2, 3), (3, 1), (10, 4), (47, 4), (300, 2)])


def drawn(num_classes, rank, spread=1.0, rows=20, dtype=torch.float64):
    location = 4 * torch.randn(rows, num_classes, dtype=torch.float64)
    log_scale = math.log(spread) + 0.2 * torch.randn(rows, num_classes, dtype=torch.float64)
    factors = spread * torch.randn(rows, num_classes, rank, dtype=torch.float64)
    return [each.to(dtype) for each in (location, log_scale, factors)]


@SHAPES
@pytest.mark.parametrize("spread", [1e-2, 1.0, 20.0])
def test_averages_are_those_of_the_points(num_classes, rank, spread):
    q = LogisticNormal(*drawn(num_classes, rank, spread))
    found, log_points = point_averages(q.location, q.log_scale, q.factors), q.log_points()
    torch.testing.assert_close(found.mean, log_points.exp().mean(0), rtol=1e-10, atol=1e-13)
    entropies = -(log_points.exp() * log_points).sum(-1)
    torch.testing.assert_close(found.entropy, entropies.mean(0), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.log_sum, log_points.sum(-1).mean(0), rtol=1e-10, atol=1e-10)


@SHAPES
def test_blocks_change_nothing(monkeypatch, num_classes, rank):
    given = drawn(num_classes, rank, rows=7)
    whole = point_averages(*given)
    monkeypatch.setitem(module._NUMBERS_AT_ONCE, "cpu", 1)
    rows = point_averages(*given)
    for name in ("mean", "entropy", "log_sum"):
        torch.testing.assert_close(getattr(rows, name), getattr(whole, name), rtol=1e-12, atol=1e-15)


def test_gradients_are_those_of_finite_differences():
    given = [each.requires_grad_() for each in drawn(3, 2, rows=2)]
    assert torch.autograd.gradcheck(lambda *parts: tuple(vars(point_averages(*parts)).values()), given)


def test_logits_that_all_tie_or_lie_far_apart_have_finite_averages():
    location = torch.tensor([[1e6, 1e6, 1e6], [0.0, -1e4, 3e4], [-1e5, -1e5, -2e5]])
    found = point_averages(location, torch.full((3, 3), -9.0), torch.full((3, 3, 1), 500.0))
    torch.testing.assert_close(found.mean[0], torch.full((3,), 1 / 3))
    torch.testing.assert_close(found.mean[1], torch.tensor([0.0, 0.0, 1.0]))
    assert bool(found.entropy.isfinite().all() & found.log_sum.isfinite().all())


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_measures_of_sure_predictions_are_the_same_in_every_type_and_never_jump(spread):
    gaps = torch.linspace(40, 110, 1401)
    location = torch.stack([gaps, torch.zeros_like(gaps)], -1)
    log_scale = torch.full_like(location, math.log(spread))
    single = LogisticNormal(location, log_scale, torch.zeros(len(gaps), 2, 0))
    double = single.to(torch.float64)
    for name in measures.named("E", "P", "C", "MI", "EE"):
        exact = measures.MEASURES[name](double)
        torch.testing.assert_close(measures.MEASURES[name](single).double(), exact, rtol=3e-3, atol=0, msg=name)
        steps = exact.diff().abs() / (1 if name == "negative_log_precision" else exact[1:])
        assert float(steps.max()) < 0.08, name  # a step is 0.05 in the logits
    assert float(single.log_mean.min()) == pytest.approx(LEAST_LOG_PROBABILITY)


@pytest.mark.parametrize("log_scale", [-10.0, -8.0, -6.0, -4.0, -2.0, -1.0])
@pytest.mark.parametrize("num_classes", [2, 10])
def test_information_keeps_its_digits_in_float32_however_small(num_classes, log_scale):
    location, scales, factors = drawn(num_classes, 2, math.exp(log_scale), rows=300)
    q = LogisticNormal(location, scales, factors)
    single = q.to(torch.float32).mutual_information().double()
    torch.testing.assert_close(single, q.mutual_information(), rtol=3e-3, atol=0)
    if log_scale <= -4:  # where entropies in float64 have digits left, the two formulas agree
        exact = measures.predictive_entropy(q) - q.expected_entropy()
        known = exact > 1e-9 * measures.predictive_entropy(q)
        torch.testing.assert_close(q.mutual_information()[known], exact[known], rtol=1e-2, atol=0)


def test_information_is_not_above_the_entropy_next_to_certainty():
    location = torch.tensor([[0.0, -160.0, -160.0]]).double()
    q = LogisticNormal(location, torch.full_like(location, -1.0), torch.tensor([[[0.0], [50.0], [0.0]]]).double())
    assert float(q.mutual_information()) <= float(measures.predictive_entropy(q))


def test_a_prediction_in_inference_mode_leaves_gradients_possible():
    location = torch.randn(4, 13)
    with torch.inference_mode():
        LogisticNormal(location, location, torch.zeros(4, 13, 1)).mean  # noqa: B018
    moved = location.clone().requires_grad_()
    LogisticNormal(moved, moved, torch.zeros(4, 13, 1)).log_points().exp().square().sum().backward()
    assert bool(moved.grad.abs().sum() > 0)


def test_the_mean_of_a_class_below_the_least_probability_has_the_gradient_of_its_location():
    location = torch.tensor([[0.0, -100.0]], requires_grad=True)
    q = LogisticNormal(location, torch.zeros(1, 2), torch.zeros(1, 2, 0))
    q.log_mean[0, 1].backward()
    assert float(location.grad[0, 1]) == pytest.approx(1.0)
