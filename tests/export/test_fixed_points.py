"""Logistic-normals in operators that every runtime has: elimination beside torch.linalg, measures beside the library's."""

import math

import pytest
import torch

from opu import measures
from opu.distributions import LogisticNormal
from opu.export.fixed_points import FixedPoints, log_volume
from opu.export.outputs import CLOSED_FORM
from opu.novelty import _measures

CASES = [(2, 0), (2, 1), (2, 4), (3, 0), (3, 1), (5, 3), (10, 4), (47, 4), (12, 64)]
cases = pytest.mark.parametrize(("num_classes", "rank"), CASES)


def normals(num_classes, rank, rows=40, peaked=3.0, log_scale=0.0):
    """Logits whose noise is of all sizes up to 30 times larger or smaller."""
    logits = peaked * torch.randn(rows, num_classes, dtype=torch.float64)
    scales = log_scale + torch.randn(rows, num_classes, dtype=torch.float64)
    factors = torch.randn(rows, num_classes * rank, dtype=torch.float64)
    return logits, torch.cat([scales, factors], -1)


def as_value(logits, parameters):
    log_scale, factors = parameters.split([logits.shape[-1], parameters.shape[-1] - logits.shape[-1]], -1)
    return LogisticNormal(logits, log_scale, factors.reshape(*logits.shape, -1))


@cases
def test_the_volume_is_that_of_the_covariance_of_log_ratios(num_classes, rank):
    q = as_value(*normals(num_classes, rank))
    factors = q.factors.mT if rank else None
    covariance = torch.diag_embed(torch.exp(2 * q.log_scale)) + q.factors @ q.factors.mT
    centre = torch.eye(num_classes, dtype=torch.float64) - 1 / num_classes
    values = torch.linalg.eigvalsh(centre @ covariance @ centre)[:, 1:]  # all but the direction that does not count
    exact = values.log().sum(-1, keepdim=True)
    torch.testing.assert_close(2 * log_volume(q.log_scale, factors), exact, rtol=1e-8, atol=1e-8)


@cases
@pytest.mark.parametrize("peaked", [0.0, 3.0, 30.0])
@pytest.mark.parametrize("log_scale", [-9.0, -3.0, 0.0, 3.0])
@pytest.mark.parametrize("tilt", [0.0, 1.0])
def test_measures_are_the_librarys_from_flat_to_certain(num_classes, rank, peaked, log_scale, tilt):
    logits, parameters = normals(num_classes, rank, peaked=peaked, log_scale=log_scale)
    mean, log_precision, found, witnesses = FixedPoints(num_classes, rank, tilt)(logits, parameters)
    q = as_value(logits, parameters)
    torch.testing.assert_close(mean, q.mean, rtol=1e-10, atol=1e-300)
    torch.testing.assert_close(log_precision, q.log_precision, rtol=1e-10, atol=1e-10)
    expected = _measures(q, torch.tensor([0.5, tilt], dtype=torch.float64))
    torch.testing.assert_close(witnesses, expected, rtol=1e-8, atol=1e-8)
    # More factors than dimensions, each far larger than the scales, leave D fewer digits in the library too.
    tolerances = {"mutual_information": 3e-4, "differential_entropy": 1e-5}
    for name, values in zip(CLOSED_FORM, found.unbind(-1), strict=True):
        rtol = tolerances.get(name, 1e-10)
        torch.testing.assert_close(values, getattr(measures, name)(q), rtol=rtol, atol=1e-300, msg=name)


def test_predictions_next_to_certainty_keep_their_digits():
    # The probability of the others is 1e-20, far below what 1 minus the largest could tell.
    logits = torch.tensor([[0.0, -46.0, -47.0], [-50.0, -48.0, 0.0]], dtype=torch.float64)
    parameters = torch.cat([torch.full((2, 3), -1.0), torch.randn(2, 3)], -1).double()
    _, log_precision, found, _ = FixedPoints(3, 1)(logits, parameters)
    q = as_value(logits, parameters)
    assert float(q.mean[:, 1].max()) < 1e-19
    torch.testing.assert_close(log_precision, q.log_precision, rtol=1e-10, atol=0)
    for name, values in zip(CLOSED_FORM, found.unbind(-1), strict=True):
        torch.testing.assert_close(values, getattr(measures, name)(q), rtol=1e-6, atol=0, msg=name)


@pytest.mark.parametrize("gap", [100.0, 600.0, 680.0, 700.0, 1000.0, 1900.0])
def test_a_class_that_underflows_keeps_its_place_in_the_dispersion(gap):
    logits = torch.tensor([[0.0, -gap, -1.0]], dtype=torch.float64)
    parameters = torch.full((1, 3), -2.0, dtype=torch.float64)
    _, _, found, witnesses = FixedPoints(3, 0, tilt=1.0)(logits, parameters)
    expected = _measures(as_value(logits, parameters), torch.tensor([0.5, 1.0], dtype=torch.float64))
    assert found.isfinite().all()
    torch.testing.assert_close(witnesses, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rank", [0, 2])
def test_parameters_at_their_bounds_stay_finite(rank):
    sizes = torch.tensor([-10.0, 5.0, 5.0]).double(), torch.tensor([1e3, -1e3, 1e3]).double()
    log_scale = sizes[0].unsqueeze(-1).expand(3, 4)
    factors = sizes[1].unsqueeze(-1) * torch.randn(3, 4 * rank, dtype=torch.float64).clamp(-1, 1)
    logits, parameters = 1e3 * torch.randn(3, 4).double(), torch.cat([log_scale, factors], -1)
    mean, log_precision, found, witnesses = FixedPoints(4, rank)(logits, parameters)
    q = as_value(logits, parameters)
    assert all(values.isfinite().all() for values in (mean, log_precision, found, witnesses))
    torch.testing.assert_close(mean, q.mean, rtol=1e-9, atol=1e-250)
    torch.testing.assert_close(found[:, 3], q.entropy(), rtol=1e-6, atol=1e-6)


def test_largest_logits_that_tie_are_both_counted():
    logits, parameters = torch.zeros(1, 3, dtype=torch.float64), torch.full((1, 3), -math.inf, dtype=torch.float64)
    mean, _, found, _ = FixedPoints(3, 0)(logits, parameters)
    torch.testing.assert_close(mean, torch.full_like(mean, 1 / 3))
    torch.testing.assert_close(found[0, :2], torch.full((2,), math.log(3), dtype=torch.float64))


def test_the_points_of_a_thousand_classes_come_in_parts():
    logits, parameters = normals(1000, 4, rows=3, peaked=1.0)
    network = FixedPoints(1000, 4)
    mean, log_precision, found, _ = network(logits, parameters)
    q = as_value(logits, parameters)
    torch.testing.assert_close(mean, q.mean, rtol=1e-10, atol=0)
    torch.testing.assert_close(log_precision, q.log_precision, rtol=1e-10, atol=0)
    torch.testing.assert_close(found[:, 3], q.entropy(), rtol=1e-10, atol=0)
    nodes = torch.export.export(network, (logits, parameters)).graph.nodes
    computed = [node.meta["val"] for node in nodes if node.op == "call_function"]
    of_rows = [values for values in computed if isinstance(values, torch.Tensor) and 4 in values.shape]
    largest = max(values.numel() for values in of_rows)
    assert largest == 16 * 1000 * (3 + 1)  # sixteen of 256 points at a time, with the row that is never empty
