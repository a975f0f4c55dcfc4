"""The measures of logistic-normals from the library's fixed points, in operators that every runtime has."""

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from opu.distributions.normal_rule import normal_points, num_points_for
from opu.distributions.simplex import LOG_OF_NOTHING as _LOWEST

_LOG_2_PI = math.log(2 * math.pi)
_TINY = 1e-300
# Points at a time, for each input: so many numbers, or so many points if these are more. Of 1,000 classes that is an eighth
# of a megabyte; fewer points would cost a runtime more operators.
_NUMBERS_AT_ONCE, _FEWEST_AT_ONCE = 2048, 16


class FixedPoints(nn.Module):
    r"""Mean, log-precision, entropies, information and what novelty is made of, from logits, scales and factors.

    The points are those of :class:`opu.distributions.LogisticNormal`, all in float64. Each point is read once: the points
    of many classes come in several parts, so that memory does not grow with their number.

    Entropies add terms of one sign, also next to a corner, and the information is their difference. Since no scale is
    below :math:`e^{-10}`, the information has a relative error below 1e-4. Probabilities below 1e-290 are those of the
    locations.

    Args:
        num_classes: K.
        rank: Number of factors.
        tilt: That of the dispersion, see :class:`opu.novelty.Blend`.
    """

    own: Tensor
    shared: Tensor

    def __init__(self, num_classes: int, rank: int, tilt: float = 0.0) -> None:
        super().__init__()
        self.num_classes, self.rank, self.tilt = num_classes, rank, tilt
        if num_classes == 2:  # the difference of the logits says all
            own = normal_points(num_points_for(1), 1) * torch.tensor([[0.5, -0.5]], dtype=torch.float64)
            shared = own[:, :0]
        else:
            size = num_classes + rank
            own, shared = normal_points(num_points_for(size), size).split([num_classes, rank], -1)
        self.num_points = len(own)
        self.register_buffer("own", own.clone(), persistent=False)
        # With a one before each, for the location: one product gives the location and what classes share.
        self.register_buffer("shared", nn.functional.pad(shared, (1, 0), value=1.0), persistent=False)

    def forward(
        self, logits: Float[Tensor, "B K"], parameters: Float[Tensor, "B P"]
    ) -> tuple[Float64[Tensor, "B K"], Float64[Tensor, " B"], Float64[Tensor, "B measures"], Float64[Tensor, "B 2"]]:
        """The mean, the log-precision, one column for each of ``CLOSED_FORM``, and entropy and dispersion."""
        # One more row, since ONNX Runtime reduces an empty batch to a wrong shape; its outputs are dropped.
        rows = nn.functional.pad(torch.cat([logits, parameters], -1).double(), (0, 0, 0, 1))
        k = self.num_classes
        location, log_scale = rows[:, :k], rows[:, k : 2 * k]
        factors = rows[:, 2 * k :].unflatten(-1, (k, self.rank)).mT if self.rank else None  # (B, R, K)
        mean, expected, sum_of_logs = self._averages(location, log_scale, factors)

        share, above = _relative(mean)
        log_norm, total = _log1p(above), 1 + above
        log_share = torch.where(share > 1e-290, share.clamp(min=_TINY).log(), _relative_to_largest(location))
        entropy = log_norm - (share * log_share).sum(-1, keepdim=True) / total
        information = (entropy - expected).clamp(min=0)

        h = share / total
        others = (above + torch.where(share < 1, 1 - share, 0.0)) / total  # 1 - h, also where h is 1 to all digits
        spread = (h * others * torch.exp(2 * log_scale)).sum(-1, keepdim=True)
        if factors is not None:
            column = h.unsqueeze(-1)
            spread = spread + ((factors - factors @ column).square() @ column).sum(1)
        log_precision = math.log(k - 1) - spread.clamp(min=_TINY).log()
        dispersion = -log_precision - self.tilt * (log_share - log_norm).mean(-1, keepdim=True)

        differential = log_volume(log_scale, factors) / 2 + sum_of_logs + self._constant_of_entropy()
        found = torch.cat([entropy, expected, information, differential], -1)
        witnesses = torch.cat([entropy, dispersion], -1)
        return mean[:-1], log_precision[:-1, 0], found[:-1], witnesses[:-1]

    def _averages(
        self, location: Tensor, log_scale: Tensor, factors: Tensor | None
    ) -> tuple[Float64[Tensor, "B K"], Float64[Tensor, "B 1"], Float64[Tensor, "B 1"]]:
        """The mean, the expected entropy, and the expected sum of the logarithms of all class probabilities."""
        scale, basis = log_scale.exp().unsqueeze(1), location.unsqueeze(1)
        if self.num_classes == 2:
            variance = torch.exp(2 * log_scale).sum(-1, keepdim=True)
            if factors is not None:
                variance = variance + (factors[..., 1:] - factors[..., :1]).square().sum(1)
            scale = variance.sqrt().unsqueeze(1)
        elif factors is not None:
            basis = torch.cat([basis, factors], 1)
        few = max(_FEWEST_AT_ONCE, _NUMBERS_AT_ONCE // self.num_classes)
        points = zip(self.own.split(few), self.shared.split(few), strict=True)
        # As one tensor: a runtime finishes one of its outputs after the other, and would keep what the others need.
        parts = [torch.cat(_sums_over_points(shared @ basis + own * scale), -1) for own, shared in points]
        sums = sum(parts[1:], start=parts[0])
        mean, expected, logs = (sums / self.num_points).split([self.num_classes, 1, 1], -1)
        return mean, expected, logs

    def _constant_of_entropy(self) -> float:
        k = self.num_classes
        return 0.5 * ((k - 1) * (1 + _LOG_2_PI) + math.log(k))


def _sums_over_points(logits: Float64[Tensor, "B M K"]) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, entropy and the sum of log-probabilities, each added up over points."""
    below = (logits - logits.amax(-1, keepdim=True)).clamp(min=_LOWEST)
    share = below.exp()
    above = _above_one(share)
    log_norm, weight = _log1p(above), 1 / (1 + above)
    entropy = log_norm - (share * below).sum(-1, keepdim=True) * weight  # neither term is negative
    logs = below.sum(-1, keepdim=True) - logits.shape[-1] * log_norm
    return (weight.mT @ share).squeeze(1), entropy.sum(1), logs.sum(1)


def _relative(mean: Float64[Tensor, "B K"]) -> tuple[Float64[Tensor, "B K"], Float64[Tensor, "B 1"]]:
    """Probabilities in units of the largest, and their sum minus 1."""
    share = mean / mean.amax(-1, keepdim=True)
    return share, _above_one(share)


def _above_one(share: Float64[Tensor, "*B K"]) -> Float64[Tensor, "*B 1"]:
    """The sum minus 1 of numbers of which the largest is 1, right relative to its own size."""
    total = share.sum(-1, keepdim=True)
    # Where the sum is small, only one of them is 1.
    return torch.where(total > 1.5, total - 1, torch.where(share < 1, share, 0.0).sum(-1, keepdim=True))


def _log1p(x: Float64[Tensor, "*B"]) -> Float64[Tensor, "*B"]:
    """ln(1 + x) of numbers that are not negative, which ONNX has not: what rounding does to 1 + x is divided out."""
    total = 1 + x
    return torch.where(total > 1, total.log() * (x / (total - 1).clamp(min=_TINY)), x)


def _relative_to_largest(location: Float64[Tensor, "B K"]) -> Float64[Tensor, "B K"]:
    return (location - location.amax(-1, keepdim=True)).clamp(min=_LOWEST, max=math.log(1e-290))


def log_volume(log_scale: Float64[Tensor, "B K"], factors: Float64[Tensor, "B R K"] | None) -> Float64[Tensor, "B 1"]:
    r"""Logarithm of the determinant of the covariance of log-ratios.

    With :math:`W` the factors in units of the scales and :math:`v = W^\top u / s`, it is
    :math:`2 \sum_k \ln s_k + \ln|I + W^\top W| + \ln(|u/s|^2 - v^\top (I + W^\top W)^{-1} v)`. Elimination in the matrix
    of all these products gives both logarithms.
    """
    k = log_scale.shape[-1]
    inverse_scale = torch.exp(-log_scale).unsqueeze(1)
    along = inverse_scale / math.sqrt(k)
    if factors is None:
        products = along @ along.mT
    else:
        # Centred, since a part that all classes share would take digits and says nothing.
        centred = (factors - factors.mean(-1, keepdim=True)) * inverse_scale
        units = torch.cat([centred, along], 1)
        ones = torch.tensor([1.0] * factors.shape[1] + [0.0], dtype=torch.float64)
        products = units @ units.mT + ones.diag()
    log_determinant, rest = eliminated(products)
    return 2 * log_scale.sum(-1, keepdim=True) + log_determinant + rest.clamp(min=_TINY).log()


def eliminated(products: Float64[Tensor, "B N N"]) -> tuple[Float64[Tensor, "B 1"], Float64[Tensor, "B 1"]]:
    r"""Gauss' elimination in symmetric matrices :math:`\begin{pmatrix} A & v \\ v^\top & c \end{pmatrix}`.

    ONNX has neither determinants nor Cholesky's decomposition. Where :math:`A = I + W^\top W` no pivot is below 1.

    Returns:
        :math:`\ln|A|` and :math:`c - v^\top A^{-1} v`.
    """
    log_determinant = torch.zeros_like(products[:, 0, :1])
    for _ in range(products.shape[-1] - 1):
        pivot, column = products[:, :1, :1].clamp(min=1), products[:, 1:, :1]
        log_determinant = log_determinant + pivot.squeeze(-1).log()
        products = products[:, 1:, 1:] - column * (column / pivot).mT
    return log_determinant, products[:, 0]
