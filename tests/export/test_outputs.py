"""Exported operators give what the library gives: gamma functions in 40 digits, and measures over all precisions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath.ctx_mp import MPContext

import opu
from opu import measures
from opu.distributions.dirichlet import Dirichlet
from opu.export.gamma import HIGHEST, LOWEST, Table
from opu.export.outputs import CLOSED_FORM, ClosedForm, StudentWithMeasures
from opu.export.ranks import NegativeLogP
from opu.novelty import FOR_IMAGES, FOR_TABLES, LEAST_ENTROPY, Novelty
from opu.ranks import negative_log_p, tail_scales

mp = MPContext()
mp.dps = 40
TABLE = Table()
laws = settings(deadline=None, max_examples=200, derandomize=True)


@laws
@given(st.floats(LOWEST, HIGHEST))
def test_the_table_is_right_from_the_smallest_concentration_to_the_largest(log_alpha):
    excess, rest = TABLE(torch.tensor([[log_alpha]], dtype=torch.float64))[0, 0].tolist()
    u = mp.mpf(log_alpha)
    alpha = mp.exp(u)
    assert excess == pytest.approx(float(mp.digamma(alpha + 1) - u), rel=1e-11)
    exact = mp.loggamma(alpha) - (alpha - 1) * mp.digamma(alpha) + 1 / alpha + alpha
    assert rest == pytest.approx(float(exact), rel=1e-11, abs=1e-11)


def inputs(log_precision, num_classes=5, peaked=3.0):
    """Logits whose smallest probability is about 1e-30 where they are peaked most."""
    torch.manual_seed(0)
    logits = peaked * torch.randn(len(log_precision), num_classes, dtype=torch.float64)
    return logits, log_precision


@pytest.mark.parametrize("num_classes", [2, 10, 47])
@pytest.mark.parametrize("peaked", [0.0, 1.0, 20.0])
def test_measures_are_the_librarys_over_all_precisions(num_classes, peaked):
    logits, g = inputs(torch.linspace(-12, 20, 200, dtype=torch.float64), num_classes, peaked)
    mean, _, found, witnesses = ClosedForm()(logits, g)
    q = Dirichlet.from_logits(logits, g)
    torch.testing.assert_close(mean, q.mean, rtol=1e-12, atol=0)
    entropy = found[:, 0].clamp(min=LEAST_ENTROPY)
    torch.testing.assert_close(witnesses, torch.stack([entropy, -g], -1), rtol=1e-12, atol=1e-12)
    found = dict(zip(CLOSED_FORM, found.unbind(-1), strict=True))
    for name in CLOSED_FORM:
        torch.testing.assert_close(found[name], getattr(measures, name)(q), rtol=1e-5, atol=1e-13, msg=name)


@pytest.mark.parametrize("log_precision", [-250.0, -60.0, -46.0, -44.0, -30.0, 25.0, 40.0])
def test_precisions_that_links_without_bounds_can_reach(log_precision):
    logits, g = inputs(torch.full((50,), log_precision, dtype=torch.float64), peaked=2.0)
    _, _, found, _ = ClosedForm()(logits, g)
    found, q = dict(zip(CLOSED_FORM, found.unbind(-1), strict=True)), Dirichlet.from_logits(logits, g)
    for name in ("predictive_entropy", "expected_entropy", "mutual_information"):
        torch.testing.assert_close(found[name], getattr(measures, name)(q), rtol=1e-6, atol=1e-10, msg=name)
    exact = [float(_differential_entropy(row)) for row in (q.log_mean + g.unsqueeze(-1))]
    assert found["differential_entropy"].tolist() == pytest.approx(exact, rel=1e-8)


def _differential_entropy(log_alpha):
    """Differential entropy in 40 digits."""
    alpha = [mp.exp(mp.mpf(float(u))) for u in log_alpha]
    total = mp.fsum(alpha)
    beta = mp.fsum(mp.loggamma(a) for a in alpha) - mp.loggamma(total)
    return beta + (total - len(alpha)) * mp.digamma(total) - mp.fsum((a - 1) * mp.digamma(a) for a in alpha)


@pytest.mark.parametrize("log_precision", [20.0, 23.9, 24.1, 28.0, 33.0, 36.0, 40.0, 100.0, 690.0, 800.0])
@pytest.mark.parametrize("logits", [[0.3, -1.0, 0.0], [0.0, -1.0, -12.0, -15.0], [0.0, -30.0]], ids=str)
def test_information_and_entropy_of_sharp_predictions_agree_with_hundreds_of_digits(logits, log_precision):
    # Above log-precision 24, where the table ends, the information used to be 0.
    mp = MPContext()
    mp.dps = 450
    weights, total = [mp.exp(mp.mpf(z)) for z in logits], mp.exp(mp.mpf(log_precision))
    share = [w / mp.fsum(weights) for w in weights]
    expected = mp.digamma(total + 1) - mp.fsum(h * mp.digamma(total * h + 1) for h in share)
    information = -mp.fsum(h * mp.log(h) for h in share) - expected
    _, _, found, _ = ClosedForm()(
        torch.tensor([logits], dtype=torch.float64), torch.tensor([log_precision], dtype=torch.float64)
    )
    found = dict(zip(CLOSED_FORM, found[0].tolist(), strict=True))
    # Next to the corner, 1e-11 of the reciprocal of the precision.
    assert found["mutual_information"] == pytest.approx(float(information), rel=1e-6, abs=1e-11 * float(1 / total))
    alpha = [total * h for h in share]
    beta = mp.fsum(mp.loggamma(a) for a in alpha) - mp.loggamma(total)
    entropy = beta + (total - len(alpha)) * mp.digamma(total) - mp.fsum((a - 1) * mp.digamma(a) for a in alpha)
    assert found["differential_entropy"] == pytest.approx(float(entropy), rel=1e-11)
    q = Dirichlet.from_logits(
        torch.tensor([logits], dtype=torch.float64), torch.tensor([log_precision], dtype=torch.float64)
    )
    assert found["differential_entropy"] == pytest.approx(q.entropy().item(), rel=1e-11)
    assert found["expected_entropy"] == pytest.approx(q.expected_entropy().item(), rel=1e-3)


@pytest.mark.parametrize("n", [2, 10, 50, 2047, 2048])
def test_negative_log_p_is_the_librarys_wherever_a_value_lies(n):
    torch.manual_seed(0)
    calibration = torch.randn(n, dtype=torch.float64).sort().values
    calibration[n // 2 :] = calibration[n // 2 :].round(decimals=1).sort().values  # some tie
    calibration = calibration.sort().values
    values = torch.cat([torch.linspace(-8, 8, 999, dtype=torch.float64), calibration, calibration + 1e-9])
    both = torch.stack([calibration, 3 * calibration + 1])
    ours = NegativeLogP(both, torch.stack([tail_scales(each) for each in both]))
    assert torch.equal(
        ours.place(torch.stack([values, values], -1)[..., None])[:, 0], torch.searchsorted(calibration, values)
    )
    columns = torch.stack([values, 3 * values + 1], -1).unsqueeze(-1)
    found = ours(columns)
    for column, (scaled, against) in enumerate([(values, both[0]), (3 * values + 1, both[1])]):
        exact = negative_log_p(scaled, against)
        torch.testing.assert_close(found[:, column, 0], exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("blend", [FOR_IMAGES, FOR_TABLES])
def test_novelty_and_its_p_value_are_the_librarys(blend):
    student = opu.students.mlp(4, 3, (16,)).eval()
    with torch.no_grad():
        student.novelty = Novelty.fit(student(torch.randn(400, 4)), blend)
        x = torch.cat([torch.randn(300, 4), 30 * torch.randn(100, 4)])
        network = StudentWithMeasures(student)
        found = dict(zip(network.names, network(x), strict=True))
        q = student(x)
        torch.testing.assert_close(found["novelty"], student.novelty(q), rtol=2e-5, atol=1e-5)
        torch.testing.assert_close(found["novelty_p_value"], student.novelty.p_value(q), rtol=2e-5, atol=1e-6)


def test_inputs_are_prepared_first():
    student = opu.students.mlp(4, 3, (16,)).eval()
    x = torch.randn(20, 4)
    prepared = StudentWithMeasures(student, lambda x: 2 * x + 1)
    for ours, theirs in zip(prepared(x), StudentWithMeasures(student)(2 * x + 1), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_entropy_of_a_vanishing_class_is_the_librarys_smallest_number():
    logits, g = torch.tensor([[0.0, -90.0, -3.0], [0.0, -1.0, -3.0]]), torch.full((2,), -5.0)
    student = opu.students.mlp(3, 3, (4,)).eval()
    network = StudentWithMeasures(student)
    student.heads = lambda x: (x, g)
    found, q = dict(zip(network.names, network(logits), strict=True)), Dirichlet.from_logits(logits, g)
    assert found["differential_entropy"][0].item() == q.entropy()[0].item() == torch.finfo(torch.float32).min
    torch.testing.assert_close(found["differential_entropy"], q.entropy())
