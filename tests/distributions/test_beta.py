"""Beta marginals against mpmath and closed forms, from shapes of 1e-30 to 1e8."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath.ctx_mp import MPContext
from scipy import stats

from opu.distributions.beta import BetaMarginals
from opu.distributions.dirichlet import Dirichlet

mp = MPContext()
mp.dps = 40

LEVELS = (0.001, 0.05, 0.3, 0.7, 0.95, 0.995, 0.9999)
laws = settings(deadline=None, max_examples=40, derandomize=True)
shapes = st.floats(-30, 8).map(lambda power: 10.0**power)
levels = st.floats(0.001, 0.999)


def marginals(*pairs: tuple[float, float]) -> BetaMarginals:
    a, b = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
    return BetaMarginals(a[None], b[None])


def cdf_reference(a: float, b: float, x: float):
    """The regularised incomplete beta function in 40 digits."""
    if x <= 0 or x >= 1:
        return mp.mpf(x >= 1)
    a, b, x = mp.mpf(a), mp.mpf(b), mp.mpf(x)
    if min(a, b) < 1e4:
        return mp.betainc(a, b, 0, x, regularized=True)
    # Both shapes large: the density is a narrow peak, which is integrated as such.
    mean, width = a / (a + b), mp.sqrt(a * b / (a + b) ** 3)
    log_peak = mp.loggamma(a + b) - mp.loggamma(a) - mp.loggamma(b)
    start, stop = mean - 14 * width, min(x, mean + 14 * width)
    grid = [start + (stop - start) * i / 16 for i in range(17)]
    return mp.quad(lambda t: mp.exp(log_peak + (a - 1) * mp.log(t) + (b - 1) * mp.log(1 - t)), grid)


def assert_quantile(a: float, b: float, level: float, x: float, within: float) -> None:
    """The distribution function passes ``level`` within ``within`` of ``x``, whether smoothly or in a jump."""
    assert cdf_reference(a, b, x - within) <= level <= cdf_reference(a, b, x + within), f"{x} is not the quantile"


MODERATE = [(2.0, 3.0), (0.5, 0.5), (0.01, 0.02), (1.1e-3, 1e3), (30.0, 4000.0), (7.0, 0.2)]


@pytest.mark.parametrize(("a", "b"), MODERATE)
def test_cdf_and_quantile_agree_with_forty_digits(a, b):
    law = marginals((a, b))
    for x in (1e-12, 1e-3, 0.2, 0.5, 0.9, 0.999999):
        assert law.cdf(x).item() == pytest.approx(float(cdf_reference(a, b, x)), rel=1e-11)
    for level in LEVELS:
        x = law.quantile(level).item()
        assert_quantile(a, b, level, x, within=1e-12 + 1e-9 * x * (1 - x))


@pytest.mark.parametrize(("a", "b"), [(1e8, 1e8), (1e8, 3e5)])
def test_huge_shapes_agree_with_an_integral(a, b):
    law = marginals((a, b))
    width = law.variance.sqrt().item()
    for level in (0.001, 0.3, 0.9999):
        x = law.quantile(level).item()
        assert law.cdf(x).item() == pytest.approx(level, rel=1e-6)
        assert_quantile(a, b, level, x, within=1e-6 * width)


@pytest.mark.parametrize("n", [1e-30, 1e-6, 0.3, 1.0, 50.0, 1e8])
def test_shapes_with_a_closed_form(n):
    for level in LEVELS:
        powers = float(mp.mpf(level) ** (1 / mp.mpf(n)))  # Beta(n, 1) has distribution function x^n
        mirrored = float((1 - mp.mpf(level)) ** (1 / mp.mpf(n)))
        got = marginals((n, 1.0), (1.0, n)).quantile(level)[0]
        assert got[0].item() == pytest.approx(powers, rel=1e-9, abs=1e-6)
        assert 1 - got[1].item() == pytest.approx(mirrored, rel=1e-7, abs=1e-6)


@pytest.mark.parametrize(("a", "b"), [(1e-30, 1e-30), (1e-6, 1e-6), (3e-6, 1e-6), (1e-30, 2.0), (1e-6, 1e-30)])
def test_a_law_of_two_atoms_jumps_where_its_mass_does(a, b):
    law = marginals((a, b))
    share = b / (a + b)  # of the atom at 0
    for level in LEVELS:
        if abs(level - share) > 1e-3:
            assert law.quantile(level).item() == pytest.approx(float(level > share), abs=1e-12)
    for x in (1e-9, 0.5, 1 - 1e-9):
        assert law.cdf(x).item() == pytest.approx(share, abs=1e-4)


@pytest.mark.parametrize(("small", "other"), [(9e-4, 1.0), (9e-4, 1e3), (1e-4, 1e3), (9.9e-4, 1e5), (1e-5, 30.0)])
@pytest.mark.parametrize("mirrored", [False, True])
def test_a_tiny_shape_beside_a_moderate_one(small, other, mirrored):
    # A class of mean 1e-6 at log-precision 7 is such a law: nearly an atom at 0, with a tail of length 1 / b.
    a, b = (other, small) if mirrored else (small, other)
    law = marginals((a, b))
    for level in LEVELS:
        assert_quantile(a, b, level, law.quantile(level).item(), within=1e-6)


@laws
@given(shapes, shapes, levels, levels)
def test_quantiles_and_intervals_grow_with_the_level(a, b, one, other):
    low, high = sorted((one, other))
    law = marginals((a, b))
    assert 0 <= law.quantile(low).item() <= law.quantile(high).item() <= 1
    (inner_left, inner_right), (left, right) = law.interval(low), law.interval(high)
    assert left <= inner_left <= inner_right <= right


@laws
@given(shapes, shapes, levels)
def test_swapping_the_shapes_mirrors_the_law(a, b, level):
    law, mirrored = marginals((a, b)), marginals((b, a))
    if abs(level - b / (a + b)) > 1e-3:  # where two atoms meet, either is a quantile
        assert law.quantile(level).item() == pytest.approx(1 - mirrored.quantile(1 - level).item(), abs=1e-6)
    assert law.cdf(0.3).item() == pytest.approx(1 - mirrored.cdf(0.7).item(), abs=1e-9)
    assert law.mean.item() == pytest.approx(1 - mirrored.mean.item(), abs=1e-15)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_the_interval_holds_its_mass_with_equal_tails(level):
    law = marginals(*[(a, b) for a, b in MODERATE if min(a, b) >= 0.5])
    low, high = law.interval(level)
    for (a, b), left, right in zip(zip(law.a[0], law.b[0], strict=True), low[0], high[0], strict=True):
        below = cdf_reference(a.item(), b.item(), left.item())
        above = 1 - cdf_reference(a.item(), b.item(), right.item())
        assert float(below) == pytest.approx((1 - level) / 2, rel=1e-9)
        assert float(above) == pytest.approx((1 - level) / 2, rel=1e-6)


@pytest.mark.parametrize("scale", [1e-4, 0.3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_the_interval_covers_draws_as_often_as_it_says(scale, level):
    count = 50_000
    q = Dirichlet.from_concentration(scale * torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64))
    low, high = q.marginals().interval(level)
    draws = q.rsample(count)
    coverage = ((draws >= low) & (draws <= high)).double().mean(0)[0]
    error = 5 * np.sqrt(level * (1 - level) / count)
    assert (coverage > level - error).all()
    if scale >= 0.3:  # two atoms cannot be split so as to cover exactly
        assert (coverage < level + error).all()


def test_mean_and_variance_agree_with_scipy():
    pairs = [(2.0, 3.0), (0.01, 0.02), (1e-30, 1.0), (1e8, 1e8)]
    law = marginals(*pairs)
    np.testing.assert_allclose(law.mean[0], [stats.beta(a, b).mean() for a, b in pairs], rtol=1e-14)
    np.testing.assert_allclose(law.variance[0], [stats.beta(a, b).var() for a, b in pairs], rtol=1e-12)


def test_values_come_in_the_dtype_of_the_shapes():
    law = BetaMarginals(torch.full((2, 3), 2.0), torch.full((2, 3), 3.0))
    low, high = law.interval()
    assert low.dtype == high.dtype == law.cdf(0.5).dtype == torch.float32
    assert low.shape == high.shape == (2, 3)
    np.testing.assert_allclose(low, stats.beta(2, 3).ppf(0.05), rtol=1e-6)
    np.testing.assert_allclose(high, stats.beta(2, 3).ppf(0.95), rtol=1e-6)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 90.0, float("nan")])
def test_an_interval_outside_0_to_1_is_refused(level):
    with pytest.raises(ValueError, match=f"must lie between 0 and 1; got {level}"):
        marginals((1.0, 1.0)).interval(level)
