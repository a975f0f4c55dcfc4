r"""Links from the precision network's output :math:`z` to the log-precision :math:`g = \log\alpha_0`."""

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

# The difference of larger bounds is no number in single precision.
_LARGEST = 1e30


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
class BoundedLink(ABC):
    """``log alpha_0`` between two bounds: the precision can neither explode nor vanish off the data.

    Attributes:
        low: The lower bound of the log-precision.
        high: The upper bound of the log-precision.
    """

    low: float | int = -2.0
    high: float | int = 7.0
    name: ClassVar[str]
    # Within this fraction of the range from a bound, the slope is below a tenth of the slope in the middle.
    edge: ClassVar[float]

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(f"the bounds of a link must be finite and rise; got {self.low} and {self.high}.")
        if max(-self.low, self.high) > _LARGEST:
            raise ValueError(
                f"the bounds of a link are log-precisions, at most {_LARGEST:g} in size; got {self.low:g} and {self.high:g}."
            )

    @abstractmethod
    def __call__(self, z: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The log-precision."""

    @abstractmethod
    def inverse(self, log_precision: float) -> float:
        """The ``z`` that gives a log-precision; for one beyond the bounds, the ``z`` of a value near the bound."""

    def _fraction(self, log_precision: float) -> float:
        """Position between the bounds, from 0 to 1, kept away from both ends so that a gradient is left."""
        fraction = (log_precision - self.low) / (self.high - self.low)
        return min(max(fraction, self.edge), 1 - self.edge)

    def __str__(self) -> str:
        # All digits, since a saved student is built again from this text.
        return f"{self.name}({float(self.low)!r}, {float(self.high)!r})"


@final
@dataclass(frozen=True)
class Sigmoid(BoundedLink):
    """Bounds approached exponentially. Gradients vanish near a bound, so a precision that reaches one stays there."""

    name: ClassVar[str] = "sigmoid"
    edge: ClassVar[float] = 0.025

    def __call__(self, z: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The log-precision."""
        return self.low + (self.high - self.low) * torch.sigmoid(z)

    def inverse(self, log_precision: float) -> float:
        """The ``z`` that gives a log-precision, or that of a value near the bound."""
        fraction = self._fraction(log_precision)
        return math.log(fraction / (1 - fraction))


@final
@dataclass(frozen=True)
class Softsign(BoundedLink):
    """Bounds approached as ``1/z``, which leaves a gradient near them: our default."""

    name: ClassVar[str] = "softsign"
    edge: ClassVar[float] = 0.15

    def __call__(self, z: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The log-precision."""
        return self.low + (self.high - self.low) * (1 + torch.nn.functional.softsign(z)) / 2

    def inverse(self, log_precision: float) -> float:
        """The ``z`` that gives a log-precision, or that of a value near the bound."""
        side = 2 * self._fraction(log_precision) - 1
        return side / (1 - abs(side))


Link = Exp | Softplus | Sigmoid | Softsign
# Fits to particles in opposite corners, or all at one point, have no finite log-precision; bounds end here.
_LOWEST, _HIGHEST = -8.0, 12.0


def bounds_for(log_precision: Float[Tensor, " B"]) -> tuple[float, float]:
    """Bounds for a link that leave room around log-precisions fitted to a teacher's particles, one per input.

    The default bounds suit networks on images. A posterior given thousands of rows of a table, or the members of an
    ensemble, can be sharper; a student that cannot follow predicts intervals that are too wide.
    """
    low, high = log_precision.float().quantile(log_precision.new_tensor([0.1, 0.9]).float()).tolist()
    # Rounded to a tenth: they are estimates, and a resumed run must find the same ones again.
    return round(max(min(-2.0, low - 1.0), _LOWEST), 1), round(min(max(7.0, high + 1.0), _HIGHEST), 1)


# Names from before 0.1.0, which saved students may still carry.
_FORMER_NAMES = {"bounded": "sigmoid", "slowly_bounded": "softsign"}
_NUMBER = r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?)"
_BOUNDED = re.compile(rf"(\w+)(?:\(\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\))?")


def parse_link(link: Link | str) -> Link:
    """A link from its name: ``exp``, ``softplus``, ``sigmoid(low, high)`` or ``softsign(low, high)``."""
    if not isinstance(link, str):
        return link
    match = _BOUNDED.fullmatch(link)
    name = "" if match is None else _FORMER_NAMES.get(match[1], match[1])
    if match is not None and match[2] is None and name in ("exp", "softplus"):
        return Exp() if name == "exp" else Softplus()
    if match is None or name not in ("sigmoid", "softsign"):
        raise ValueError(f"a link is exp, softplus, sigmoid(low, high) or softsign(low, high); got {link!r}.")
    bounds = () if match[2] is None else (float(match[2]), float(match[3]))
    return (Sigmoid if name == "sigmoid" else Softsign)(*bounds)
