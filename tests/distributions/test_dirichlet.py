"""The Dirichlet against its formulas in 60 digits, its integrals, and the laws that every batch must obey."""

import dataclasses
import math

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath.ctx_mp import MPContext
from scipy import special, stats
from torch import Tensor

from opu.distributions.dirichlet import Dirichlet, kl_divergence, log_gamma_rsample

mp = MPContext()
mp.dps = 60

LOG_PRECISIONS = (-12.0, -5.0, 0.0, 3.0, 14.0, 20.0)
MEANS = {
    "even": [0.25, 0.25, 0.25, 0.25],
    "skewed": [0.2, 0.3, 0.5],
    "vanishing": [1e-30, 0.4, 0.6],
    "corner": [1.0 - 1e-3 - 1e-12, 1e-3, 1e-12],
    "vertex": [1e-30, 1.0, 1e-30, 1e-20],
    "ten": [0.01, 0.02, 0.03, 0.04, 0.1, 0.1, 0.1, 0.1, 0.2, 0.3],
}
means = pytest.mark.parametrize("mean", MEANS.values(), ids=MEANS.keys())
log_precisions = pytest.mark.parametrize("log_precision", LOG_PRECISIONS)
laws = settings(deadline=None, max_examples=30, derandomize=True)


@st.composite
def log_concentrations(draw: st.DrawFn, batch: int = 1) -> Tensor:
    """Rows of log alpha whose classes differ by up to 20 nats, at log-precisions from -12 to 20."""
    num_classes = draw(st.integers(2, 6))
    logits = st.lists(st.floats(-20, 0), min_size=num_classes, max_size=num_classes)
    rows = [draw(logits) for _ in range(batch)]
    log_precision = [[draw(st.floats(-12, 20))] for _ in range(batch)]
    return torch.tensor(rows, dtype=torch.float64).log_softmax(-1) + torch.tensor(log_precision, dtype=torch.float64)


def dirichlet(mean: list[float], log_precision: float, dtype: torch.dtype = torch.float64) -> Dirichlet:
    return Dirichlet(torch.tensor([mean], dtype=dtype), torch.tensor([log_precision], dtype=dtype))


# References in 60 digits, from the same float64 log alpha.


def alphas(q: Dirichlet) -> list:
    return [mp.exp(mp.mpf(value)) for value in q.log_concentration()[0].tolist()]


def log_beta(alpha: list):
    return mp.fsum(map(mp.loggamma, alpha)) - mp.loggamma(mp.fsum(alpha))


def log_prob_reference(alpha: list, log_point: list[float]):
    return mp.fsum((a - 1) * mp.mpf(p) for a, p in zip(alpha, log_point, strict=True)) - log_beta(alpha)


def entropy_reference(alpha: list):
    total = mp.fsum(alpha)
    tail = mp.fsum((a - 1) * mp.digamma(a) for a in alpha)
    return log_beta(alpha) + (total - len(alpha)) * mp.digamma(total) - tail


def expected_entropy_reference(alpha: list):
    total = mp.fsum(alpha)
    return mp.digamma(total + 1) - mp.fsum(a / total * mp.digamma(a + 1) for a in alpha)


def mutual_information_reference(alpha: list):
    total = mp.fsum(alpha)
    return -mp.fsum(a / total * mp.log(a / total) for a in alpha) - expected_entropy_reference(alpha)


def kl_reference(alpha: list, beta: list):
    digamma_0 = mp.digamma(mp.fsum(alpha))
    linear = mp.fsum((a - b) * (mp.digamma(a) - digamma_0) for a, b in zip(alpha, beta, strict=True))
    return log_beta(beta) - log_beta(alpha) + linear


def assert_close(got: Tensor, want, *, rtol: float, atol: float) -> None:
    assert got.numel() == 1
    error = abs(mp.mpf(got.item()) - want)
    assert error <= atol + rtol * abs(want), f"got {got.item()!r}, want {float(want)!r}, off by {float(error):.2e}"


ROUNDING = 2e-13  # nothing is left of lgamma(alpha_0), which is 1e10 at log-precision 20


# Values


@means
@log_precisions
def test_entropy_agrees_with_sixty_digits(mean, log_precision):
    q = dirichlet(mean, log_precision)
    assert_close(q.entropy(), entropy_reference(alphas(q)), rtol=1e-13, atol=ROUNDING)


