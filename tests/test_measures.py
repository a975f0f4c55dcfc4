"""Measures: known answers, agreement between a Dirichlet and its draws, and the order that uncertainty imposes."""

import math

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from mpmath.ctx_mp import MPContext
from torch import Tensor

from opu import measures
from opu.distributions.dirichlet import Dirichlet
from opu.distributions.pointwise import LARGEST_LOG_PRECISION
from opu.measures import MEASURES, SYMBOLS, all_measures, named
from opu.novelty import Novelty

laws = settings(deadline=None, max_examples=30, derandomize=True, phases=(Phase.explicit, Phase.generate))
COMPUTED = {name: measure for name, measure in MEASURES.items() if name != "novelty"}  # which must be calibrated first
every_measure = pytest.mark.parametrize("measure", COMPUTED.values(), ids=COMPUTED.keys())
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def dirichlet(*alpha: float, dtype: torch.dtype = torch.float64) -> Dirichlet:
    return Dirichlet.from_concentration(torch.tensor([alpha], dtype=dtype))


def one_hot(classes: list[int], num_classes: int, floor: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """Log-particles ``(S, 1, K)`` in corners; ``floor`` is the log-probability of the other classes."""
    log_particles = torch.full((len(classes), 1, num_classes), floor, dtype=dtype)
    log_particles[range(len(classes)), 0, classes] = 0.0
    return log_particles


# Known answers


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_the_flat_dirichlet_has_the_known_measures(num_classes):
    k = num_classes
    entropy = sum(1 / j for j in range(2, k + 1))  # of a uniform draw from the simplex
    want = {
        "predictive_entropy": math.log(k),
        "least_confidence": 1 - 1 / k,
        "negative_log_precision": -math.log(k),
        "differential_entropy": -math.lgamma(k),
        "mutual_information": math.log(k) - entropy,
        "expected_entropy": entropy,
    }
    got = all_measures(dirichlet(*[1.0] * k))
    assert {name: value.item() for name, value in got.items()} == pytest.approx(want, abs=1e-12)


def test_identical_uniform_particles_are_aleatoric_only():
    particles = torch.full((5, 1, 4), math.log(0.25), dtype=torch.float64)
    got = {name: value.item() for name, value in all_measures(particles).items()}
    assert got["predictive_entropy"] == pytest.approx(math.log(4))
    assert got["expected_entropy"] == pytest.approx(math.log(4))
    assert got["mutual_information"] == pytest.approx(0, abs=1e-12)
    assert got["least_confidence"] == pytest.approx(0.75)
    assert got["negative_log_precision"] == pytest.approx(-LARGEST_LOG_PRECISION)


@pytest.mark.parametrize("floor", [-500.0, -math.inf])
def test_particles_in_all_corners_are_epistemic_only(floor):
    particles = one_hot([0, 1, 2, 3], 4, floor)
    assert measures.predictive_entropy(particles).item() == pytest.approx(math.log(4))
    assert measures.expected_entropy(particles).item() == pytest.approx(0, abs=1e-12)
    assert measures.mutual_information(particles).item() == pytest.approx(math.log(4))
    assert measures.least_confidence(particles).item() == pytest.approx(0.75)


@pytest.mark.parametrize("floor", [-500.0, -math.inf])
def test_particles_in_one_corner_leave_no_uncertainty(floor):
    particles = one_hot([2, 2, 2], 4, floor)
    for name in ("predictive_entropy", "expected_entropy", "mutual_information", "least_confidence"):
        assert MEASURES[name](particles).item() == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(measures.mean(particles), torch.eye(4, dtype=torch.float64)[2:3])


def test_two_coins_by_hand():
    particles = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]], dtype=torch.float64).log()

    def entropy(p):
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    assert measures.mean(particles)[0].tolist() == pytest.approx([0.7, 0.3])
    assert measures.predictive_entropy(particles).item() == pytest.approx(entropy(0.7))
    assert measures.expected_entropy(particles).item() == pytest.approx((entropy(0.9) + math.log(2)) / 2)
    assert measures.mutual_information(particles).item() == pytest.approx(
        entropy(0.7) - (entropy(0.9) + math.log(2)) / 2
    )
    assert measures.least_confidence(particles).item() == pytest.approx(0.3)


