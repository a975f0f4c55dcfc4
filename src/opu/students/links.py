r"""Links from the precision network's output :math:`z` to the log-precision :math:`g = \log\alpha_0`."""

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Exp:
    """``alpha_0 = e^z``: the paper's. Nothing keeps the precision from running away off the data."""

    def __call__(self, z: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The log-precision."""
        return z

    def inverse(self, log_precision: float) -> float:
        """The ``z`` that gives a log-precision."""
        return log_precision

    def __str__(self) -> str:
        return "exp"


@dataclass(frozen=True)
class Softplus:
    """``alpha_0 = log(1 + e^z)``: that of the authors' scripts."""

    def __call__(self, z: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The log-precision."""
        # log(softplus(z)) tends to z - e^z/2; below -15 the difference is lost in float32 but the logarithm is not safe.
        safe = z.clamp(min=-15)
        return torch.where(z < -15, z, torch.nn.functional.softplus(safe).log())

    def inverse(self, log_precision: float) -> float:
        """The ``z`` that gives a log-precision."""
        precision = math.exp(log_precision)
        return precision + math.log(-math.expm1(-precision))

    def __str__(self) -> str:
        return "softplus"


@dataclass(frozen=True)
class Bounds(ABC):
    """``log alpha_0`` between two bounds: precision cannot explode or vanish off the data."""

    low: float | int = -2.0
    high: float | int = 7.0
    # So near to a bound, as a share of the way between both, the slope is a tenth of what it is in the middle.
    edge: ClassVar[float]

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(f"the bounds of a link must be finite and rise; got {self.low} and {self.high}.")

    @abstractmethod
    def __call__(self, z: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The log-precision."""

    def _share(self, log_precision: float) -> float:
        """How far from the lower bound to the upper one, kept so far from both that it can still move."""
        share = (log_precision - self.low) / (self.high - self.low)
        return min(max(share, self.edge), 1 - self.edge)

    def _bounds(self) -> str:
        # In full, since a saved student is built again from this text.
        return f"bounded({float(self.low)!r}, {float(self.high)!r})"


@final
@dataclass(frozen=True)
class Bounded(Bounds):
    """By a sigmoid, whose slope dies out fast: a network that once sent all precisions to a bound has lost them."""

    edge: ClassVar[float] = 0.025

    def __call__(self, z: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The log-precision."""
        return self.low + (self.high - self.low) * torch.sigmoid(z)

    def inverse(self, log_precision: float) -> float:
        """The ``z`` that gives a log-precision; beyond the bounds, one that comes near them."""
        share = self._share(log_precision)
        return math.log(share / (1 - share))

    def __str__(self) -> str:
        return self._bounds()


@final
@dataclass(frozen=True)
class SlowlyBounded(Bounds):
    """Approached as ``1/z``: our default. A precision that has come near a bound can come back."""

    edge: ClassVar[float] = 0.15

    def __call__(self, z: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The log-precision."""
        return self.low + (self.high - self.low) * (1 + torch.nn.functional.softsign(z)) / 2

    def inverse(self, log_precision: float) -> float:
        """The ``z`` that gives a log-precision; beyond the bounds, one that comes near them."""
        side = 2 * self._share(log_precision) - 1
        return side / (1 - abs(side))

    def __str__(self) -> str:
        return f"slowly_{self._bounds()}"


Link = Exp | Softplus | Bounded | SlowlyBounded
# What no student needs to follow: particles that contradict one another, or all coincide, ask for infinity.
_LOWEST, _HIGHEST = -8.0, 12.0


def bounds_for(log_precision: Float[Tensor, " B"]) -> tuple[float, float]:
    """Bounds that leave room about the log-precisions which were fitted to a teacher's particles, input by input.

    The default suits networks on images. A posterior given thousands of rows of a table can be sharper, and so can an
    ensemble; a student that may not follow answers with intervals that are too wide.
    """
    low, high = log_precision.float().quantile(log_precision.new_tensor([0.1, 0.9]).float()).tolist()
    # To a tenth, since they are estimates, and part of what a run that goes on must agree in.
    return round(max(min(-2.0, low - 1.0), _LOWEST), 1), round(min(max(7.0, high + 1.0), _HIGHEST), 1)


def parse_link(link: Link | str) -> Link:
    """A link from its name: ``exp``, ``softplus``, ``bounded(low, high)`` or ``slowly_bounded(low, high)``."""
    if not isinstance(link, str):
        return link
    plain: dict[str, Link] = {"exp": Exp(), "softplus": Softplus(), "bounded": Bounded()}
    plain["slowly_bounded"] = SlowlyBounded()
    if link in plain:
        return plain[link]
    number = r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?)"
    match = re.fullmatch(rf"(slowly_)?bounded\(\s*{number}\s*,\s*{number}\s*\)", link)
    if match is None:
        raise ValueError(f"a link is exp, softplus, bounded(low, high) or slowly_bounded(low, high); got {link!r}.")
    return (SlowlyBounded if match[1] else Bounded)(float(match[2]), float(match[3]))