@means
@log_precisions
def test_expected_entropy_and_mutual_information_agree_with_sixty_digits(mean, log_precision):
    q = dirichlet(mean, log_precision)
    assert_close(q.expected_entropy(), expected_entropy_reference(alphas(q)), rtol=1e-13, atol=2e-14)
    assert_close(q.mutual_information(), mutual_information_reference(alphas(q)), rtol=1e-13, atol=2e-14)


@means
@log_precisions
def test_log_prob_agrees_with_sixty_digits(mean, log_precision):
    q = dirichlet(mean, log_precision)
    sharp = [0.0] + [-1e4] * (len(mean) - 1)  # a confident particle: exp gives a vertex, the logarithm is still finite
    flat = [-math.log(len(mean))] * len(mean)
    near = np.log(0.9 * np.array(mean) + 0.1 / len(mean)).tolist()
    for log_point in (sharp, flat, near):
        got = q.log_prob(torch.tensor([log_point], dtype=torch.float64))
        norm = mp.log(mp.fsum(mp.exp(mp.mpf(value)) for value in log_point))  # rounding counts alpha_0 times
        want = log_prob_reference(alphas(q), [mp.mpf(value) - norm for value in log_point])
        assert_close(got, want, rtol=1e-13, atol=ROUNDING)


@means
@log_precisions
def test_kl_divergence_agrees_with_sixty_digits(mean, log_precision):
    p = dirichlet(mean, log_precision)
    others = [
        dirichlet([1 / len(mean)] * len(mean), log_precision - 1e-3),
        dirichlet(mean, log_precision + 0.5),
        dirichlet(mean[::-1], 1.0),
    ]
    for q in others:
        forward, backward = kl_reference(alphas(p), alphas(q)), kl_reference(alphas(q), alphas(p))
        assert_close(kl_divergence(p, q), forward, rtol=1e-13, atol=ROUNDING)
        assert_close(kl_divergence(q, p), backward, rtol=1e-13, atol=ROUNDING)


@pytest.mark.parametrize(("a", "b"), [(2.5, 1.5), (0.4, 3.0), (40.0, 7.0)])
def test_two_classes_agree_with_integrals_over_the_simplex(a, b):
    mp = MPContext()
    mp.dps = 25  # integrals are slow, and these digits suffice
    c, d = 1.7, 2.2
    first, second = mp.mpf(a), mp.mpf(b)

    def log_density(x, first, second):
        return (first - 1) * mp.log(x) + (second - 1) * mp.log(1 - x) - mp.log(mp.beta(first, second))

    def integral(f):
        return mp.quad(lambda x: f(x) * mp.exp(log_density(x, first, second)), [0, 0.2, 0.5, 0.8, 1])

    q = Dirichlet.from_concentration(torch.tensor([[a, b]], dtype=torch.float64))
    r = Dirichlet.from_concentration(torch.tensor([[c, d]], dtype=torch.float64))
    expected = integral(lambda x: -x * mp.log(x) - (1 - x) * mp.log(1 - x))
    mean = first / (first + second)
    entropy_of_mean = -mean * mp.log(mean) - (1 - mean) * mp.log(1 - mean)
    divergence = integral(lambda x: log_density(x, first, second) - log_density(x, mp.mpf(c), mp.mpf(d)))
    assert_close(q.entropy(), integral(lambda x: -log_density(x, first, second)), rtol=1e-9, atol=1e-9)
    assert_close(q.expected_entropy(), expected, rtol=1e-9, atol=1e-9)
    assert_close(q.mutual_information(), entropy_of_mean - expected, rtol=1e-9, atol=1e-9)
    assert_close(kl_divergence(q, r), divergence, rtol=1e-9, atol=1e-9)


def test_the_uniform_law_has_its_textbook_values():
    two = Dirichlet.from_concentration(torch.ones(1, 2, dtype=torch.float64))
    assert two.entropy().item() == pytest.approx(0.0, abs=1e-15)
    assert two.expected_entropy().item() == pytest.approx(0.5, rel=1e-14)  # nats
    assert two.mutual_information().item() == pytest.approx(math.log(2) - 0.5, rel=1e-14)
    five = Dirichlet.from_concentration(torch.ones(1, 5, dtype=torch.float64))
    assert five.entropy().item() == pytest.approx(-math.log(24), rel=1e-14)
    assert five.log_prob(torch.full((1, 5), -math.log(5), dtype=torch.float64)).item() == pytest.approx(math.log(24))