@dtypes
def test_least_confidence_does_not_tie_near_certainty(dtype):
    small = torch.tensor([1e-9, 1e-12, 1e-30])
    logits = torch.stack([torch.zeros(3), small.log(), torch.full((3,), -200.0)], -1).to(dtype)
    q = Dirichlet.from_logits(logits, torch.zeros(3, dtype=dtype))
    torch.testing.assert_close(measures.least_confidence(q), small.to(dtype), rtol=1e-5, atol=0)
    particles = logits.log_softmax(-1).expand(4, -1, -1)
    torch.testing.assert_close(measures.least_confidence(particles), small.to(dtype), rtol=1e-5, atol=0)
    assert (measures.predictive_entropy(q).diff() < 0).all()


# A Dirichlet and its particles


@pytest.mark.parametrize("alpha", [(1.0, 1.0, 1.0), (0.5, 2.0, 7.0), (0.1, 0.2, 0.05), (50.0, 30.0, 20.0), (3.0, 0.2)])
def test_measures_of_many_draws_are_those_of_their_dirichlet(alpha):
    q = dirichlet(*alpha)
    of_draws, of_q = all_measures(q.log_rsample(100_000)), all_measures(q)
    for name in COMPUTED:
        # Each is a smooth function of averages over 1e5 draws; the relative error of 1/sqrt(1e5) is 0.003.
        assert of_draws[name].item() == pytest.approx(of_q[name].item(), rel=0.02, abs=0.01), name


def test_the_mean_of_many_draws_is_the_mean():
    q = dirichlet(0.5, 2.0, 7.0)
    torch.testing.assert_close(measures.mean(q.log_rsample(100_000)), measures.mean(q), rtol=0, atol=0.005)
    assert measures.mean(q) is q.mean


# Order


@every_measure
@pytest.mark.parametrize("kind", ["dirichlet", "particles"])
def test_flat_ranks_above_sharp(measure, kind):
    q = Dirichlet.from_concentration(torch.tensor([[1.0, 1.0, 1.0], [20.0, 2.0, 2.0], [500.0, 5.0, 5.0]]).double())
    values = measure(q if kind == "dirichlet" else q.log_rsample(2000))
    assert (values.diff() < -0.01).all()


@pytest.mark.parametrize("kind", ["dirichlet", "particles"])
@pytest.mark.parametrize("name", ["negative_log_precision", "mutual_information", "differential_entropy"])
def test_epistemic_uncertainty_falls_with_precision_alone(name, kind):
    mean = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = Dirichlet.from_concentration(mean * torch.tensor([[5.0], [10.0], [100.0], [1000.0]]))
    values = MEASURES[name](q if kind == "dirichlet" else q.log_rsample(2000))
    assert (values.diff() < 0).all()


@st.composite
def sources(draw: st.DrawFn, reach: float = 20.0, fewest: int = 1) -> Dirichlet | Tensor:
    num_classes, rows = draw(st.integers(2, 6)), draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scale = draw(st.floats(0.01, reach))
    logits = scale * torch.randn(rows, num_classes, generator=generator, dtype=torch.float64)
    if draw(st.booleans()):
        return Dirichlet.from_logits(logits, 5 * torch.randn(rows, generator=generator, dtype=torch.float64))
    noise = torch.randn(draw(st.integers(fewest, 10)), rows, num_classes, generator=generator, dtype=torch.float64)
    return (logits + scale * noise).log_softmax(-1)


@laws
@given(sources())
def test_entropies_are_ordered_and_bounded(source):
    num_classes = measures.mean(source).shape[-1]
    total, within = measures.predictive_entropy(source), measures.expected_entropy(source)
    between, unsure = measures.mutual_information(source), measures.least_confidence(source)
    assert (within >= 0).all()
    assert (between >= 0).all()
    assert (total >= within - 1e-12).all()
    assert (total <= math.log(num_classes) + 1e-12).all()
    torch.testing.assert_close(total, within + between, rtol=0, atol=1e-12)
    torch.testing.assert_close(unsure, 1 - measures.mean(source).max(-1).values, rtol=0, atol=1e-14)


