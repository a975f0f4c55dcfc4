"""Kernels on the simplex: for the sampled MMD as Gram matrices, for the exact MMD as power series.

Kernels add and scale like functions: ``RBF() + 0.5 * Polynomial(3)``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


class Kernel(ABC):
    """A positive-definite function of two points on the simplex."""

    @abstractmethod
    def gram(self, left: Float[Tensor, "B S K"], right: Float[Tensor, "B T K"]) -> Float[Tensor, "B S T"]:
        """The kernel between all pairs of two clouds, for each input."""

    def power_series(self) -> tuple[float, ...]:
        """Coefficients ``c_j`` of ``k(x, y) = sum_j c_j <x, y>^j``; only some kernels have them."""
        raise ValueError(
            f"the exact MMD needs a kernel that is a power series in the inner product (Polynomial, Exponential and "
            f"their sums); got {self}. Use the sampled MMD with this kernel, or Exponential, which is universal too."
        )

    def settled(self, cloud: Float[Tensor, "B S K"]) -> "Kernel":
        """The same kernel with whatever depends on the data fixed by one cloud, so that all terms of an MMD agree."""
        return self

    def __add__(self, other: "Kernel") -> "Kernel":
        return SumOfKernels((self, other))

    def __rmul__(self, weight: float | int) -> "Kernel":
        return ScaledKernel(float(weight), self)


@dataclass(frozen=True)
class RBF(Kernel):
    """Mean of Gaussian kernels ``exp(-|x - y|^2 / (2 b^2))`` over several bandwidths.

    Without bandwidths, each input takes the median distance between its teacher's particles, at half, one and two
    times its length (never below 0.01, so that a cloud that sits in one point still has a kernel).
    """

    bandwidths: tuple[float, ...] | None = None

    def gram(self, left: Float[Tensor, "B S K"], right: Float[Tensor, "B T K"]) -> Float[Tensor, "B S T"]:
        """The kernel between all pairs."""
        return self.settled(left).gram(left, right)

    def settled(self, cloud: Float[Tensor, "B S K"]) -> Kernel:
        """The same kernel, its bandwidths taken from one cloud where none were given."""
        if self.bandwidths is not None:
            widths = torch.stack([torch.full_like(cloud[:, 0, 0], width) for width in self.bandwidths], -1)
        else:
            median = median_distance(cloud.detach()).clamp(min=0.01)
            widths = torch.stack([0.5 * median, median, 2.0 * median], -1)
        return _FixedRBF(widths)


@dataclass(frozen=True)
class _FixedRBF(Kernel):
    widths: Float[Tensor, "B W"]

    def gram(self, left: Float[Tensor, "B S K"], right: Float[Tensor, "B T K"]) -> Float[Tensor, "B S T"]:
        distances = squared_distances(left, right)
        rates = 0.5 / self.widths.square()
        total = torch.zeros_like(distances)
        for rate in rates.unbind(-1):
            total = total + torch.exp(-rate[:, None, None] * distances)
        return total / rates.shape[-1]


@dataclass(frozen=True)
class Polynomial(Kernel):
    """``(<x, y> + offset)^degree``."""

    degree: int = 3
    offset: float = 1.0

    def __post_init__(self) -> None:
        if self.degree < 1 or self.offset < 0:
            raise ValueError(
                "a polynomial kernel needs a degree of at least 1 and an offset of at least 0; got degree "
                f"{self.degree} and offset {self.offset}."
            )

    def gram(self, left: Float[Tensor, "B S K"], right: Float[Tensor, "B T K"]) -> Float[Tensor, "B S T"]:
        """The kernel between all pairs."""
        return (left @ right.mT).add_(self.offset).pow(self.degree)

    def power_series(self) -> tuple[float, ...]:
        """Binomial coefficients."""
        degree = self.degree
        return tuple(math.comb(degree, j) * self.offset ** (degree - j) for j in range(degree + 1))


@dataclass(frozen=True)
class Exponential(Kernel):
    """``exp((<x, y> - 1) / temperature)``: universal on the simplex, and exact for a Dirichlet.

    The constant factor keeps its values in ``(0, 1]``, so that one weight suits every temperature. Its series is cut
    where the rest is below 1e-9 of the largest value.
    """

    temperature: float = 0.5

    def __post_init__(self) -> None:
        if not 0.05 <= self.temperature <= 1e6:
            raise ValueError(
                "an exponential kernel needs a temperature from 0.05, below which its series is too long, to 1e6; got "
                f"{self.temperature}."
            )

    def gram(self, left: Float[Tensor, "B S K"], right: Float[Tensor, "B T K"]) -> Float[Tensor, "B S T"]:
        """The kernel between all pairs."""
        # All of it in the product, and in place behind it: this is bound by memory, not by arithmetic.
        rate = 1 / self.temperature
        return torch.baddbmm(left.new_full((1, 1, 1), -rate), left, right.mT, alpha=rate).exp_()

    def power_series(self) -> tuple[float, ...]:
        """Coefficients of the exponential series, as many as are needed."""
        rate = 1 / self.temperature
        coefficients: list[float] = []
        rest = 1.0
        while rest > 1e-9:
            j = len(coefficients)
            coefficients.append(math.exp(j * math.log(rate) - math.lgamma(j + 1) - rate))
            rest = 1.0 - math.fsum(coefficients)
        return tuple(coefficients)


@dataclass(frozen=True)
class ScaledKernel(Kernel):
    """A kernel times a positive weight."""

    weight: float
    kernel: Kernel

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ValueError(f"the weight of a kernel must be positive; got {self.weight}.")

    def gram(self, left: Float[Tensor, "B S K"], right: Float[Tensor, "B T K"]) -> Float[Tensor, "B S T"]:
        """The kernel between all pairs."""
        return self.weight * self.kernel.gram(left, right)

    def settled(self, cloud: Float[Tensor, "B S K"]) -> Kernel:
        """The same weight on the settled kernel."""
        return ScaledKernel(self.weight, self.kernel.settled(cloud))

    def power_series(self) -> tuple[float, ...]:
        """The kernel's series, scaled."""
        return tuple(self.weight * c for c in self.kernel.power_series())