def test_log_prob_agrees_with_scipy_and_broadcasts_over_particles():
    alpha = torch.tensor([[0.5, 2.0, 3.0], [10.0, 1.0, 0.1]], dtype=torch.float64)
    points = torch.from_numpy(np.random.default_rng(0).dirichlet([1.0, 1.0, 1.0], size=(7, 2)))
    got = Dirichlet.from_concentration(alpha).log_prob(points.log())
    want = [[stats.dirichlet(a).logpdf(point) for a, point in zip(alpha, row, strict=True)] for row in points.numpy()]
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)


@pytest.mark.parametrize("log_precision", [-12.0, 0.0, 14.0, 18.0, 20.0])
@pytest.mark.parametrize("num_classes", [3, 10])
def test_float32_keeps_the_accuracy_of_its_inputs(log_precision, num_classes):
    # torch's own entropy in float32 is two nats off at log-precision 14 and meaningless at 18.
    weights = np.arange(1, num_classes + 1, dtype=np.float32)
    q = dirichlet((weights / weights.sum()).tolist(), log_precision, torch.float32)
    total = mp.exp(mp.mpf(log_precision))
    shares = [mp.mpf(value) for value in q.mean[0].tolist()]
    alpha = [total * share / mp.fsum(shares) for share in shares]
    assert q.entropy().dtype == torch.float32
    assert_close(q.entropy(), entropy_reference(alpha), rtol=3e-7, atol=1e-6)
    assert_close(q.expected_entropy(), expected_entropy_reference(alpha), rtol=3e-7, atol=1e-6 * math.exp(-12))
    assert_close(q.mutual_information(), mutual_information_reference(alpha), rtol=5e-6, atol=0)
    other = dirichlet([1 / num_classes] * num_classes, log_precision - 1, torch.float32)
    assert_close(kl_divergence(q, other), kl_reference(alpha, alphas(other)), rtol=2e-6, atol=0)
    # The point is normalised before its density is taken, as the mean is.
    norm = mp.log(mp.fsum(mp.exp(mp.mpf(value)) for value in q.log_mean[0].tolist()))
    log_point = [mp.mpf(value) - norm for value in q.log_mean[0].tolist()]
    assert_close(q.log_prob(q.log_mean), log_prob_reference(alpha, log_point), rtol=3e-7, atol=1e-6)


# The value itself


def test_parametrisations_agree():
    alpha = torch.tensor([[1e-4, 3.0, 1e5], [2.0, 2.0, 2.0]], dtype=torch.float64)
    total = alpha.sum(-1)
    direct = Dirichlet(alpha / total.unsqueeze(-1), total.log())
    for q in (direct, Dirichlet.from_concentration(alpha), Dirichlet.from_log_concentration(alpha.log())):
        np.testing.assert_allclose(q.concentration, alpha, rtol=1e-13)
        np.testing.assert_allclose(q.mean, alpha / total.unsqueeze(-1), rtol=1e-13)
        np.testing.assert_allclose(q.precision, total, rtol=1e-13)
        assert (len(q), q.num_classes) == (2, 3)


def test_logits_keep_classes_that_float32_probabilities_lose():
    q = Dirichlet.from_logits(torch.tensor([[0.0, -120.0]]), torch.tensor([2.0]))
    assert q.mean[0, 1] == 0
    assert q.log_concentration()[0, 1].item() == pytest.approx(-118.0, abs=1e-5)


def test_rows_of_alpha_sum_to_the_precision_though_a_float32_mean_does_not():
    mean = torch.full((1, 7), 1 / 7) * (1 + 3e-6)
    q = Dirichlet(mean, torch.tensor([20.0]))
    assert abs(mean.double().sum().item() - 1) > 1e-6
    assert q.log_concentration().exp().sum().item() == pytest.approx(math.exp(20), rel=1e-14)


