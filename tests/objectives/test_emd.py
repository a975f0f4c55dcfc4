"""The critic's earth mover's distance against SciPy's, and what a training step may and may not touch."""

import copy
import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from opu.distributions.dirichlet import Dirichlet
from opu.objectives import Critic, CriticEMD, ExactMMD, ForwardKL, WeightedSum


def coins(*means: float, precision: float = 60.0) -> Dirichlet:
    """Dirichlets over two classes, which lie on a line."""
    mean = torch.tensor(means)
    return Dirichlet(torch.stack([mean, 1 - mean], -1), torch.full((len(means),), math.log(precision)))


def trained(objective: CriticEMD, x: Tensor, log_particles: Tensor, q: Dirichlet, calls: int) -> CriticEMD:
    for _ in range(calls):
        objective(x, log_particles, q)
    return objective


@torch.no_grad()
def average(objective: CriticEMD, x: Tensor, log_particles: Tensor, q: Dirichlet) -> Tensor:
    """The value over many draws from the student, by a critic that is left alone."""
    return torch.stack([objective(x, log_particles, q) for _ in range(30)]).mean(0)


def weights(objective: CriticEMD) -> dict[str, Tensor]:
    return {name: w.clone() for name, w in objective.critic.state_dict().items()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def distance(log_particles: Tensor, q: Dirichlet, row: int) -> float:
    return stats.wasserstein_distance_nd(log_particles[:, row].exp().numpy(), q.rsample(100)[:, row].numpy())


# The value


@pytest.mark.parametrize("seed", [0, 1])
def test_the_critic_learns_the_earth_movers_distance_on_a_line(seed):
    # The sign of the critic's slope is all there is to find, and a random critic has it wrong half of the time.
    torch.manual_seed(seed)
    q, x = coins(0.7), torch.zeros(1, 2)
    log_particles = coins(0.3).log_rsample(60)
    objective = trained(CriticEMD(hidden=64), x, log_particles, q, calls=50)
    want = distance(log_particles, q, 0)
    assert want == pytest.approx(0.4 * math.sqrt(2), abs=0.05)
    assert average(objective, x, log_particles, q).item() == pytest.approx(want, rel=0.15)


def test_the_critic_learns_the_earth_movers_distance_on_a_triangle():
    precision = torch.full((1,), math.log(60.0))
    q = Dirichlet(torch.tensor([[0.6, 0.2, 0.2]]), precision)
    log_particles = Dirichlet(torch.tensor([[0.2, 0.2, 0.6]]), precision).log_rsample(60)
    x = torch.zeros(1, 2)
    objective = trained(CriticEMD(hidden=64), x, log_particles, q, calls=50)
    assert average(objective, x, log_particles, q).item() == pytest.approx(distance(log_particles, q, 0), rel=0.15)


def test_two_clouds_of_one_law_are_near():
    q, x = coins(0.4), torch.zeros(1, 2)
    log_particles = q.log_rsample(100)
    objective = trained(CriticEMD(hidden=64), x, log_particles, q, calls=50)
    assert abs(average(objective, x, log_particles, q).item()) < 0.02


def test_the_critic_sees_the_input():
    # Opposite clouds: a critic blind to x would have one slope for both, and a value near 0 on average.
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    q, log_particles = coins(0.7, 0.3), coins(0.3, 0.7).log_rsample(100)
    objective = trained(CriticEMD(hidden=64), x, log_particles, q, calls=80)
    want = [distance(log_particles, q, row) for row in (0, 1)]
    assert average(objective, x, log_particles, q).tolist() == pytest.approx(want, rel=0.15)
    points = torch.tensor([[0.2, 0.8], [0.8, 0.2]]).unsqueeze(1).expand(-1, 2, -1)
    with torch.no_grad():
        rise = objective.critic(x, points).diff(dim=0)[0]  # along the line, for each input
    assert rise[0] < 0 < rise[1]


def test_one_value_per_input_whatever_the_shape_of_the_input():
    q, log_particles = coins(0.2, 0.5, 0.8), coins(0.5, 0.5, 0.5).log_rsample(20)
    images = torch.randn(3, 1, 4, 4)
    rows = images.flatten(1)
    objective = CriticEMD(hidden=16, num_samples=30)
    assert objective(images, log_particles, q).shape == (3,)
    with torch.no_grad():
        torch.testing.assert_close(
            objective.critic(rows, log_particles.exp()), objective.critic(images, log_particles.exp())
        )


def test_the_critic_is_the_papers_three_networks():
    # NN3 reads NN1(x) and NN2(point) concatenated; stored as two blocks, it is the same linear map.
    critic, x, points = Critic(3, 2, hidden=5), torch.randn(4, 3), torch.rand(6, 4, 2)
    joined = torch.cat([critic.on_x(x).expand(6, -1, -1), critic.on_point(points)], -1)
    first = torch.cat([critic.mix_x.weight, critic.mix_point.weight], 1)
    want = critic.score(joined @ first.mT + critic.mix_x.bias).squeeze(-1)
    torch.testing.assert_close(critic(x, points), want)


def test_a_network_of_the_users_own_reads_the_input():
    x_net = torch.nn.Linear(3, 5)
    critic, x, points = Critic(3, 2, hidden=5, x_net=x_net), torch.randn(4, 3), torch.rand(6, 4, 2)
    before = critic(x, points)
    with torch.no_grad():
        x_net.weight.zero_()
        x_net.bias.zero_()
    blind = critic(x, points)
    assert not torch.allclose(before, blind)
    torch.testing.assert_close(critic(x + 1, points), blind)


# What a call may touch


def test_without_gradients_the_critic_stays_as_it_was():
    q, x, log_particles = coins(0.7, 0.2), torch.randn(2, 3), coins(0.3, 0.6).log_rsample(30)
    objective = trained(CriticEMD(hidden=16), x, log_particles, q, calls=2)
    before, optimizer = weights(objective), copy.deepcopy(objective.optimizer.state_dict())
    with torch.no_grad():
        values = [objective(x, log_particles, q) for _ in range(3)]
    assert same(weights(objective), before)
    assert all(
        torch.equal(objective.optimizer.state_dict()["state"][i][name], moment)
        for i, part in optimizer["state"].items()
        for name, moment in part.items()
    )
    assert not values[0].requires_grad
    objective(x, log_particles, q)
    assert not same(weights(objective), before)


@pytest.mark.parametrize("critic_steps", [1, 4])
def test_each_call_takes_as_many_inner_steps_as_was_said(critic_steps):
    q, x, log_particles = coins(0.7), torch.zeros(1, 2), coins(0.3).log_rsample(10)
    objective = trained(CriticEMD(critic_steps=critic_steps, hidden=8), x, log_particles, q, calls=3)
    steps = {part["step"].item() for part in objective.optimizer.state_dict()["state"].values()}
    assert steps == {3 * critic_steps}


def test_the_gradient_reaches_the_student_and_not_the_particles():
    logits = torch.randn(2, 3, requires_grad=True)
    log_precision = torch.zeros(2, requires_grad=True)
    log_particles = Dirichlet.from_logits(torch.randn(2, 3), torch.ones(2)).log_rsample(20).requires_grad_()
    x = torch.randn(2, 4)
    objective = CriticEMD(hidden=16)
    value = objective(x, log_particles, Dirichlet.from_logits(logits, log_precision))
    kept = {name: w.grad.clone() for name, w in objective.critic.named_parameters()}
    value.sum().backward()
    assert log_particles.grad is None
    for gradient in (logits.grad, log_precision.grad):
        assert gradient.isfinite().all()
        assert (gradient != 0).any()
    # The student's step leaves the critic's gradients alone, and the critic ready to be trained again.
    assert same({name: w.grad for name, w in objective.critic.named_parameters()}, kept)
    assert all(w.requires_grad for w in objective.critic.parameters())


def test_following_the_gradient_moves_the_student_to_its_particles():
    log_particles, x = coins(0.3).log_rsample(100), torch.zeros(1, 2)
    logits = torch.tensor([[0.85, 0.0]], requires_grad=True)  # a mean of 0.7
    objective = trained(CriticEMD(hidden=64), x, log_particles, coins(0.7), calls=50)
    optimizer = torch.optim.SGD([logits], 0.5)
    before = abs(logits.softmax(-1)[0, 0].item() - 0.3)
    for _ in range(5):
        optimizer.zero_grad()
        objective(x, log_particles, Dirichlet.from_logits(logits, torch.full((1,), math.log(60.0)))).sum().backward()
        optimizer.step()
    assert abs(logits.softmax(-1)[0, 0].item() - 0.3) < before - 0.1


# State


def test_a_restored_critic_goes_on_bit_by_bit():
    q, x, log_particles = coins(0.7, 0.2), torch.randn(2, 3), coins(0.3, 0.6).log_rsample(30)
    first = trained(CriticEMD(hidden=16), x, log_particles, q, calls=3)
    state = copy.deepcopy(first.state_dict())
    second = CriticEMD(hidden=16)
    second.load_state_dict(state)
    assert same(weights(second), weights(first))
    for _ in range(2):
        values = []
        for objective in (first, second):
            torch.manual_seed(1)
            values.append(objective(x, log_particles, q))
        assert torch.equal(values[0], values[1])
        assert same(weights(second), weights(first))


def test_an_unused_critic_has_no_state():
    objective = CriticEMD()
    assert objective.state_dict() == {}
    objective.load_state_dict({})
    assert objective.critic is None


def test_a_sum_keeps_the_state_of_the_critic_within():
    q, x, log_particles = coins(0.7), torch.zeros(1, 2), coins(0.3).log_rsample(20)
    total = ForwardKL() + 2.0 * CriticEMD(hidden=16) + ExactMMD()
    assert isinstance(total, WeightedSum)
    total(x, log_particles, q)
    state = copy.deepcopy(total.state_dict())
    assert state.keys() == {"1"}
    other = ForwardKL() + 2.0 * CriticEMD(hidden=16) + ExactMMD()
    other.load_state_dict(state)
    assert same(weights(other.terms[1][1]), weights(total.terms[1][1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_critic_works_in_the_students_dtype(dtype):
    mean = torch.tensor([[0.7, 0.3]], dtype=dtype)
    q = Dirichlet(mean, torch.full((1,), 3.0, dtype=dtype))
    objective = CriticEMD(hidden=8)
    value = objective(torch.zeros(1, 2, dtype=torch.uint8), coins(0.3).log_rsample(10), q)
    assert value.dtype == dtype
    assert all(w.dtype == dtype for w in objective.critic.parameters())
