"""Coverage: the share of a teacher's particles within a student's credible intervals, for the classes that people read."""

import torch
from jaxtyping import Float
from torch import Tensor

from opu.distributions import SimplexDistribution
from opu.distributions.simplex import normalised

LEVEL = 0.9
NUM_DECILES = 10
MOST_MEMBERS = 20  # an ensemble has at most so many
_INPUTS_TO_TELL = 64  # that two particles are the same network


def class_coverage(
    q: SimplexDistribution, log_particles: Float[Tensor, "S B K"], level: float = LEVEL
) -> dict[str, Float[Tensor, " B"]]:
    """The share of each input's particles within the interval of the predicted class, of the runner-up, and of all classes.

    An average over all classes hides what happens at the predicted one, since most classes sit at zero. ``below`` and
    ``above`` are the shares beyond either end of the predicted class's interval, which has equal tails: one that is too
    wide at one end and too narrow at the other may hold the right share.

    Args:
        q: The student's predictions.
        log_particles: The teacher's particles.
        level: Level of the intervals.
    """
    below, above = shares_outside(q.to(torch.float64).interval(level), log_particles)
    inside = 1 - below - above
    order = q.mean.argsort(dim=-1, descending=True)[:, :2].to(inside.device)
    (first, second), predicted = inside.gather(-1, order).unbind(-1), order[:, :1]
    ends = {"below": below.gather(-1, predicted).squeeze(-1), "above": above.gather(-1, predicted).squeeze(-1)}
    return {"predicted": first, "runner_up": second, "all": inside.mean(-1), **ends}


def shares_outside(
    ends: tuple[Float[Tensor, "B K"], Float[Tensor, "B K"]], log_particles: Float[Tensor, "S B K"]
) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K"]]:
    """The shares of the particles below the lower and above the upper end of an interval of each class probability.

    Particles are normalised again in float64: in float32, a particle at a corner and the end of its interval would both be
    rounded to 1.
    """
    low, high = (end.to(log_particles.device) for end in ends)
    below, above = torch.zeros_like(low), torch.zeros_like(high)
    for part in log_particles.split(64):
        particles = normalised(part).exp()
        below += (particles < low).sum(0)
        above += (particles > high).sum(0)
    return below / len(log_particles), above / len(log_particles)


def deciles(by: Float[Tensor, " B"]) -> list[Tensor]:
    """The numbers of the inputs in ten groups of equal size, from the lowest to the highest of a quantity.

    Fewer than ten inputs make as many groups as there are inputs.
    """
    return [part for part in torch.tensor_split(by.argsort(stable=True), NUM_DECILES) if len(part)]


def by_decile(by: Float[Tensor, " B"], values: Float[Tensor, " B"]) -> list[float]:
    """Means of values over ten groups of equal size, from the lowest to the highest of another quantity."""
    return [float(values[rows.to(values.device)].double().mean()) for rows in deciles(by)]


def distinct_members(log_particles: Float[Tensor, "S B K"]) -> Float[Tensor, "D B K"] | None:
    """The members of an ensemble, each once, if there are at most twenty; None if these are samples of a posterior.

    An ensemble's few members are all there is, however often a teacher repeats them.
    """
    some = log_particles[:, : max(1, _INPUTS_TO_TELL)].flatten(1)
    first: list[int] = []
    for number, row in enumerate(some):
        if not any(torch.equal(row, some[other]) for other in first):
            first.append(number)
        if len(first) > MOST_MEMBERS:
            return None
    return log_particles[first]
