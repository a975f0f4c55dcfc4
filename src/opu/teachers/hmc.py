"""Hamiltonian Monte Carlo in coordinates that were scaled beforehand, so that all momenta are standard normal."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

# A log-density up to a constant, and its slope.
LogDensity = Callable[[Tensor], tuple[Tensor, Tensor]]


def differentiated(function: Callable[[Tensor], Tensor]) -> LogDensity:
    """A log-density with the slope that automatic differentiation gives."""

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
    """Follow the dynamics for some steps; returns position, momentum and log-density where it ends."""
    for _ in range(num_steps):
        momentum = momentum + 0.5 * step_size * slope
        position = position + step_size * momentum
        value, slope = density(position)
        momentum = momentum + 0.5 * step_size * slope
    return position, momentum, value


def hmc_move(position: Tensor, density: LogDensity, step_size: float, num_steps: int) -> tuple[Tensor, float]:
    """One trajectory, accepted or refused by its change of energy; returns the new position and the acceptance rate.

    The step is jittered by a fifth, since trajectories of one length can return to where they began.
    """
    step_size *= 0.8 + 0.4 * float(torch.rand(()))
    momentum = torch.randn_like(position)
    before, slope = density(position)
    end, last, after = leapfrog(position, momentum, slope, density, step_size, num_steps)
    gain = float(after - before - 0.5 * (last.square().sum() - momentum.square().sum()))
    rate = math.exp(min(gain, 0.0)) if math.isfinite(gain) else 0.0
    return (end if float(torch.rand(())) < rate else position), rate


def quarter_turn(step_size: float, most_steps: int) -> tuple[float, int]:
    """A step no larger than given, and how many make a quarter of a standard normal's period, or as many as allowed.

    After a quarter of its period a standard normal has forgotten where it began; after half it is on the other side.
    """
    num_steps = math.ceil(0.5 * math.pi / step_size) if step_size > 0.5 * math.pi / most_steps else most_steps
    return min(step_size, 0.5 * math.pi / num_steps), num_steps


class StepSize:
    """A step size that seeks an acceptance rate by dual averaging (Hoffman and Gelman, 2014) until it is frozen.

    Args:
        first: Where the search begins.
        target: The acceptance rate to reach.
    """

    def __init__(self, first: float, target: float) -> None:
        self.value, self.target = first, target
        self._anchor, self._average, self._deficit, self._count = math.log(10 * first), math.log(first), 0.0, 0

    def update(self, rate: float) -> None:
        """Learn from the acceptance rate of one trajectory."""
        self._count += 1
        share = 1 / (self._count + 10)
        self._deficit = (1 - share) * self._deficit + share * (self.target - rate)
        exploring = self._anchor - math.sqrt(self._count) / 0.05 * self._deficit
        weight = self._count**-0.75
        self._average = weight * exploring + (1 - weight) * self._average
        self.value = math.exp(exploring)

    def freeze(self) -> None:
        """Keep the average of the search."""
        self.value = math.exp(self._average)