@laws
@given(sources(reach=4.0, fewest=2), st.randoms(use_true_random=False))
def test_measures_do_not_depend_on_the_order_of_the_classes(source, random):
    order = list(range(measures.mean(source).shape[-1]))
    random.shuffle(order)
    if isinstance(source, Dirichlet):
        moved = Dirichlet(source.mean[:, order], source.log_precision, source.log_mean[:, order])
    else:
        moved = source[..., order]
    before, after = all_measures(source), all_measures(moved)
    for name in COMPUTED:
        torch.testing.assert_close(after[name], before[name], rtol=1e-5, atol=1e-4)


# All at once


@laws
@given(sources())
def test_all_measures_are_the_single_ones_by_name(source):
    together = all_measures(source)
    assert together.keys() == COMPUTED.keys()
    for name, measure in COMPUTED.items():
        assert measure.function is getattr(measures, name)
        torch.testing.assert_close(together[name], measure(source), rtol=0, atol=0)


def test_novelty_is_an_entry_that_needs_its_calibrated_score():
    q = Dirichlet.from_logits(torch.randn(50, 3), torch.randn(50))
    novelty = Novelty.fit(q)
    assert torch.equal(all_measures(q, novelty)["novelty"], novelty(q))
    with pytest.raises(ValueError, match="novelty needs a student's prediction and its calibrated score"):
        MEASURES["novelty"](q)
    with pytest.raises(ValueError, match="novelty needs a student's prediction"):
        MEASURES["novelty"](q.log_rsample(5), novelty)


def test_symbols_and_names_are_one_to_one():
    assert named(*SYMBOLS.values()) == tuple(MEASURES)


@every_measure
@dtypes
def test_measures_have_the_dtype_of_their_source(measure, dtype):
    q = dirichlet(2.0, 3.0, 5.0)
    particles = q.log_rsample(50)
    same = Dirichlet(q.mean.to(dtype), q.log_precision.to(dtype))
    for low, high in [(same, q), (particles.to(dtype), particles)]:
        assert measure(low).dtype == dtype
        torch.testing.assert_close(measure(low).double(), measure(high), rtol=1e-4, atol=1e-5)


@dtypes
@pytest.mark.parametrize("classes", [[0], [0, 0, 0], [0, 1], [0, 1, 1, 2]])
def test_impossible_classes_leave_every_measure_finite(classes, dtype):
    for name, value in all_measures(one_hot(classes, 4, -math.inf, dtype)).items():
        assert value.isfinite().all(), name


def test_an_impossible_class_among_possible_ones_leaves_every_measure_finite():
    particles = dirichlet(2.0, 3.0, 5.0).log_rsample(50)
    particles[7, 0] = torch.tensor([-math.inf, math.log(0.4), math.log(0.6)])
    for name, value in all_measures(particles).items():
        assert value.isfinite().all(), name


@pytest.mark.parametrize("floor", [-50.0, -500.0, -math.inf])
def test_a_cloud_in_one_corner_is_as_precise_as_can_be(floor):
    assert measures.negative_log_precision(one_hot([0] * 5, 3, floor)).item() == pytest.approx(-LARGEST_LOG_PRECISION)


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("logits", [[0.3, -1.0, 0.0], [0.0, -46.0], [0.0, -3.0, -200.0]], ids=str)
def test_information_of_particles_that_almost_agree_keeps_its_digits(logits, spread):
    mp = MPContext()
    mp.dps = 60
    noise = torch.randn(5, 1, len(logits), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores = (torch.tensor(logits, dtype=torch.float64) + spread * noise).log_softmax(-1)
    rows = [[mp.exp(mp.mpf(value)) for value in row] for row in scores[:, 0].tolist()]
    rows = [[value / mp.fsum(row) for value in row] for row in rows]
    average = [mp.fsum(column) / len(rows) for column in zip(*rows, strict=True)]

    def entropy(row):
        return -mp.fsum(value * mp.log(value) for value in row)

    want = entropy(average) - mp.fsum(map(entropy, rows)) / len(rows)
    # Scores are rounded by 1e-16 of their size, which moves them as the spread does.
    rounding = 1e-12 + 1e-15 * max(1.0, -min(logits[:2])) / spread
    assert measures.mutual_information(scores).item() == pytest.approx(float(want), rel=rounding, abs=0)


@dtypes
def test_no_inputs_have_no_measures(dtype):
    empty = torch.zeros(4, 0, 3, dtype=dtype)
    for source in (Dirichlet.from_logits(empty[0], empty[0, :, 0]), empty):
        for name, value in all_measures(source).items():
            assert value.shape == (0,), name