def test_a_class_of_probability_zero_has_a_tiny_concentration_and_not_none():
    q = dirichlet([0.0, 0.5, 0.5], -12.0)
    assert q.log_concentration()[0].tolist() == pytest.approx([-550.0, -12 - math.log(2), -12 - math.log(2)])
    for value in (q.entropy(), q.expected_entropy(), q.mutual_information(), q.log_rsample(100)):
        assert value.isfinite().all()


def test_rows_can_be_picked_and_detached():
    logits = torch.randn(5, 3, requires_grad=True)
    q = Dirichlet.from_logits(logits, torch.arange(5.0))
    for rows in (torch.tensor([3, 1]), slice(1, 4), torch.tensor([True, False, True, False, False])):
        torch.testing.assert_close(q[rows].entropy(), q.entropy()[rows])
    assert q.entropy().requires_grad
    assert not q.detach().entropy().requires_grad
    torch.testing.assert_close(q.detach().log_concentration(), q.log_concentration().detach())


def test_it_is_frozen():
    q = dirichlet([0.5, 0.5], 0.0)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'log_precision'"):
        q.log_precision = torch.zeros(1)


def test_a_mean_and_log_precision_of_different_shapes_are_refused(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users have it
    with pytest.raises(ValueError, match=r"one log-precision for each row.*\(2, 3\).*\(2, 1\)"):
        Dirichlet(torch.full((2, 3), 1 / 3), torch.zeros(2, 1))


def test_shapes_are_checked_in_this_test_run():
    with pytest.raises(jaxtyping.TypeCheckError):
        Dirichlet(torch.full((2, 3), 1 / 3), torch.zeros(2, 1))


@means
def test_marginals_are_beta_even_at_a_corner(mean):
    q = dirichlet(mean, 3.0)
    alpha = alphas(q)
    marginals = q.marginals()
    for k, a in enumerate(alpha):
        others = mp.fsum(alpha[:k] + alpha[k + 1 :])  # 1 - h_k would round to 0 at a vertex
        assert_close(marginals.a[0, k], a, rtol=1e-14, atol=0)
        assert_close(marginals.b[0, k], others, rtol=1e-14, atol=0)


# Laws


@laws
@given(log_concentrations(batch=2), st.randoms(use_true_random=False))
def test_the_order_of_classes_does_not_matter(log_alpha, random):
    order = list(range(log_alpha.shape[1]))
    random.shuffle(order)
    p, q = (Dirichlet.from_log_concentration(row) for row in log_alpha.split(1))
    p_, q_ = (Dirichlet.from_log_concentration(row[:, order]) for row in log_alpha.split(1))
    log_point = log_alpha[:1].log_softmax(-1)
    torch.testing.assert_close(p_.concentration, p.concentration[:, order], rtol=1e-12, atol=0)
    for before, after in [
        (p.entropy(), p_.entropy()),
        (p.expected_entropy(), p_.expected_entropy()),
        (p.mutual_information(), p_.mutual_information()),
        (kl_divergence(p, q), kl_divergence(p_, q_)),
        (q.log_prob(log_point), q_.log_prob(log_point[:, order])),
    ]:
        torch.testing.assert_close(after, before, rtol=1e-12, atol=ROUNDING)


@laws
@given(log_concentrations())
def test_mutual_information_and_expected_entropy_share_the_entropy_of_the_mean(log_alpha):
    q = Dirichlet.from_log_concentration(log_alpha)
    entropy_of_mean = special.entr(special.softmax(log_alpha.numpy(), axis=-1)).sum()
    information, expected = q.mutual_information().item(), q.expected_entropy().item()
    assert 0 <= information <= entropy_of_mean + 1e-13
    assert 0 <= expected <= entropy_of_mean + 1e-13
    assert information + expected == pytest.approx(entropy_of_mean, abs=1e-13)


@laws
@given(log_concentrations(), st.floats(0.1, 5))
def test_flat_ranks_above_sharp(log_alpha, step):
    flat, sharp = Dirichlet.from_log_concentration(log_alpha), Dirichlet.from_log_concentration(log_alpha + step)
    assert flat.mutual_information() >= sharp.mutual_information() - 1e-13
    assert flat.expected_entropy() <= sharp.expected_entropy() + 1e-13


@laws
@given(log_concentrations())
def test_no_law_is_flatter_than_the_uniform_one(log_alpha):
    q = Dirichlet.from_log_concentration(log_alpha)
    uniform = -math.lgamma(log_alpha.shape[1])
    assert q.entropy().item() <= uniform + ROUNDING


@laws
@given(log_concentrations(batch=2))
def test_kl_divergence_is_positive_between_different_laws(log_alpha):
    p, q = (Dirichlet.from_log_concentration(row) for row in log_alpha.split(1))
    assert kl_divergence(p, p).item() == 0
    assert kl_divergence(p, q).item() >= 0
    if kl_reference(alphas(p), alphas(q)) > ROUNDING:
        assert kl_divergence(p, q).item() > 0


def test_kl_divergence_of_a_law_to_itself_is_zero():
    for log_precision in LOG_PRECISIONS:
        q = dirichlet([1e-30, 0.3, 0.7], log_precision)
        assert kl_divergence(q, q).item() == 0


# Sampling


def standard_error(draws: np.ndarray) -> np.ndarray:
    return draws.std(0) / math.sqrt(len(draws))


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0, 1e2, 1e4])
def test_draws_have_the_known_moments(scale):
    alpha = scale * np.array([0.5, 1.0, 2.0])
    total, mean = alpha.sum(), alpha / alpha.sum()
    log_draws = Dirichlet.from_concentration(torch.tensor(alpha)[None]).log_rsample(200_000)[:, 0].numpy()
    draws = np.exp(log_draws)
    centred = draws - mean
    products = centred[:, :, None] * centred[:, None, :]
    covariance = (np.diag(mean) - np.outer(mean, mean)) / (total + 1)
    expected_log = special.digamma(alpha) - special.digamma(total)
    np.testing.assert_allclose(draws.sum(-1), 1, rtol=1e-12)
    assert (abs(centred.mean(0)) < 5 * standard_error(draws)).all()
    assert (abs(products.mean(0) - covariance) < 5 * standard_error(products)).all()
    assert (abs(log_draws.mean(0) - expected_log) < 5 * standard_error(log_draws)).all()


