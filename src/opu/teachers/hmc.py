"""Hamiltonian Monte Carlo with standard normal momenta, for targets that are scaled to be close to a standard normal."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

# A log-density up to a constant, and its gradient.
LogDensity = Callable[[Tensor], tuple[Tensor, Tensor]]


def differentiated(function: Callable[[Tensor], Tensor]) -> LogDensity:
    """A log-density with its gradient by automatic differentiation."""

    def density(position: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            position = position.detach().requires_grad_()
            value = function(position)
            (slope,) = torch.autograd.grad(value, position)
        return value.detach(), slope

    return density


def leapfrog(
    position: Tensor, momentum: Tensor, slope: Tensor, density: LogDensity, step_size: float, num_steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Follow the dynamics for some steps; returns the last position, momentum and log-density."""
    for _ in range(num_steps):
        momentum = momentum + 0.5 * step_size * slope
        position = position + step_size * momentum
        value, slope = density(position)
        momentum = momentum + 0.5 * step_size * slope
    return position, momentum, value


def hmc_move(position: Tensor, density: LogDensity, step_size: float, num_steps: int) -> tuple[Tensor, float]:
    """One trajectory, accepted or rejected; returns the new position and the acceptance probability.

    The step size varies at random by up to a fifth, since trajectories of one length can return to their start.
    """
    step_size *= 0.8 + 0.4 * float(torch.rand(()))
    momentum = torch.randn_like(position)
    before, slope = density(position)
    end, last, after = leapfrog(position, momentum, slope, density, step_size, num_steps)
    gain = float(after - before - 0.5 * (last.square().sum() - momentum.square().sum()))
    rate = math.exp(min(gain, 0.0)) if math.isfinite(gain) else 0.0
    return (end if float(torch.rand(())) < rate else position), rate


def quarter_turn(step_size: float, most_steps: int) -> tuple[float, int]:
    """Step size and number of steps of a trajectory over a quarter of a standard normal's period, within these limits.

    After a quarter of the period the position of a standard normal is independent of its start; after half it is opposite.
    """
    num_steps = math.ceil(0.5 * math.pi / step_size) if step_size > 0.5 * math.pi / most_steps else most_steps
    return min(step_size, 0.5 * math.pi / num_steps), num_steps


class StepSize:
    """A step size that seeks an acceptance rate by dual averaging (Hoffman and Gelman, 2014) until it is frozen.

    Args:
        first: Step size at the start of the search.
        target: Acceptance rate to reach.
    """

    def __init__(self, first: float, target: float) -> None:
        self.value, self.target = first, target
        self._anchor, self._average, self._deficit, self._count = math.log(10 * first), math.log(first), 0.0, 0

    def update(self, rate: float) -> None:
        """Update the step size by the acceptance probability of one trajectory."""
        self._count += 1
        fraction = 1 / (self._count + 10)
        self._deficit = (1 - fraction) * self._deficit + fraction * (self.target - rate)
        exploring = self._anchor - math.sqrt(self._count) / 0.05 * self._deficit
        weight = self._count**-0.75
        self._average = weight * exploring + (1 - weight) * self._average
        self.value = math.exp(exploring)

    def freeze(self) -> None:
        """Keep the average step size of the search."""
        self.value = math.exp(self._average)
