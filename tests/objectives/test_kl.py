"""Forward KL as a likelihood, and the arithmetic by which objectives combine."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from mpmath.ctx_mp import MPContext
from scipy import special, stats
from torch import Tensor

import opu
from opu.distributions.dirichlet import Dirichlet, kl_divergence
from opu.distributions.kernels import Polynomial
from opu.objectives.base import BaseObjective, Objective, WeightedSum
from opu.objectives.exact_mmd import ExactMMD
from opu.objectives.kl import ClippedKL, CrossEntropy, ForwardKL

mp = MPContext()
mp.dps = 50

NO_INPUT = torch.zeros(1, 1)  # neither the KL nor the MMD looks at the inputs
ALPHAS = [[0.5, 2.0, 3.0], [10.0, 1.0, 0.1], [400.0, 300.0, 1e-3]]


def dirichlet(*rows: list[float]) -> Dirichlet:
    return Dirichlet.from_concentration(torch.tensor(rows, dtype=torch.float64))


def particles_from(alpha: list[float], count: int, batch: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).dirichlet(alpha, size=(count, batch)))


def expected_log(*rows: list[float]) -> Tensor:
    """E ln pi of each Dirichlet, as though it were one particle: all that the forward KL asks of a teacher."""
    alpha = np.array(rows)
    return torch.from_numpy(special.digamma(alpha) - special.digamma(alpha.sum(-1, keepdims=True)))[None]


# Forward KL


def test_it_is_the_mean_negative_log_density_of_the_particles():
    particles = particles_from([1.0, 1.0, 1.0], 40, 3)
    got = ForwardKL()(NO_INPUT, particles.log(), dirichlet(*ALPHAS))
    for value, alpha, cloud in zip(got, ALPHAS, particles.permute(1, 0, 2).numpy(), strict=True):
        want = -np.mean([stats.dirichlet(alpha).logpdf(particle / particle.sum()) for particle in cloud])
        assert value.item() == pytest.approx(want, rel=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_precision", [-12.0, 0.0, 7.0, 20.0])
def test_confident_particles_give_the_right_value_and_finite_gradients(log_precision, dtype):
    # exp(-1e4) is 0, and its logarithm would be minus infinity.
    log_particles = torch.tensor([[0.0, -1e4, -2e4], [-1e4, 0.0, -1e4]], dtype=dtype).view(2, 1, 3)
    logits = torch.tensor([[0.0, -3.0, -60.0]], dtype=dtype, requires_grad=True)
    g = torch.tensor([log_precision], dtype=dtype, requires_grad=True)
    q = Dirichlet.from_logits(logits, g)
    value = ForwardKL()(NO_INPUT, log_particles, q)

    weights = [mp.exp(mp.mpf(v)) for v in logits[0].tolist()]
    alpha = [mp.exp(mp.mpf(log_precision)) * w / mp.fsum(weights) for w in weights]
    mean_log = [mp.mpf(v) for v in (-5e3, -5e3, -1.5e4)]
    likelihood = mp.fsum((a - 1) * v for a, v in zip(alpha, mean_log, strict=True))
    want = mp.fsum(map(mp.loggamma, alpha)) - mp.loggamma(mp.fsum(alpha)) - likelihood
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    assert value.item() == pytest.approx(float(want), rel=tolerance)
    for gradient in torch.autograd.grad(value.sum(), (logits, g)):
        assert gradient.isfinite().all()


def test_the_minimum_is_the_true_dirichlet():
    log_alpha = torch.tensor(ALPHAS, dtype=torch.float64).log().requires_grad_()
    value = ForwardKL()(NO_INPUT, expected_log(*ALPHAS), Dirichlet.from_log_concentration(log_alpha))
    want = [stats.dirichlet(alpha).entropy() for alpha in ALPHAS]  # the KL without the teacher's entropy
    np.testing.assert_allclose(value.detach(), want, rtol=1e-10)
    (gradient,) = torch.autograd.grad(value.sum(), log_alpha)
    np.testing.assert_allclose(gradient, 0, atol=1e-9)
    for _ in range(20):
        moved = Dirichlet.from_log_concentration(log_alpha.detach() + 0.1 * torch.randn(3, 3))
        assert (ForwardKL()(NO_INPUT, expected_log(*ALPHAS), moved) > value).all()


def test_its_excess_over_the_teachers_entropy_is_the_divergence():
    p, q = dirichlet(*ALPHAS), dirichlet([1.0, 1.0, 1.0], [3.0, 0.2, 7.0], [90.0, 80.0, 1e-2])
    excess = ForwardKL()(NO_INPUT, expected_log(*ALPHAS), q) - p.entropy()
    torch.testing.assert_close(excess, kl_divergence(p, q), rtol=1e-9, atol=0)


def test_its_gradient_at_the_truth_vanishes_on_average_with_one_particle():
    alpha, count = [0.8, 2.0, 3.0], 100_000
    log_alpha = torch.tensor(alpha, dtype=torch.float64).log().repeat(count, 1).requires_grad_()
    particles = particles_from(alpha, 1, count)
    value = ForwardKL()(NO_INPUT, particles.log(), Dirichlet.from_log_concentration(log_alpha)).sum()
    gradients = torch.autograd.grad(value, log_alpha)[0].numpy()
    assert (abs(gradients.mean(0)) < 5 * gradients.std(0) / math.sqrt(count)).all()


def test_it_is_linear_in_the_teachers_measure():
    log_particles, q = particles_from([1.0, 1.0, 1.0], 12, 3).log(), dirichlet(*ALPHAS)
    parts = [ForwardKL()(NO_INPUT, part, q) for part in log_particles.split(3)]
    torch.testing.assert_close(ForwardKL()(NO_INPUT, log_particles, q), torch.stack(parts).mean(0), rtol=1e-12, atol=0)


def test_the_order_of_classes_does_not_matter_to_it():
    log_particles, order = particles_from([1.0, 1.0, 1.0], 5, 3).log(), [2, 0, 1]
    swapped = dirichlet(*[[alpha[k] for k in order] for alpha in ALPHAS])
    before = ForwardKL()(NO_INPUT, log_particles, dirichlet(*ALPHAS))
    torch.testing.assert_close(ForwardKL()(NO_INPUT, log_particles[..., order], swapped), before, rtol=1e-11, atol=0)


# Large precisions


def sharp_case(log_precision: float, away: float = 1.0) -> tuple[list[float], Tensor]:
    """Logits, and particles that lie about as far from their softmax as draws of this precision do."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(20, 1, 3, generator=generator, dtype=torch.float64)
    logits = [0.3, -1.0, 0.0]
    return logits, (torch.tensor(logits) + away * math.exp(-log_precision / 2) * noise).log_softmax(-1)


