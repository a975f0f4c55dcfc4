"""The measures of logistic-normals from the library's fixed points, in operators that every runtime has."""

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from opu.distributions.logistic_normal import LEAST_LOG_PROBABILITY, SMALL_INFORMATION, SMALL_LOG_ENTROPY
from opu.distributions.normal_rule import normal_points, num_points_for
from opu.novelty import LEAST_ENTROPY

_LOG_2_PI = math.log(2 * math.pi)
_TINY = 1e-300
_LEAST = math.exp(LEAST_LOG_PROBABILITY)
_NOT_THERE = -1e30  # a logit whose exponential is 0, and which may be multiplied by 0
# Points at a time, for each input: so many numbers, or so many points if these are more. Of 1,000 classes that is an eighth
# of a megabyte; fewer points would cost a runtime more operators.
_NUMBERS_AT_ONCE, _FEWEST_AT_ONCE = 2048, 16


class FixedPoints(nn.Module):
    r"""Mean, log-precision, entropies, information and what novelty is made of, from logits, scales and factors.

    The points are those of :class:`opu.distributions.LogisticNormal`, in the type of the logits, and averages over them are
    taken as in :mod:`opu.distributions.point_averages`. All that follows is in float64. Each point is read once: the points
    of many classes come in several parts, so that memory does not grow with their number.

    Entropies add terms of one sign, also next to a corner.

    Args:
        num_classes: K.
        rank: Number of factors.
        tilt: That of the dispersion, see :class:`opu.novelty.Blend`.
        dtype: Type of the logits, float32 or float64.
    """

    points: Tensor

    def __init__(self, num_classes: int, rank: int, tilt: float = 0.0, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.num_classes, self.rank, self.tilt = num_classes, rank, tilt
        if num_classes == 2:  # the difference of the logits says all
            own = normal_points(num_points_for(1), 1) * torch.tensor([[0.5, -0.5]], dtype=torch.float64)
            shared = own[:, :0]
        else:
            size = num_classes + rank
            own, shared = normal_points(num_points_for(size), size).split([num_classes, rank], -1)
        self.num_points = len(own)
        # For each class a one for its location, what classes share, and its own part, so that one product gives the logits.
        every = nn.functional.pad(shared, (1, 0), value=1.0).T.expand(num_classes, -1, -1)
        self.register_buffer("points", torch.cat([every, own.T.unsqueeze(1)], 1).to(dtype), persistent=False)

    def forward(
        self, logits: Float[Tensor, "B K"], parameters: Float[Tensor, "B P"]
    ) -> tuple[Float64[Tensor, "B K"], Float64[Tensor, " B"], Float64[Tensor, "B measures"], Float64[Tensor, "B 2"]]:
        """The mean, the log-precision, one column for each of ``CLOSED_FORM``, and entropy and dispersion."""
        # One more row, since ONNX Runtime reduces an empty batch to a wrong shape; its outputs are dropped.
        single = nn.functional.pad(torch.cat([logits, parameters], -1), (0, 0, 0, 1))
        k = self.num_classes
        location = single[:, :k] - single[:, :k].amax(-1, keepdim=True)
        mean, expected, log_norm = self._averages(location, single[:, k : 2 * k], single[:, 2 * k :])
        rows = single.double()
        location, log_scale = location.double(), rows[:, k : 2 * k]
        factors = rows[:, 2 * k :].unflatten(-1, (k, self.rank)).mT if self.rank else None  # (B, R, K)

        share, above = _relative(mean.clamp(min=_LEAST))
        log_norms, total = _log1p(above), 1 + above
        log_share = share.log()
        entropy = log_norms - (share * log_share).sum(-1, keepdim=True) / total

        h = share / total
        others = (above + torch.where(share < 1, 1 - share, 0.0)) / total  # 1 - h, also where h is 1 to all digits
        spread = (h * others * torch.exp(2 * log_scale)).sum(-1, keepdim=True)
        if factors is not None:
            column = h.unsqueeze(-1)
            spread = spread + ((factors - factors @ column).square() @ column).sum(1)
        spread = spread.clamp(min=_TINY)
        log_precision = math.log(k - 1) - spread.log()
        # Where the spread is small, entropies nearly cancel, and half of it takes the place of their difference.
        expected, half, log_entropy = expected.clamp(min=_LEAST), torch.minimum(spread / 2, entropy), entropy.log()
        weight = _ramp(half.log() - log_entropy, *map(math.log, SMALL_INFORMATION))
        weight = weight * _ramp(log_entropy, *(each + math.log(k) for each in SMALL_LOG_ENTROPY))
        information = weight * (entropy - expected).clamp(min=0) + (1 - weight) * half
        dispersion = -log_precision - self.tilt * (log_share - log_norms).mean(-1, keepdim=True)

        # The points add up to 0, so that the average of each logit is its location.
        sum_of_logs = location.sum(-1, keepdim=True) - k * log_norm
        differential = log_volume(log_scale, factors) + sum_of_logs + self._constant_of_entropy()
        found = torch.cat([entropy, expected, information, differential], -1)
        witnesses = torch.cat([entropy.clamp(min=LEAST_ENTROPY), dispersion], -1)
        return h[:-1], log_precision[:-1, 0], found[:-1], witnesses[:-1]

    def _averages(
        self, location: Float[Tensor, "B K"], log_scale: Float[Tensor, "B K"], factors: Float[Tensor, "B KR"]
    ) -> tuple[Float64[Tensor, "B K"], Float64[Tensor, "B 1"], Float64[Tensor, "B 1"]]:
        """The mean, the expected entropy, and the expected log-normaliser, with the largest location at 0."""
        k = self.num_classes
        shared = factors.unflatten(-1, (k, self.rank)) if self.rank else None
        if k == 2:
            variance = torch.exp(2 * log_scale).sum(-1, keepdim=True)
            if shared is not None:
                variance = variance + (shared[:, 1] - shared[:, 0]).square().sum(-1, keepdim=True)
            columns = [location.unsqueeze(-1), variance.sqrt().expand(-1, 2).unsqueeze(-1)]
        else:
            between = [] if shared is None else [shared]
            columns = [location.unsqueeze(-1), *between, log_scale.exp().unsqueeze(-1)]
        basis = torch.cat(columns, -1)  # (B, K, J)
        # The class with the largest location is set aside: at nearly all points of a sure prediction it is the largest.
        one = (torch.arange(k) == location.argmax(-1, keepdim=True)).to(basis.dtype)
        column = one.unsqueeze(-1)
        nothing = torch.tensor([_NOT_THERE] + [0.0] * (basis.shape[-1] - 1), dtype=basis.dtype)
        kept = torch.where(column > 0, nothing, basis).transpose(0, 1)
        alone = (basis * column).flatten(1)
        few = max(_FEWEST_AT_ONCE, _NUMBERS_AT_ONCE // k)
        # As one tensor: a runtime finishes one of its outputs after the other, and would keep what the others need.
        parts = [
            torch.cat(_sums_over_points(kept @ some, alone @ some.flatten(0, 1)), -1)
            for some in self.points.split(few, -1)
        ]
        sums = sum(parts[1:], start=parts[0]) / self.num_points
        mean, aside, expected, log_norm = sums.double().split([k, 1, 1, 1], -1)
        return mean + one.double() * aside, expected, log_norm

    def _constant_of_entropy(self) -> float:
        k = self.num_classes
        return 0.5 * ((k - 1) * (1 + _LOG_2_PI) + math.log(k))


def _sums_over_points(logits: Float[Tensor, "K B M"], aside: Float[Tensor, "B M"]) -> tuple[Tensor, ...]:
    """Probabilities of the others and of the class that is set aside, entropy and log-normaliser, added up over points."""
    classes, points = (torch.ones(count, 1, dtype=logits.dtype) for count in (len(logits), logits.shape[-1]))

    def over_classes(values: Tensor) -> Tensor:  # as a product, which runtimes do faster than a sum
        found: Tensor = (classes.T @ values.flatten(1)).unflatten(-1, values.shape[1:]).squeeze(0)
        return found

    top = torch.maximum(logits.amax(0), aside)
    below, aside = logits - top, aside - top
    shares, share = below.exp(), aside.exp()
    above = over_classes(shares) + (share - 1)
    weight, log_norm = 1 / (1 + above), _log1p(above)
    entropy = log_norm - (over_classes(shares * below) + share * aside) * weight
    mean = ((shares * weight) @ points).squeeze(-1).T
    return mean, *(part @ points for part in (share * weight, entropy, top + log_norm))


def _ramp(x: Float64[Tensor, "*B"], low: float, high: float) -> Float64[Tensor, "*B"]:
    """0 up to one number, 1 from another on."""
    return (x * (1 / (high - low)) - low / (high - low)).clamp(0, 1)


def _relative(mean: Float64[Tensor, "B K"]) -> tuple[Float64[Tensor, "B K"], Float64[Tensor, "B 1"]]:
    """Probabilities in units of the largest, and their sum minus 1."""
    share = mean / mean.amax(-1, keepdim=True)
    return share, _above_one(share)


def _above_one(share: Float64[Tensor, "*B K"]) -> Float64[Tensor, "*B 1"]:
    """The sum minus 1 of numbers of which the largest is 1, right relative to its own size."""
    total = share.sum(-1, keepdim=True)
    # Where the sum is small, only one of them is 1.
    return torch.where(total > 1.5, total - 1, torch.where(share < 1, share, 0.0).sum(-1, keepdim=True))


def _log1p(x: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """ln(1 + x) of numbers that are not negative, which ONNX has not: what rounding does to 1 + x is divided out."""
    total = 1 + x
    return torch.where(total > 1, total.log() * (x / (total - 1).clamp(min=1e-30)), x)


def log_volume(log_scale: Float64[Tensor, "B K"], factors: Float64[Tensor, "B R K"] | None) -> Float64[Tensor, "B 1"]:
    """Half the logarithm of the determinant of the covariance of log-ratios, see :mod:`opu.distributions.log_ratio_gaussian`.

    ONNX has neither determinants nor decompositions, so that the vectors are made orthogonal one by one.
    """
    k = log_scale.shape[-1]
    rank = 0 if factors is None else factors.shape[1]
    inverse_scale = torch.exp(-log_scale).unsqueeze(1)
    vectors = inverse_scale / math.sqrt(k)
    if factors is not None:
        centred = (factors - factors.mean(-1, keepdim=True)) * inverse_scale
        cost = torch.eye(rank + 1, rank, dtype=torch.float64)
        vectors = torch.cat([centred, vectors], 1)
        vectors = torch.cat([vectors, torch.zeros_like(vectors[..., :1]) + cost], -1)
    squares = []
    for _ in range(rank):
        first, rest = vectors[:, :1], vectors[:, 1:]
        squares.append(first.square().sum(-1).clamp(min=_TINY))
        vectors = rest - (rest * (first / squares[-1].unsqueeze(-1))).sum(-1, keepdim=True) * first
    squares.append(vectors.square().sum(-1).clamp(min=_TINY))
    return log_scale.sum(-1, keepdim=True) + torch.cat(squares, -1).log().sum(-1, keepdim=True) / 2
