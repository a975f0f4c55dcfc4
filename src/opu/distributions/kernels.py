"""Kernels on the simplex. The sampled MMD uses their Gram matrices, the exact MMD their power series.

Kernels can be added and scaled: ``RBF() + 0.5 * Polynomial(3)``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from jaxtyping import Float
from torch import Tensor


class Kernel(ABC):
    """A positive-definite function of two points on the simplex."""

    @abstractmethod
    def gram(self, left: Float[Tensor, "B S K"], right: Float[Tensor, "B T K"]) -> Float[Tensor, "B S T"]:
        """Kernel values between all pairs of two clouds of points, for each input."""

    def power_series(self) -> tuple[float, ...]:
        """Coefficients ``c_j`` of ``k(x, y) = sum_j c_j <x, y>^j``, if the kernel is such a series."""
        raise ValueError(
            "the exact MMD needs a kernel that is a power series in the inner product (Polynomial, Exponential or a sum of "
            f"them); got {self}. Use the sampled MMD with this kernel, or Exponential, which is universal too."
        )

    def settled(self, cloud: Float[Tensor, "B S K"]) -> "Kernel":
        """The kernel with any data-dependent bandwidth taken from one cloud, so that all terms of an MMD use the same one."""
        return self

    def __add__(self, other: "Kernel") -> "Kernel":
        return SumOfKernels((self, other))

    def __rmul__(self, weight: float | int) -> "Kernel":
        return ScaledKernel(float(weight), self)


@dataclass(frozen=True)
class RBF(Kernel):
    """Mean of Gaussian kernels ``exp(-|x - y|^2 / (2 b^2))`` over several bandwidths.

    By default the bandwidths of an input are half, one and two times the median distance between the points that an MMD
    compares, those of the teacher and those of the student. A median below 0.01 counts as 0.01, so that points that
    coincide have a kernel too.
    """

    bandwidths: tuple[float, ...] | None = None

    def gram(self, left: Float[Tensor, "B S K"], right: Float[Tensor, "B T K"]) -> Float[Tensor, "B S T"]:
        """Kernel values between all pairs; default bandwidths are those of the left cloud."""
        return self.settled(left).gram(left, right)

    def settled(self, cloud: Float[Tensor, "B S K"]) -> Kernel:
        """The kernel with a fixed bandwidth for each input."""
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
        total = torch.zeros_like(distances)
        for rate in (0.5 / self.widths.square()).unbind(-1):
            total = total + torch.exp(-rate[:, None, None] * distances)
        return total / self.widths.shape[-1]


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
        """Kernel values between all pairs."""
        return (left @ right.mT).add_(self.offset).pow(self.degree)

    def power_series(self) -> tuple[float, ...]:
        """Binomial coefficients."""
        return tuple(math.comb(self.degree, j) * self.offset ** (self.degree - j) for j in range(self.degree + 1))


@dataclass(frozen=True)
class Exponential(Kernel):
    """``exp((<x, y> - 1) / temperature)``: universal on the simplex, with known expectations under a Dirichlet.

    The constant factor keeps the values in ``(0, 1]``. The power series is truncated once the remaining coefficients sum to
    less than 1e-9 of those beyond the linear term. The linear term compares means alone: what an MMD knows of the precision
    comes from the terms beyond it, which are about :math:`1 / (2 T)` of the linear one at a large temperature ``T``. Above
    10 or so the precision is therefore learnt slowly, and above 1000 its gradient falls below what optimisers notice
    (Adam's ``eps`` of 1e-8); a larger weight of the MMD, or a smaller temperature, helps.
    """

    temperature: float = 0.5

    def __post_init__(self) -> None:
        if not 0.05 <= self.temperature <= 1e6:
            raise ValueError(
                f"an exponential kernel needs a temperature from 0.05 to 1e6; got {self.temperature}. Below 0.05 its "
                "power series would be too long."
            )

    def gram(self, left: Float[Tensor, "B S K"], right: Float[Tensor, "B T K"]) -> Float[Tensor, "B S T"]:
        """Kernel values between all pairs."""
        # One fused product and one operation in place: the time goes into memory traffic, not arithmetic.
        rate = 1 / self.temperature
        return torch.baddbmm(left.new_full((1, 1, 1), -rate), left, right.mT, alpha=rate).exp_()

    def power_series(self) -> tuple[float, ...]:
        """Coefficients of the truncated exponential series."""
        rate = 1 / self.temperature
        # 120 terms are all that float64 can hold at the lowest temperature.
        terms = [math.exp(j * math.log(rate) - math.lgamma(j + 1) - rate) for j in range(120)]
        length, beyond_linear = 2, math.fsum(terms[2:])
        while math.fsum(terms[length:]) > 1e-9 * beyond_linear:
            length += 1
        return tuple(terms[:length])


@dataclass(frozen=True)
class ScaledKernel(Kernel):
    """A kernel times a positive weight."""

    weight: float
    kernel: Kernel

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ValueError(f"the weight of a kernel must be positive; got {self.weight}.")

    def gram(self, left: Float[Tensor, "B S K"], right: Float[Tensor, "B T K"]) -> Float[Tensor, "B S T"]:
        """Kernel values between all pairs."""
        return self.weight * self.kernel.gram(left, right)

    def settled(self, cloud: Float[Tensor, "B S K"]) -> Kernel:
        """The kernel with fixed bandwidths, and the same weight."""
        return ScaledKernel(self.weight, self.kernel.settled(cloud))

    def power_series(self) -> tuple[float, ...]:
        """The kernel's coefficients times the weight."""
        return tuple(self.weight * c for c in self.kernel.power_series())


@dataclass(frozen=True)
class SumOfKernels(Kernel):
    """The sum of several kernels."""

    kernels: Sequence[Kernel]

    def gram(self, left: Float[Tensor, "B S K"], right: Float[Tensor, "B T K"]) -> Float[Tensor, "B S T"]:
        """Kernel values between all pairs."""
        total = self.kernels[0].gram(left, right)
        for kernel in self.kernels[1:]:
            total = total + kernel.gram(left, right)
        return total

    def settled(self, cloud: Float[Tensor, "B S K"]) -> Kernel:
        """The sum of the kernels with fixed bandwidths."""
        return SumOfKernels(tuple(kernel.settled(cloud) for kernel in self.kernels))

    def power_series(self) -> tuple[float, ...]:
        """The sums of the kernels' coefficients."""
        series = [kernel.power_series() for kernel in self.kernels]
        return tuple(math.fsum(column) for column in zip_longest(*series, fillvalue=0.0))


def squared_distances(left: Float[Tensor, "B S K"], right: Float[Tensor, "B T K"]) -> Float[Tensor, "B S T"]:
    """Squared Euclidean distances between all pairs of two clouds, by one matrix product."""
    sizes = left.square().sum(-1).unsqueeze(-1) + right.square().sum(-1).unsqueeze(-2)
    return (sizes - 2 * left @ right.mT).clamp(min=0)


def median_distance(cloud: Float[Tensor, "B S K"]) -> Float[Tensor, " B"]:
    """Median distance between the first 64 points of each cloud, which is enough to set a scale; 1 for a single point."""
    some = cloud[:, :64]
    rows, columns = torch.triu_indices(some.shape[1], some.shape[1], offset=1, device=cloud.device)
    if not len(rows):
        return cloud.new_ones(len(cloud))
    return squared_distances(some, some)[:, rows, columns].median(-1).values.sqrt()
