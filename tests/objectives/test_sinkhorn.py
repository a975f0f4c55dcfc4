"""The Sinkhorn divergence against SciPy's earth mover's distance, and the laws of a divergence."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from opu.distributions.dirichlet import Dirichlet
from opu.objectives import Sinkhorn
from opu.objectives.sinkhorn import sinkhorn_divergence

PAIRS = {
    "apart": ([8.0, 2.0, 1.0], [1.0, 2.0, 8.0]),
    "near": ([5.0, 4.0, 3.0], [4.0, 5.0, 3.0]),
    "sharp and flat": ([300.0, 300.0, 300.0], [1.0, 1.0, 1.0]),
    "sparse": ([0.2, 0.2, 0.2], [0.1, 0.4, 0.1]),
    "two classes": ([2.0, 6.0], [3.0, 1.0]),
    "ten classes": ([1.0] * 10, [0.3] * 9 + [4.0]),
}
pairs = pytest.mark.parametrize(("left", "right"), PAIRS.values(), ids=PAIRS.keys())
blurs = pytest.mark.parametrize("blur", [0.5, 0.05, 0.005])


def cloud(alpha: list[float], count: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Points ``(S, 1, K)`` on the simplex."""
    return Dirichlet.from_concentration(torch.tensor([alpha], dtype=dtype)).rsample(count)


def slow_transport(left: Tensor, right: Tensor, blur: float, num_steps: int = 600) -> Tensor:
    """Entropic transport cost of two clouds ``(S, K)``, by alternating steps until nothing moves."""
    costs = torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
    f, g = torch.zeros(len(left), dtype=torch.float64), torch.zeros(len(right), dtype=torch.float64)
    for _ in range(num_steps):
        f = -blur * (((g - costs) / blur).logsumexp(1) - math.log(len(right)))
        g = -blur * (((f - costs.mT) / blur).logsumexp(1) - math.log(len(left)))
    return f.mean() + g.mean()


@pairs
@pytest.mark.parametrize("blur", [0.2, 0.05])
def test_it_agrees_with_a_slow_reference(left, right, blur):
    p, q = cloud(left, 40), cloud(right, 40)
    one, two = p[:, 0], q[:, 0]
    among = (slow_transport(one, one, blur) + slow_transport(two, two, blur)) / 2
    want = slow_transport(one, two, blur) - among
    assert sinkhorn_divergence(p, q, blur).item() == pytest.approx(want.item(), rel=0.02, abs=1e-4)


@pairs
def test_it_tends_to_the_earth_movers_distance(left, right):
    p, q = cloud(left, 40), cloud(right, 40)
    want = stats.wasserstein_distance_nd(p[:, 0].numpy(), q[:, 0].numpy())
    errors = [abs(sinkhorn_divergence(p, q, blur).item() - want) for blur in (0.1, 0.02, 0.005)]
    assert errors[2] < 0.03 * want + 0.005
    assert errors[2] < errors[1] < errors[0]


def test_clouds_of_different_sizes_are_compared_by_weight():
    p, q = cloud([4.0, 2.0, 1.0], 30), cloud([1.0, 2.0, 4.0], 45)
    want = stats.wasserstein_distance_nd(p[:, 0].numpy(), q[:, 0].numpy())
    assert sinkhorn_divergence(p, q, 0.005).item() == pytest.approx(want, rel=0.03)
    # Each particle twice is the same distribution.
    torch.testing.assert_close(sinkhorn_divergence(p.repeat(2, 1, 1), q, 0.05), sinkhorn_divergence(p, q, 0.05))


def test_two_points_are_as_far_apart_as_they_are():
    p, q = torch.tensor([[[1.0, 0.0, 0.0]]]).double(), torch.tensor([[[0.0, 0.5, 0.5]]]).double()
    for blur in (0.5, 0.05, 0.005):
        assert sinkhorn_divergence(p, q, blur).item() == pytest.approx(math.sqrt(1.5), abs=1e-4)


@blurs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_cloud_is_at_no_distance_from_itself(blur, dtype):
    p = cloud([0.5, 2.0, 1.0], 50, dtype)
    assert abs(sinkhorn_divergence(p, p.clone(), blur).item()) < 1e-6
    shuffled = p[torch.randperm(50)]
    assert abs(sinkhorn_divergence(p, shuffled, blur).item()) < (1e-6 if dtype == torch.float64 else 1e-4)