@pytest.mark.parametrize("alpha", [[0.2, 0.7], [1.0, 3.0], [60.0, 25.0]])
def test_draws_of_two_classes_follow_the_beta_law(alpha):
    draws = Dirichlet.from_concentration(torch.tensor([alpha], dtype=torch.float64)).rsample(100_000)[:, 0, 0]
    assert stats.kstest(draws.numpy(), stats.beta(*alpha).cdf).pvalue > 1e-5


def test_draws_at_a_tiny_concentration_are_one_hot():
    # torch's own sampler returns (1/K, .., 1/K) for about half of these draws.
    num_classes, alpha, count = 10, 1e-4, 100_000
    draws = Dirichlet.from_concentration(torch.full((1, num_classes), alpha)).rsample(count)[:, 0]
    one_hot = num_classes * stats.beta(alpha, (num_classes - 1) * alpha).sf(0.999)  # only one class can be so large
    assert one_hot > 0.99
    got = (draws.max(-1).values > 0.999).double().mean().item()
    assert abs(got - one_hot) < 5 * math.sqrt(one_hot * (1 - one_hot) / count)
    winners = draws.argmax(-1).bincount(minlength=num_classes) / count
    assert (abs(winners - 1 / num_classes) < 5 * math.sqrt(0.09 / count)).all()


def test_draws_at_a_vanishing_concentration_pick_a_class_by_the_mean():
    mean, count = np.array([0.1, 0.2, 0.7]), 100_000
    for dtype in (torch.float32, torch.float64):
        log_mean = torch.tensor(mean, dtype=dtype)[None].log()
        log_draws = Dirichlet.from_log_concentration(log_mean + math.log(1e-30)).log_rsample(count)[:, 0]
        assert log_draws.isfinite().all()
        winners = (log_draws.argmax(-1).bincount(minlength=3) / count).numpy()
        assert (log_draws.max(-1).values == 0).all()
        assert (abs(winners - mean) < 5 * np.sqrt(mean * (1 - mean) / count)).all()