def forward_kl_reference(logits, log_precision, log_particles: Tensor, normalise: bool):
    """The value for one input in hundreds of digits."""
    mp = MPContext()
    mp.dps = 400
    total = mp.exp(mp.mpf(log_precision))
    weights = [mp.exp(mp.mpf(value)) for value in logits]
    alpha = [total * weight / mp.fsum(weights) for weight in weights]
    rows = [[mp.mpf(value) for value in row] for row in log_particles[:, 0].tolist()]
    if normalise:
        norms = [mp.log(mp.fsum(map(mp.exp, row))) for row in rows]
        rows = [[value - norm for value in row] for row, norm in zip(rows, norms, strict=True)]
    mean_log = [mp.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    likelihood = mp.fsum((a - 1) * m for a, m in zip(alpha, mean_log, strict=True))
    value = mp.fsum(map(mp.loggamma, alpha)) - mp.loggamma(total) - likelihood
    slope = mp.fsum(a * (mp.digamma(a) - mp.digamma(total) - m) for a, m in zip(alpha, mean_log, strict=True))
    return value, slope


@pytest.mark.parametrize("objective", [ForwardKL(), ClippedKL(1e300)], ids=["forward", "clipped"])
@pytest.mark.parametrize("log_precision", [0.0, 12.0, 20.0, 26.0, 33.0])
def test_value_and_slope_agree_with_hundreds_of_digits_at_large_precisions(log_precision, objective):
    logits, log_particles = sharp_case(log_precision)
    for dtype in (torch.float64, torch.float32):
        # float32 logits are not those of the reference, which counts as much as a distance does: they are kept in float64.
        g = torch.tensor([log_precision], dtype=torch.float64, requires_grad=True)
        q = Dirichlet.from_logits(torch.tensor([logits], dtype=torch.float64), g)
        value = objective(NO_INPUT, log_particles.to(dtype), q)
        (slope,) = torch.autograd.grad(value.sum(), g)
        single = dtype == torch.float32
        want, want_slope = forward_kl_reference(logits, log_precision, log_particles.to(dtype), normalise=single)
        rounding = 1e-12 + 2e-15 * math.exp(log_precision)  # of the float64 particles and of their mean
        assert abs(value.item() - want) < rounding
        assert abs(slope.item() - want_slope) < rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("log_precision", [20.0, 33.0, 80.0, 100.0, 400.0, 710.0, 800.0])
def test_the_clipped_gradient_keeps_its_direction_whatever_the_precision(log_precision, dtype):
    logits, log_particles = sharp_case(0.0, away=0.3)  # far from a student as sharp as this

    def step(precision):
        g = torch.tensor([precision], dtype=dtype, requires_grad=True)
        z = torch.tensor([logits], dtype=dtype, requires_grad=True)
        value = ClippedKL()(NO_INPUT, log_particles.to(dtype), Dirichlet.from_logits(z, g))
        assert value.isfinite().all()
        return torch.cat([part.flatten() for part in torch.autograd.grad(value.sum(), (z, g))])

    torch.testing.assert_close(step(log_precision), step(20.0), rtol=1e-5, atol=1e-6)
    assert step(log_precision)[-1] > 0.1  # the precision must fall


@pytest.mark.parametrize("log_precision", [20.0, 100.0, 690.0, 710.0, 800.0])
def test_the_forward_kl_is_a_number_in_float64_whatever_the_precision(log_precision):
    logits, log_particles = sharp_case(0.0)
    g = torch.tensor([log_precision], dtype=torch.float64, requires_grad=True)
    z = torch.tensor([logits], dtype=torch.float64, requires_grad=True)
    value = ForwardKL()(NO_INPUT, log_particles, Dirichlet.from_logits(z, g))
    assert value.isfinite().all()
    assert all(part.isfinite().all() for part in torch.autograd.grad(value.sum(), (z, g)))


# Clipped KL


def gradient(objective: Objective, log_alpha: Tensor, mean_log: Tensor) -> tuple[Tensor, Tensor]:
    log_alpha = log_alpha.clone().requires_grad_()
    value = objective(NO_INPUT, mean_log[None], Dirichlet.from_log_concentration(log_alpha))
    (found,) = torch.autograd.grad(value.sum(), log_alpha)
    return value.detach(), found


def random_case(seed: int, rows: int = 20, classes: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    log_alpha = 4 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return log_alpha, 10 * torch.randn(rows, classes, generator=generator, dtype=torch.float64).log_softmax(-1)


@pytest.mark.parametrize("seed", range(3))
def test_a_clipped_gradient_is_the_gradient_shortened_to_the_bound_in_the_same_direction(seed):
    log_alpha, mean_log = random_case(seed)
    value, full = gradient(ForwardKL(), log_alpha, mean_log)
    clipped_value, short = gradient(ClippedKL(3.0), log_alpha, mean_log)
    torch.testing.assert_close(clipped_value, value)
    length = full.norm(dim=-1)
    assert (length > 3).any()  # else nothing is tested
    torch.testing.assert_close(short.norm(dim=-1), length.clamp(max=3), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(short * length.unsqueeze(-1), full * length.clamp(max=3).unsqueeze(-1))


def test_a_bound_that_nothing_reaches_changes_nothing():
    log_alpha, mean_log = random_case(0)
    torch.testing.assert_close(
        gradient(ClippedKL(1e12), log_alpha, mean_log), gradient(ForwardKL(), log_alpha, mean_log)
    )


def test_a_clipped_gradient_vanishes_where_that_of_the_kl_does():
    alpha = torch.tensor(ALPHAS, dtype=torch.float64)
    _, found = gradient(ClippedKL(), alpha.log(), expected_log(*ALPHAS)[0])
    torch.testing.assert_close(found, torch.zeros_like(found), rtol=0, atol=1e-9)


def test_without_gradients_clipped_kl_is_the_kl():
    log_alpha, mean_log = random_case(1)
    q = Dirichlet.from_log_concentration(log_alpha)
    with torch.no_grad():
        assert torch.equal(ClippedKL()(NO_INPUT, mean_log[None], q), ForwardKL()(NO_INPUT, mean_log[None], q))


def test_far_inputs_do_not_drag_the_precision_of_all_others_down():
    """Half of the inputs are near, with particles that agree; half are far, where members are sure and disagree.

    With the plain KL the far ones, whose gradients are hundreds of times as long, drive the precision of all of them down.
    """
    torch.manual_seed(0)
    near, far = torch.randn(64, 4), 8 * torch.randn(64, 4)

    def teacher(x: Tensor, num_particles: int) -> Tensor:
        weights = torch.tensor([1.0, -1.0, 0.5, 0.0]) + 0.1 * torch.randn(num_particles, 4)
        logit = weights @ x.T
        return torch.stack([torch.zeros_like(logit), logit], -1).log_softmax(-1)

    def fitted(objective: str) -> Tensor:
        torch.manual_seed(1)
        student = opu.students.mlp(4, 2, (32,), link="sigmoid(-2, 12)").start_precision_at(4.0)
        x = torch.cat([near, far])
        recipe = opu.Recipe(objective=objective, augment=None, epochs=400, learning_rate=2e-2, start_from_teacher=False)
        opu.distill(teacher, student, x, recipe=recipe, held_out=0, progress=False)
        with torch.no_grad():
            return student.eval()(near).log_precision

    truth = opu.maximum_likelihood(teacher(near, 2000)).log_precision
    error = {objective: float((fitted(objective) - truth).abs().median()) for objective in ("kl", "clipped_kl")}
    assert error["clipped_kl"] < 0.5
    assert error["kl"] > 2 * error["clipped_kl"]


@pytest.mark.parametrize("max_norm", [0, -1.0, math.inf, math.nan])
def test_a_bound_that_is_not_positive_and_finite_is_refused(max_norm):
    with pytest.raises(ValueError, match="max_norm must be positive and finite; got"):
        ClippedKL(max_norm)


# Arithmetic


class Learning(BaseObjective):
    """Counts its calls, as a critic would count its steps."""

    def __init__(self, steps: int = 0) -> None:
        self.steps = steps

    def __call__(self, x: Tensor, log_particles: Tensor, q: Dirichlet) -> Tensor:
        self.steps += 1
        return q.log_precision

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state) -> None:
        self.steps = state["steps"]


@pytest.fixture
def log_particles() -> Tensor:
    return particles_from([1.0, 1.0, 1.0], 20, 3).log()


@pytest.fixture
def q() -> Dirichlet:
    return dirichlet(*ALPHAS)


def test_the_robust_recipe_as_the_documentation_writes_it(log_particles, q):
    objective = 0.1 * ForwardKL() + 10 * ExactMMD()
    want = 0.1 * ForwardKL()(NO_INPUT, log_particles, q) + 10 * ExactMMD()(NO_INPUT, log_particles, q)
    torch.testing.assert_close(objective(NO_INPUT, log_particles, q), want, rtol=1e-14, atol=0)
    assert repr(objective) == "0.1 * ForwardKL + 10 * ExactMMD(Exponential(temperature=0.5))"


def test_weighted_sums_are_sums_with_weights(log_particles, q):
    kl, mmd = (f(NO_INPUT, log_particles, q) for f in (ForwardKL(), ExactMMD(Polynomial(2))))
    for objective, want in [
        (0.1 * ForwardKL() + 10.0 * ExactMMD(Polynomial(2)), 0.1 * kl + 10 * mmd),
        (2.0 * (ForwardKL() + 3.0 * ExactMMD(Polynomial(2))), 2 * kl + 6 * mmd),
        (ForwardKL() + ExactMMD(Polynomial(2)) + ForwardKL(), 2 * kl + mmd),
        (0.5 * (4.0 * ForwardKL()), 2 * kl),
    ]:
        torch.testing.assert_close(objective(NO_INPUT, log_particles, q), want, rtol=1e-13, atol=1e-13)
        assert isinstance(objective, WeightedSum)
        assert isinstance(objective, Objective)


def test_a_plain_function_can_be_a_term(log_particles, q):
    objective = ForwardKL() + (lambda x, log_particles, q: q.log_precision)
    want = ForwardKL()(NO_INPUT, log_particles, q) + q.log_precision
    torch.testing.assert_close(objective(NO_INPUT, log_particles, q), want, rtol=1e-14, atol=0)
    assert objective.state_dict() == {}


def test_gradients_of_a_sum_are_sums_of_gradients(log_particles):
    log_alpha = torch.tensor(ALPHAS, dtype=torch.float64).log().requires_grad_()

    def gradient(objective):
        value = objective(NO_INPUT, log_particles, Dirichlet.from_log_concentration(log_alpha))
        return torch.autograd.grad(value.sum(), log_alpha)[0]

    want = 0.1 * gradient(ForwardKL()) + 10 * gradient(ExactMMD())
    torch.testing.assert_close(gradient(0.1 * ForwardKL() + 10.0 * ExactMMD()), want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_a_weight_that_is_not_positive_is_refused(weight):
    with pytest.raises(
        ValueError, match=f"weight of an objective must be positive and finite; got {weight} for ForwardKL"
    ):
        weight * ForwardKL()
    with pytest.raises(ValueError, match="weight of an objective must be positive"):
        WeightedSum([(1.0, ExactMMD()), (weight, ForwardKL())])


def test_names_are_the_expressions_that_make_them():
    assert repr(ForwardKL()) == "ForwardKL"
    assert repr(2.0 * (ForwardKL() + 0.25 * ForwardKL())) == "2 * ForwardKL + 0.5 * ForwardKL"


def test_only_objectives_that_learn_have_a_state(log_particles, q):
    learning = Learning()
    objective = ForwardKL() + 2.0 * learning + ExactMMD()
    objective(NO_INPUT, log_particles, q)
    objective(NO_INPUT, log_particles, q)
    assert objective.state_dict() == {"1": {"steps": 2}}
    assert (0.1 * ForwardKL() + ExactMMD()).state_dict() == {}
    fresh = Learning()
    (ForwardKL() + 2.0 * fresh + ExactMMD()).load_state_dict(objective.state_dict())
    assert fresh.steps == 2


def test_an_objective_that_does_not_learn_takes_back_only_an_empty_state():
    ForwardKL().load_state_dict({})
    with pytest.raises(AssertionError, match="ForwardKL has no networks"):
        ForwardKL().load_state_dict({"steps": 2})


def test_the_cross_entropy_is_that_of_the_average_particle_and_leaves_the_precision_alone():
    logits, g = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, dtype=torch.float64, requires_grad=True)
    logits.requires_grad_()
    particles = torch.randn(7, 5, 4, dtype=torch.float64).log_softmax(-1)
    value = CrossEntropy()(NO_INPUT, particles, Dirichlet.from_logits(logits, g))
    expected = torch.nn.functional.cross_entropy(logits, particles.exp().mean(0), reduction="none")
    torch.testing.assert_close(value, expected)
    pull = torch.autograd.grad(value.sum(), (logits, g), allow_unused=True)
    torch.testing.assert_close(pull[0], logits.softmax(-1) - particles.exp().mean(0))
    assert pull[1] is None or not bool(pull[1].any())


@pytest.mark.parametrize("log_precision", [680.0, 690.0, 700.0, 800.0])
def test_a_contradicted_precision_is_pushed_down_however_large(log_precision):
    g = torch.tensor([log_precision], dtype=torch.float64, requires_grad=True)
    q = Dirichlet.from_logits(torch.tensor([[1.0, 0.0, -1.0]], dtype=torch.float64), g)
    particles = torch.tensor([[[-2.0, -0.5, -1.0]], [[0.0, -3.0, -1.0]]], dtype=torch.float64).log_softmax(-1)
    ForwardKL()(None, particles, q).sum().backward()
    assert float(g.grad) > 1e200


# Logistic-normals


def test_for_a_logistic_normal_it_is_the_gaussian_likelihood_of_the_log_ratios():
    q = opu.LogisticNormal(torch.randn(3, 4).double(), torch.randn(3, 4).double() / 3, torch.randn(3, 4, 2).double())
    log_particles = q.log_rsample(50)
    got = ForwardKL()(NO_INPUT, log_particles, q)
    torch.testing.assert_close(got, -q.log_ratio_log_prob(log_particles).mean(0))
    # The moments of the fitted Gaussian are the optimum, so that any change makes it worse.
    best = opu.fit_logistic_normal(log_particles)
    wider = opu.LogisticNormal(best.location, best.log_scale + 0.1, 1.1 * best.factors)
    assert (ForwardKL()(NO_INPUT, log_particles, best) < ForwardKL()(NO_INPUT, log_particles, wider)).all()
    assert (ForwardKL()(NO_INPUT, log_particles, best) < got).all()


def test_particles_that_contradict_a_sharp_logistic_normal_give_finite_gradients():
    parameters = [torch.zeros(1, 3), torch.full((1, 3), -10.0), torch.zeros(1, 3, 1)]
    parameters = [each.requires_grad_() for each in parameters]
    log_particles = torch.tensor([[0.0, -1e3, -2e3], [-1e3, 0.0, -1e3]]).view(2, 1, 3)
    ForwardKL()(NO_INPUT, log_particles, opu.LogisticNormal(*parameters)).sum().backward()
    assert all(each.grad.isfinite().all() for each in parameters)
