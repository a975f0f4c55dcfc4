"""The interface of an objective, and weighted sums of objectives."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, final, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from opu.batches import Batch
from opu.distributions import SimplexDistribution


@runtime_checkable
class Objective(Protocol):
    """How far each Dirichlet is from its particles; smaller is closer."""

    def __call__(self, x: Batch, log_particles: Float[Tensor, "S B K"], q: SimplexDistribution) -> Float[Tensor, " B"]:
        """One value per input."""
        ...


class BaseObjective(ABC):
    """An objective with arithmetic: ``0.1 * ClippedKL() + 10 * ExactMMD()`` is an objective too.

    An objective with networks of its own (the critic of the earth mover's distance) returns them in ``state_dict``. It
    trains them only while gradients are enabled, so that an evaluation does not change them.
    """

    @abstractmethod
    def __call__(self, x: Batch, log_particles: Float[Tensor, "S B K"], q: SimplexDistribution) -> Float[Tensor, " B"]:
        """One value per input."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep; nothing if the objective has no networks."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        assert not state, f"{self!r} has no networks, so it has no state to restore"

    def __add__(self, other: Objective) -> "WeightedSum":
        return WeightedSum([*_terms(self), *_terms(other)])

    def __rmul__(self, weight: float | int) -> "WeightedSum":
        return WeightedSum([(weight * w, term) for w, term in _terms(self)])

    def __repr__(self) -> str:
        return type(self).__name__


class WeightedSum(BaseObjective):
    """A sum of objectives, each with a positive weight."""

    def __init__(self, terms: list[tuple[float | int, Objective]]) -> None:
        for weight, term in terms:
            if not 0 < weight < math.inf:
                raise ValueError(f"the weight of an objective must be positive and finite; got {weight} for {term!r}.")
        self.terms = [(weight, as_objective(term)) for weight, term in terms]

    def __call__(self, x: Batch, log_particles: Float[Tensor, "S B K"], q: SimplexDistribution) -> Float[Tensor, " B"]:
        """The weighted sum of the terms, per input."""
        first, *others = (weight * term(x, log_particles, q) for weight, term in self.terms)
        return sum(others, first)

    def state_dict(self) -> dict[str, Any]:
        """The state of every term that has one, by position."""
        states = {str(i): term.state_dict() for i, (_, term) in enumerate(self.terms)}
        return {position: state for position, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        for position, part in state.items():
            self.terms[int(position)][1].load_state_dict(part)

    def __repr__(self) -> str:
        return " + ".join(f"{weight:g} * {term!r}" for weight, term in self.terms)


def _terms(objective: Objective) -> list[tuple[float | int, Objective]]:
    return [*objective.terms] if isinstance(objective, WeightedSum) else [(1.0, objective)]


@final
class _Callable(BaseObjective):
    def __init__(self, function: Objective) -> None:
        self.function = function

    def __call__(self, x: Batch, log_particles: Float[Tensor, "S B K"], q: SimplexDistribution) -> Float[Tensor, " B"]:
        return self.function(x, log_particles, q)

    def __repr__(self) -> str:
        return repr(self.function)


def as_objective(objective: Objective) -> BaseObjective:
    """The objective itself, or a plain function wrapped as a :class:`BaseObjective`."""
    return objective if isinstance(objective, BaseObjective) else _Callable(objective)