@pytest.mark.parametrize("shape", [1e-4, 1e-2, 1.0, 3.0, 1e4, 1e8])
def test_log_gamma_draws_have_the_known_moments(shape):
    draws = log_gamma_rsample(torch.full((200_000,), math.log(shape), dtype=torch.float64)).numpy()
    centred = draws - special.digamma(shape)
    assert abs(centred.mean()) < 5 * standard_error(draws)
    assert abs((centred**2).mean() - special.polygamma(1, shape)) < 5 * standard_error(centred**2)


def first_squared(pi):
    return pi[..., 0] ** 2


def projection_squared(pi):
    return (0.3 * pi[..., 0] - 1.0 * pi[..., 1] + 2.0 * pi[..., 2]) ** 2


def expected_projection_squared(v):
    """E (v . pi)^2 = (sum_k v_k^2 alpha_k + (v . alpha)^2) / (alpha_0 (alpha_0 + 1))."""

    def of_log_alpha(*log_alpha):
        alpha = [mp.exp(value) for value in log_alpha]
        total = mp.fsum(alpha)
        squares = mp.fsum(w * w * a for w, a in zip(v, alpha, strict=True))
        return (squares + mp.fsum(w * a for w, a in zip(v, alpha, strict=True)) ** 2) / (total * (total + 1))

    return of_log_alpha


FUNCTIONS = {"first squared": (first_squared, [1, 0, 0]), "projection": (projection_squared, [0.3, -1.0, 2.0])}


@pytest.mark.parametrize("scale", [2e-3, 0.1, 1.0, 300.0])
@pytest.mark.parametrize(("function", "v"), FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_reparameterised_gradients_have_the_known_mean(function, v, scale):
    log_alpha = np.log(scale * np.array([0.5, 1.0, 2.0]))
    rows = torch.tensor(log_alpha).repeat(300_000, 1).requires_grad_()  # one draw per row, so one gradient per draw
    function(Dirichlet.from_log_concentration(rows).rsample(1)[0]).sum().backward()
    gradients = rows.grad.numpy()
    for k in range(3):
        order = tuple(int(i == k) for i in range(3))
        want = float(mp.diff(expected_projection_squared(v), tuple(log_alpha), order))
        assert abs(gradients[:, k].mean() - want) < 5 * standard_error(gradients[:, k])


@means
@log_precisions
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_over_the_whole_range(mean, log_precision, dtype):
    def gradients(function):
        logits = torch.tensor([mean], dtype=torch.float64).log().to(dtype).requires_grad_()
        g = torch.tensor([log_precision], dtype=dtype, requires_grad=True)
        value = function(Dirichlet.from_logits(logits, g))
        assert value.isfinite().all()
        return torch.cat([part.flatten() for part in torch.autograd.grad(value.mean(), (logits, g))])

    other = dirichlet([1 / len(mean)] * len(mean), 1.0, dtype)
    sharp = torch.tensor([0.0] + [-1e4] * (len(mean) - 1), dtype=dtype)
    for function in (
        Dirichlet.entropy,
        Dirichlet.expected_entropy,
        Dirichlet.mutual_information,
        lambda q: q.log_prob(sharp.expand(5, 1, -1)),
        lambda q: kl_divergence(q, other),
        lambda q: kl_divergence(other, q),
        lambda q: q.rsample(50).square(),
        lambda q: q.log_rsample(50),
    ):
        assert gradients(function).isfinite().all()


@means
@log_precisions
def test_gradients_of_the_information_agree_with_sixty_digits(mean, log_precision):
    q_log_alpha = dirichlet(mean, log_precision).log_concentration()
    atol = 1e-10 if abs(log_precision) < 10 else 1e-13  # torch.trigamma is good to ten digits between 0.1 and 10
    for method, reference in [
        (Dirichlet.expected_entropy, expected_entropy_reference),
        (Dirichlet.mutual_information, mutual_information_reference),
    ]:
        log_alpha = q_log_alpha.clone().requires_grad_()
        method(Dirichlet.from_log_concentration(log_alpha)).sum().backward()
        for k in range(len(mean)):

            def along(value, k=k, reference=reference):
                point = [mp.mpf(v) for v in q_log_alpha[0].tolist()]
                point[k] = value
                return reference([mp.exp(v) for v in point])

            want = mp.diff(along, mp.mpf(q_log_alpha[0, k].item()))
            assert_close(log_alpha.grad[0, k], want, rtol=1e-9, atol=atol)
