r"""A batch of logistic-normal distributions: class probabilities that are the softmax of Gaussian logits.

.. math:: \pi = \mathrm{softmax}(z), \qquad z \sim N(m,\, \Sigma), \qquad \Sigma = \mathrm{diag}(s^2) + U U^\top.

Adding a number to all logits changes nothing, so that the distribution is that of the centred log-ratios
:math:`\ln\pi_k - \tfrac1K \sum_j \ln\pi_j`, a Gaussian with mean :math:`Hm` and covariance :math:`H \Sigma H`, where
:math:`H = I - \tfrac1K 1 1^\top`.

Each log-ratio has a spread of its own. A Dirichlet has one precision for a large probability and for nine tiny ones, and
its credible interval of the predicted class is too narrow or too wide therefore.

The density has a closed form, and the entropy all but one of its terms. Expectations over the simplex (mean, entropies,
information, intervals) are averages over the fixed points of :mod:`opu.distributions.normal_rule`: no random numbers, and no
second pass through a network. ``docs/families.md`` has their errors, measured against a million samples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from opu.distributions.log_ratio_gaussian import orthonormal, spanning_vectors, squared_distance
from opu.distributions.normal_rule import num_points_for, points_like
from opu.distributions.point_averages import point_averages
from opu.distributions.simplex import entropy, log_shares, normalised

_LOG_2_PI = math.log(2 * math.pi)
_FAR = -1e30  # a logarithm of 0 whose square is a number
LEAST_LOG_PROBABILITY = -60.0  # probabilities and entropies of 1e-26
# Where the information is below the first fraction of the entropy, it is half of tr(G Sigma); above the second it is a
# difference of entropies, which has no digits for the former. The same where
# the logarithm of the entropy per class is below the first and above the second of two numbers: next to the least
# probability, the mean stays where it is while the expected entropy falls on.
SMALL_INFORMATION, SMALL_LOG_ENTROPY = (1e-4, 1e-3), (-50.0, -45.0)
# Numbers in a block of points of intervals: what fits the cache of a CPU, and little of the memory of a GPU.
_NUMBERS_AT_ONCE, _NUMBERS_ON_GPU = 2**18, 2**24


@dataclass(frozen=True)
class LogisticNormal:
    """A batch of logistic-normal distributions on the simplex, as a value."""

    location: Float[Tensor, "*B K"]  # m
    log_scale: Float[Tensor, "*B K"]  # ln s, of the part that is independent between classes
    factors: Float[Tensor, "*B K R"]  # U; R may be 0

    def __post_init__(self) -> None:
        shape = self.location.shape
        if self.log_scale.shape != shape or self.factors.shape[:-1] != shape:
            raise ValueError(
                "a logistic-normal needs a log-scale and a row of factors for each location; got locations of shape "
                f"{tuple(shape)}, log-scales of shape {tuple(self.log_scale.shape)} and factors of shape "
                f"{tuple(self.factors.shape)}."
            )

    @property
    def num_classes(self) -> int:
        """K."""
        return self.location.shape[-1]

    @property
    def rank(self) -> int:
        """R, the number of factors."""
        return self.factors.shape[-1]

    def __len__(self) -> int:
        return len(self.location)

    def __getitem__(self, rows: object) -> "LogisticNormal":
        """Some rows of the batch, by any index that torch understands."""
        return LogisticNormal(self.location[rows], self.log_scale[rows], self.factors[rows])  # type: ignore[index]

    @classmethod
    def cat(cls, parts: Sequence["LogisticNormal"]) -> "LogisticNormal":
        """Several batches as one."""
        columns = zip(*map(_fields, parts), strict=True)
        return cls(*(torch.cat(column) for column in columns))

    def to(self, target: torch.dtype | torch.device | str) -> "LogisticNormal":
        """The same distributions in another dtype or on another device."""
        return LogisticNormal(*(each.to(target) for each in _fields(self)))

    def cpu(self) -> "LogisticNormal":
        """The same distributions in the memory of the CPU."""
        return LogisticNormal(*(each.cpu() for each in _fields(self)))

    def where(self, known: Bool[Tensor, "*B"]) -> "LogisticNormal":
        """The same distributions in some rows, and NaN in all others."""
        each = known.unsqueeze(-1)
        location, log_scale = (torch.where(each, values, torch.nan) for values in (self.location, self.log_scale))
        return LogisticNormal(location, log_scale, torch.where(each.unsqueeze(-1), self.factors, torch.nan))

    def replaced(self, rows: Int64[Tensor, " N"], others: "LogisticNormal") -> "LogisticNormal":
        """The same distributions with others, of the same rank, in some rows."""
        pairs = zip(_fields(self), _fields(others), strict=True)
        return LogisticNormal(*(ours.index_copy(0, rows, theirs.to(ours)) for ours, theirs in pairs))

    def detach(self) -> "LogisticNormal":
        """The same distributions without gradients."""
        return LogisticNormal(*(each.detach() for each in _fields(self)))

    # The predictive distribution, by the fixed rule

    def log_points(self, num_points: int | None = None) -> Float[Tensor, "M *B K"]:
        """The fixed points that stand for the distribution, all of one weight, as log-probabilities.

        They are differentiable, and serve wherever particles do.
        """
        return self._logits(num_points).log_softmax(-1)

    def _logits(self, num_points: int | None = None, which: slice = slice(None)) -> Float[Tensor, "M *B K"]:
        """Logits at the fixed points, or at some of them."""
        if self.num_classes == 2:
            return self._two_logits(num_points, which)
        size = self.num_classes + self.rank
        points = points_like(num_points or num_points_for(size), size, self.location)[which]
        own, shared = points.split([self.num_classes, self.rank], -1)
        own = own.reshape(len(points), *(1,) * (self.location.ndim - 1), self.num_classes)
        return self._moved(own, torch.einsum("mr,...kr->m...k", shared, self.factors))

    def _moved(self, own: Tensor, shared: Tensor) -> Tensor:
        """Logits whose noise is of standard size for each class, plus a part that classes share."""
        return self.location + self.log_scale.exp() * own + shared

    def _two_logits(self, num_points: int | None, which: slice) -> Float[Tensor, "M *B 2"]:
        """For two classes the difference of the logits says all, and it takes points in one dimension."""
        points = points_like(num_points or num_points_for(1), 1, self.location)[which]
        own, shared = torch.exp(2 * self.log_scale).sum(-1), self.factors.diff(dim=-2).square().sum((-2, -1))
        away = (own + shared).sqrt() * points.reshape(-1, *(1,) * (self.location.ndim - 1)) / 2
        return self.location + torch.stack([away, -away], -1)

    @cached_property
    def _averages(self) -> tuple[Float64[Tensor, "*B K"], Float64[Tensor, "*B"], Float64[Tensor, "*B"]]:
        """Averages over the fixed points, all that measures need: log of the mean, entropy, and the sum of all ln pi.

        A probability below :data:`LEAST_LOG_PROBABILITY` counts as that, since float32 could not hold much smaller ones: the
        averages are the same in every type. Its gradient is that of its location.
        """
        batch, flat = self.location.shape[:-1], self._flat()
        found = point_averages(*_fields(flat))
        least = math.exp(LEAST_LOG_PROBABILITY)
        beneath = LEAST_LOG_PROBABILITY + flat.location - flat.location.detach()
        log_mean = normalised(torch.where(found.mean > least, found.mean.clamp(min=least).log(), beneath))
        expected = found.entropy.clamp(min=least)
        return log_mean.reshape(self.location.shape), expected.reshape(batch), found.log_sum.reshape(batch)

    @property
    def _log_mean(self) -> Float64[Tensor, "*B K"]:
        return self._averages[0]

    @property
    def mean(self) -> Float[Tensor, "*B K"]:
        """The predictive distribution: the average of the class probabilities."""
        return self._log_mean.exp().to(self.location.dtype)

    @property
    def log_mean(self) -> Float[Tensor, "*B K"]:
        """Logarithms of the mean."""
        return self._log_mean.to(self.location.dtype)

    @property
    def log_precision(self) -> Float[Tensor, "*B"]:
        r"""The log-precision of the Dirichlet with the same spread, where the spread is small.

        .. math::
            \ln(K - 1) - \ln T, \qquad T = \mathrm{tr}(G \Sigma)
            = \tfrac12 \sum_{j, k} h_j h_k \mathrm{Var}[\ln\pi_j - \ln\pi_k], \qquad G = \mathrm{diag}(h) - h h^\top

        :math:`G` is the Fisher information of the class in the logits at the mean :math:`h`. So :math:`T` is the mean
        squared distance of the class probabilities from their mean, in the unit in which a class tells them apart, and
        classes that are next to impossible do not count. Half of it is the mutual information, where that is small.
        """
        return (math.log(self.num_classes - 1) - self._spread.log()).to(self.location.dtype)

    @cached_property
    def _spread(self) -> Float64[Tensor, "*B"]:
        """T in the formula of the log-precision."""
        log_h, log_others = log_shares(self._log_mean)
        h = log_h.exp()
        own = (torch.exp(log_h + log_others + 2 * self.log_scale.double())).sum(-1)
        factors = self.factors.double()
        away = factors - (h.unsqueeze(-1) * factors).sum(-2, keepdim=True)
        # No term is negative, so that nothing cancels next to a corner.
        return (own + (h.unsqueeze(-1) * away.square()).sum((-2, -1))).clamp(min=1e-300)

    def expected_entropy(self) -> Float[Tensor, "*B"]:
        """Aleatoric uncertainty: the mean entropy of class probabilities drawn from the distribution."""
        return self._averages[1].to(self.location.dtype)

    def mutual_information(self) -> Float[Tensor, "*B"]:
        """Epistemic uncertainty: the entropy of the mean minus the expected entropy; never negative.

        Where the spread is small, the two are nearly equal, and half of T takes the place of their difference. Points are few
        for classes that are rare and spread widely: the information is then off by a third, or more.
        """
        total = entropy(self._log_mean)
        half = torch.minimum(self._spread / 2, total)
        few, many = SMALL_INFORMATION
        low, high = SMALL_LOG_ENTROPY
        weight = ((half / total / few).log() / math.log(many / few)).clamp(0, 1)
        weight = weight * (((total / self.num_classes).log() - low) / (high - low)).clamp(0, 1)
        information = weight * (total - self._averages[1]).clamp(min=0) + (1 - weight) * half
        return information.to(self.location.dtype)

    def interval(self, level: float = 0.9) -> tuple[Float[Tensor, "*B K"], Float[Tensor, "*B K"]]:
        r"""Lower and upper end of a credible interval of each class probability, with equal tails.

        The log-odds :math:`\ln\pi_k - \ln(1 - \pi_k)` is nearly Gaussian. Its ends come from its mean, variance and skewness
        (Cornish and Fisher's formula). Within those of level 0.9 lies a share of 0.88 to 0.92 of the distribution, for ten
        classes and a standard deviation of the log-odds of up to 2; with more of either it was 0.86 to 0.95.
        """
        if not 0 < level < 1:
            raise ValueError(f"the level of an interval must lie between 0 and 1; got {level}.")
        flat = self.detach().to(torch.float64)._flat()
        low, high = (torch.empty_like(flat.location, dtype=self.location.dtype) for _ in range(2))
        few = max(1, self._numbers_at_once // (self._num_interval_points * self.num_classes))
        for rows in (slice(start, start + few) for start in range(0, len(flat), few)):
            low[rows], high[rows] = flat[rows]._interval(level)
        return low.reshape(self.location.shape), high.reshape(self.location.shape)

    @property
    def _numbers_at_once(self) -> int:
        return _NUMBERS_AT_ONCE if self.location.device.type == "cpu" else _NUMBERS_ON_GPU

    @property
    def _num_interval_points(self) -> int:
        return 4 * num_points_for(self.num_classes + self.rank)

    def _flat(self) -> "LogisticNormal":
        rows = (math.prod(self.location.shape[:-1]), self.num_classes)
        shared = self.factors.reshape(*rows, self.rank)
        return LogisticNormal(self.location.reshape(rows), self.log_scale.reshape(rows), shared)

    def _interval(self, level: float) -> tuple[Tensor, Tensor]:
        odds = self._log_odds(self._num_interval_points)
        middle = odds.mean(0)
        away = odds.sub_(middle)
        spread = torch.linalg.vector_norm(away, dim=0) / math.sqrt(len(away))
        skewness = away.div_(spread.clamp(min=1e-300)).pow_(3).mean(0)
        wide = math.sqrt(2) * float(torch.special.erfinv(torch.tensor(level, dtype=torch.float64)))
        shift = middle + spread * (wide**2 - 1) * skewness / 6
        return torch.sigmoid(shift - wide * spread), torch.sigmoid(shift + wide * spread)

    def _log_odds(self, num_points: int) -> Float64[Tensor, "M N K"]:
        """Log-odds of all classes at the fixed points, of some points at a time: a block takes ten times its own memory."""
        odds = self.location.new_empty(num_points, *self.location.shape)
        few = max(1, self._numbers_at_once // self.location.numel())
        for which in (slice(start, start + few) for start in range(0, num_points, few)):
            log_points, log_others = log_shares(self._logits(num_points, which))
            torch.sub(log_points, log_others, out=odds[which])
        return odds

    # Sampling

    def log_rsample(self, num_particles: int) -> Float[Tensor, "S *B K"]:
        """Reparameterised draws as log-probabilities."""
        shape = (num_particles, *self.location.shape)
        own = torch.randn(shape, dtype=self.location.dtype, device=self.location.device)
        shared = torch.randn((*shape[:-1], self.rank), dtype=self.location.dtype, device=self.location.device)
        return self._moved(own, torch.einsum("s...r,...kr->s...k", shared, self.factors)).log_softmax(-1)

    def rsample(self, num_particles: int) -> Float[Tensor, "S *B K"]:
        """Reparameterised draws as probabilities."""
        return self.log_rsample(num_particles).exp()

    # Density and entropy, in closed form

    def log_ratio_log_prob(self, log_particles: Float[Tensor, "*S K"]) -> Float64[Tensor, "*S"]:
        r"""Log-density of the centred log-ratios of points, ``(B, K)`` or with more axes before the batch, in float64.

        It is that of a Gaussian on the :math:`K - 1` dimensions of log-ratios that sum to 0. With :math:`P = \Sigma^{-1}`,
        :math:`u = 1/\sqrt K` and the residual :math:`r`, the integral over the direction that does not count gives the
        formula below, which :mod:`opu.distributions.log_ratio_gaussian` computes without cancellation:

        .. math::
            -\tfrac12 \Big[(K - 1) \ln 2\pi + \ln|\Sigma| + \ln u^\top P u + r^\top P r
            - \frac{(u^\top P r)^2}{u^\top P u}\Big].
        """
        log_particles, log_scale = log_particles.double(), self.log_scale.double()
        residual = log_particles - log_particles.mean(-1, keepdim=True) - self.location.double()
        basis, log_volume = orthonormal(spanning_vectors(log_scale, self.factors.double()))
        square = squared_distance(residual * torch.exp(-log_scale), basis)
        return -0.5 * ((self.num_classes - 1) * _LOG_2_PI + square) - log_scale.sum(-1) - log_volume

    def log_prob(self, log_particles: Float[Tensor, "*S K"]) -> Float[Tensor, "*S"]:
        """Log-density on the simplex at points given as log-probabilities, in its first ``K - 1`` coordinates."""
        points = normalised(log_particles, lowest=_FAR)
        value = self.log_ratio_log_prob(points) - 0.5 * math.log(self.num_classes) - points.sum(-1)
        return value.to(self.location.dtype)

    def entropy(self) -> Float[Tensor, "*B"]:
        r"""Differential entropy on the simplex.

        .. math:: \tfrac{K-1}{2} \ln 2\pi e + \tfrac12 \ln|H \Sigma H|_+ + \tfrac12 \ln K + \sum_k E[\ln\pi_k]

        The determinant is that of the :math:`K - 1` dimensions. The last term is an average over the fixed points.
        """
        log_scale = self.log_scale.double()
        _, log_volume = orthonormal(spanning_vectors(log_scale, self.factors.double()))
        log_ratios = 0.5 * (self.num_classes - 1) * (1 + _LOG_2_PI) + log_scale.sum(-1) + log_volume
        return (log_ratios + 0.5 * math.log(self.num_classes) + self._averages[2]).to(self.location.dtype)


def _fields(q: LogisticNormal) -> tuple[Tensor, Tensor, Tensor]:
    return q.location, q.log_scale, q.factors
