"""What a student predicts, a Dirichlet or a logistic-normal, and how the outputs of its networks become one."""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from opu.distributions import Dirichlet, LogisticNormal, SimplexDistribution
from opu.distributions.normal_rule import MOST_DIMENSIONS
from opu.students.links import Link, Softsign, parse_link

MOST_FACTORS = 64
_DEFAULT_RANK = 4
# Far beyond what any teacher needs; they keep an untrained or a diverging network finite.
_LOWEST_LOG_SCALE, _HIGHEST_LOG_SCALE, _LARGEST_FACTOR = -10.0, 5.0, 1e3


class Family(ABC):
    """A family of distributions on the simplex.

    The mean network gives one logit for each class. The precision network gives all that the family needs besides.
    """

    name: ClassVar[str]

    @abstractmethod
    def num_outputs(self, num_classes: int) -> int:
        """Number of outputs of the precision network."""

    @abstractmethod
    def parameters(self, z: Float[Tensor, "B P"]) -> Tensor:
        """The family's parameters besides the logits, from the outputs of the precision network."""

    @abstractmethod
    def distribution(self, logits: Float[Tensor, "B K"], parameters: Tensor) -> SimplexDistribution:
        """One distribution for each row."""


@final
@dataclass(frozen=True)
class DirichletFamily(Family):
    """The paper's family: the softmax of the logits is the mean, and one number is the log-precision.

    Attributes:
        link: From the output of the precision network to the log-precision.
    """

    link: Link = field(default_factory=Softsign)
    name: ClassVar[str] = "dirichlet"

    def num_outputs(self, num_classes: int) -> int:
        """One, the log-precision before its link."""
        return 1

    def parameters(self, z: Float[Tensor, "B 1"]) -> Float[Tensor, " B"]:
        """The log-precision."""
        return self.link(z.squeeze(-1))

    def distribution(self, logits: Float[Tensor, "B K"], parameters: Float[Tensor, " B"]) -> Dirichlet:
        """One Dirichlet for each row."""
        return Dirichlet.from_logits(logits, parameters)

    def __str__(self) -> str:
        return self.name


@final
@dataclass(frozen=True)
class LogisticNormalFamily(Family):
    """Gaussian logits: each class has a location, a scale, and a row of factors that classes share.

    Attributes:
        rank: Number of factors.
    """

    rank: int = _DEFAULT_RANK
    name: ClassVar[str] = "logistic_normal"

    def __post_init__(self) -> None:
        if not 0 <= self.rank <= MOST_FACTORS:
            raise ValueError(
                f"the rank of a logistic-normal is its number of factors, from 0 to {MOST_FACTORS}; got {self.rank}."
            )

    def num_outputs(self, num_classes: int) -> int:
        """A log-scale and so many factors for each class."""
        return num_classes * (1 + self.rank)

    def parameters(self, z: Float[Tensor, "B P"]) -> Float[Tensor, "B P"]:
        """The log-scales of all classes, and then their factors."""
        num_classes = z.shape[-1] // (1 + self.rank)
        log_scale, factors = z.split([num_classes, num_classes * self.rank], -1)
        bounded = log_scale.clamp(_LOWEST_LOG_SCALE, _HIGHEST_LOG_SCALE)
        return torch.cat([bounded, factors.clamp(-_LARGEST_FACTOR, _LARGEST_FACTOR)], -1)

    def distribution(self, logits: Float[Tensor, "B K"], parameters: Float[Tensor, "B P"]) -> LogisticNormal:
        """One logistic-normal for each row."""
        num_classes = logits.shape[-1]
        log_scale, factors = parameters.split([num_classes, num_classes * self.rank], -1)
        return LogisticNormal(logits, log_scale, factors.unflatten(-1, (num_classes, self.rank)))

    def __str__(self) -> str:
        return f"{self.name}({self.rank})"


def default_rank(num_classes: int) -> int:
    """Number of factors by default: four, and fewer for fewer than six classes, whose log-ratios have no need of them."""
    return max(0, min(_DEFAULT_RANK, num_classes - 2))


_WITH_RANK = re.compile(r"logistic_normal(?:\(\s*([0-9]{1,3})\s*\))?")


def parse_family(family: Family | str, link: Link | str | None, num_classes: int) -> Family:
    """A family from its name, ``dirichlet`` or ``logistic_normal``, the latter with or without its rank behind it.

    Args:
        family: The name, or a family, which is returned as it is.
        link: The link of a Dirichlet; a logistic-normal has none.
        num_classes: K, by which the rank is chosen where the name does not say it.
    """
    if not isinstance(family, str):
        return _affordable(family, num_classes)
    if family == DirichletFamily.name:
        return DirichletFamily() if link is None else DirichletFamily(parse_link(link))
    match = _WITH_RANK.fullmatch(family)
    if match is None:
        raise ValueError(f"a family is dirichlet, logistic_normal or logistic_normal(rank); got {family!r}.")
    if link is not None:
        raise ValueError(f"a link is for the log-precision of a Dirichlet; {family} has none. Leave link= out.")
    found = LogisticNormalFamily(default_rank(num_classes) if match[1] is None else int(match[1]))
    return _affordable(found, num_classes)


def _affordable(family: Family, num_classes: int) -> Family:
    """The family itself, if there are fixed points with a dimension for each class and factor."""
    if isinstance(family, LogisticNormalFamily) and num_classes + family.rank > MOST_DIMENSIONS:
        raise ValueError(
            f"a logistic-normal has at most {MOST_DIMENSIONS:,} classes and factors together; got {num_classes:,} classes "
            f"and {family.rank} factors. Use family='dirichlet'."
        )
    return family