@dataclass(frozen=True)
class SumOfKernels(Kernel):
    """The sum of several kernels."""

    kernels: Sequence[Kernel]

    def gram(self, left: Float[Tensor, "B S K"], right: Float[Tensor, "B T K"]) -> Float[Tensor, "B S T"]:
        """The kernel between all pairs."""
        total = self.kernels[0].gram(left, right)
        for kernel in self.kernels[1:]:
            total = total + kernel.gram(left, right)
        return total

    def settled(self, cloud: Float[Tensor, "B S K"]) -> Kernel:
        """The sum of the settled kernels."""
        return SumOfKernels(tuple(kernel.settled(cloud) for kernel in self.kernels))

    def power_series(self) -> tuple[float, ...]:
        """The sum of the series."""
        series = [kernel.power_series() for kernel in self.kernels]
        length = max(map(len, series))
        return tuple(math.fsum(s[j] for s in series if j < len(s)) for j in range(length))


def squared_distances(left: Float[Tensor, "B S K"], right: Float[Tensor, "B T K"]) -> Float[Tensor, "B S T"]:
    """Squared Euclidean distances between all pairs of two clouds, by one matrix product."""
    sizes = left.square().sum(-1).unsqueeze(-1) + right.square().sum(-1).unsqueeze(-2)
    return (sizes - 2 * left @ right.mT).clamp(min=0)


def median_distance(cloud: Float[Tensor, "B S K"]) -> Float[Tensor, " B"]:
    """The median distance between the points of each cloud (of at most 64 of them: it only sets a scale)."""
    some = cloud[:, :64]
    rows, columns = torch.triu_indices(some.shape[1], some.shape[1], offset=1, device=cloud.device)
    if not len(rows):
        return cloud.new_ones(len(cloud))
    return squared_distances(some, some)[:, rows, columns].median(-1).values.sqrt()
