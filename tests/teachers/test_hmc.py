"""Hamiltonian Monte Carlo on targets that are known."""

import math

import pytest
import torch

from opu.teachers.diagnostics import effective_sample_size
from opu.teachers.hmc import StepSize, differentiated, hmc_move, leapfrog, quarter_turn

COVARIANCE = torch.tensor([[1.0, 0.6], [0.6, 0.8]], dtype=torch.float64)
MEAN = torch.tensor([0.5, -1.0], dtype=torch.float64)


PRECISION = torch.linalg.inv(COVARIANCE)


def gaussian(position):
    slope = PRECISION @ (MEAN - position)
    return 0.5 * (position - MEAN) @ slope, slope


def curved(position):
    return -position.pow(4).sum() - (position[0] * position[1]).cos()


def test_a_gaussian_is_left_as_it_is():
    position, chain, rates = MEAN, [], []
    for _ in range(4000):
        position, rate = hmc_move(position, gaussian, 0.6, 3)
        chain.append(position)
        rates.append(rate)
    draws = torch.stack(chain)
    assert 0.7 < sum(rates) / len(rates) < 0.999  # a step so large that refusing matters
    sizes = torch.from_numpy(effective_sample_size(draws[None].numpy()))
    assert ((draws.mean(0) - MEAN).abs() < 5 * (COVARIANCE.diagonal() / sizes).sqrt()).all()
    squares = (draws - MEAN)[:, :, None] * (draws - MEAN)[:, None, :]
    error = (
        squares.std(0) / torch.from_numpy(effective_sample_size(squares.flatten(1)[None].numpy())).reshape(2, 2).sqrt()
    )
    assert ((squares.mean(0) - COVARIANCE).abs() < 5 * error).all()


def test_energy_is_kept_to_the_second_order_of_the_step():
    density = differentiated(curved)
    position, momentum = torch.tensor([0.4, -0.7]).double(), torch.tensor([0.3, 0.9]).double()
    before, slope = density(position)

    def error(num_steps):
        _, last, after = leapfrog(position, momentum, slope, density, 0.8 / num_steps, num_steps)
        return abs(float(after - before - 0.5 * (last.square().sum() - momentum.square().sum())))

    assert error(40) / error(80) == pytest.approx(4.0, rel=0.05)
    assert error(1000) < 1e-5


def test_a_trajectory_can_be_walked_back():
    density = differentiated(curved)
    start, momentum = torch.tensor([0.4, -0.7]).double(), torch.tensor([0.3, 0.9]).double()
    end, last, _ = leapfrog(start, momentum, density(start)[1], density, 0.2, 7)
    back, _, _ = leapfrog(end, -last, density(end)[1], density, 0.2, 7)
    torch.testing.assert_close(back, start, rtol=0, atol=1e-12)


def test_a_place_without_density_is_refused():
    def nowhere(position):
        return torch.where(position.sum() == 0, 0.0, torch.nan) + 0 * position.sum()

    start = torch.zeros(2, dtype=torch.float64)
    end, rate = hmc_move(start, differentiated(nowhere), 0.5, 3)
    assert rate == 0.0
    assert torch.equal(end, start)


def test_the_step_size_finds_its_acceptance_rate():
    step = StepSize(3.0, target=0.8)
    for _ in range(300):
        step.update(math.exp(-step.value))
    step.freeze()
    assert math.exp(-step.value) == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(("step", "most"), [(2.0, 4), (0.8, 4), (0.5, 10), (0.01, 10)])
def test_steps_make_a_quarter_turn_or_are_as_many_as_allowed(step, most):
    size, number = quarter_turn(step, most)
    assert size <= step
    assert 1 <= number <= most
    assert size * number == pytest.approx(math.pi / 2) or (number == most and size == step)