@pairs
@blurs
def test_it_is_symmetric_and_never_negative(left, right, blur):
    p, q = cloud(left, 30), cloud(right, 25)
    there, back = sinkhorn_divergence(p, q, blur), sinkhorn_divergence(q, p, blur)
    torch.testing.assert_close(there, back, rtol=1e-9, atol=1e-12)
    assert there.item() > -1e-6


@blurs
def test_it_does_not_depend_on_the_order_of_points_or_classes(blur):
    p, q = cloud([0.5, 2.0, 1.0], 20), cloud([1.0, 1.0, 1.0], 20)
    value = sinkhorn_divergence(p, q, blur)
    torch.testing.assert_close(sinkhorn_divergence(p[torch.randperm(20)], q[torch.randperm(20)], blur), value)
    torch.testing.assert_close(sinkhorn_divergence(p[..., [2, 0, 1]], q[..., [2, 0, 1]], blur), value)


def test_a_batch_is_as_its_rows():
    p, q = (
        torch.cat([cloud(alpha, 20) for alpha in column], 1) for column in zip(*list(PAIRS.values())[:4], strict=True)
    )
    together = sinkhorn_divergence(p, q, 0.05)
    alone = torch.cat([sinkhorn_divergence(p[:, i : i + 1], q[:, i : i + 1], 0.05) for i in range(4)])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("blur", [0.5, 0.1])
def test_the_gradient_is_that_of_finite_differences(blur):
    p, q = cloud([2.0, 3.0, 4.0], 6), cloud([4.0, 3.0, 2.0], 5)
    samples = q.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(sinkhorn_divergence(p, samples, blur).sum(), samples)
    step = 1e-5
    numeric = torch.zeros_like(q)
    for index in range(q.numel()):
        shift = torch.zeros(q.numel(), dtype=torch.float64)
        shift[index] = step
        up, down = (sinkhorn_divergence(p, q + sign * shift.view_as(q), blur) for sign in (1, -1))
        numeric.view(-1)[index] = ((up - down) / (2 * step)).item()
    torch.testing.assert_close(gradient, numeric, rtol=0.01, atol=0.01 * numeric.abs().max().item())


def test_the_gradient_is_finite_where_points_coincide():
    p = cloud([1.0, 1.0, 1.0], 10)
    samples = p.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(sinkhorn_divergence(p, samples, 0.05).sum(), samples)
    assert gradient.isfinite().all()
    assert gradient.abs().max() < 1e-3  # the cloud is where it should be


def test_the_objective_compares_draws_of_the_student():
    q = Dirichlet.from_concentration(torch.tensor([[8.0, 2.0, 1.0], [1.0, 2.0, 8.0]]))
    log_particles = Dirichlet.from_concentration(torch.tensor([[1.0, 2.0, 8.0], [1.0, 2.0, 8.0]])).log_rsample(60)
    objective = Sinkhorn(blur=0.02, num_samples=80)
    torch.manual_seed(5)
    value = objective(torch.zeros(2, 1), log_particles, q)
    torch.manual_seed(5)
    torch.testing.assert_close(value, sinkhorn_divergence(log_particles.exp(), q.rsample(80), 0.02))
    assert value[0] > 0.5 > 0.1 > value[1]


def test_the_gradient_moves_the_student_towards_its_particles():
    log_particles = Dirichlet.from_concentration(torch.tensor([[1.0, 2.0, 8.0]])).log_rsample(50).requires_grad_()
    logits, log_precision = torch.zeros(1, 3, requires_grad=True), torch.tensor([2.4], requires_grad=True)
    Sinkhorn()(torch.zeros(1, 1), log_particles, Dirichlet.from_logits(logits, log_precision)).sum().backward()
    assert log_particles.grad is None
    assert logits.grad[0, 2] < 0 < logits.grad[0, 0]
    assert log_precision.grad.isfinite().all()


@pytest.mark.parametrize("blur", [0.0, -0.05, math.nan])
def test_a_blur_that_is_not_positive_is_refused(blur):
    with pytest.raises(ValueError, match="blur must be positive and finite; got"):
        Sinkhorn(blur=blur)
