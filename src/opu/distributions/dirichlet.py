r"""A batch of Dirichlets, kept as a mean and a log-precision: what a student predicts.

.. math:: \alpha = h\, e^{g}, \qquad \textstyle\sum_k h_k = 1, \qquad \alpha_0 = e^{g}.

Everything here is computed in float64 from ``log alpha`` and cast back at the end. In float32 the differential entropy
is off by two nats at log-precision 14. A mean that sums to 1 only up to float32 rounding changes ``alpha_0`` by fifty at
log-precision 20, so the mean is normalised again in float64 before it is used.

Entropies, mutual information and divergences hold for log-precisions from -300 to 800, which an unbounded link reaches,
for means down to :math:`e^{-200}`, and for a thousand classes (:mod:`opu.distributions.gamma`). What a dtype cannot hold
is its largest or smallest number, never NaN: the entropy of a concentration of :math:`e^{-100}` is -3e38 in float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from opu.distributions.beta import BetaMarginals
from opu.distributions.gamma import (
    digamma_gaps,
    excess_and_rest,
    exponential_remainder,
    log_gamma_remainder,
    remainder_divergence,
)
from opu.distributions.simplex import divergence, log_shares, normalised

# exp(-550) is far below any concentration that matters, and its reciprocal is still finite in float64.
_LOWEST_LOG_CONCENTRATION = -550.0
_SURE_LOG_SHAPE = 80.0  # a Gamma variate of this shape is its mean to 17 digits
_LARGEST_EXPONENT = 690.0  # exp of it is finite in float64, also times the number of classes


@dataclass(frozen=True)
class Dirichlet:
    """A batch of Dirichlets on the simplex, as a value.

    ``log_mean`` is computed from ``mean`` by default. Networks should use :meth:`from_logits`, which keeps
    classes whose probability is too small for float32. Either is normalised again in float64 wherever it is used, and a
    concentration below :math:`e^{-550}` counts as :math:`e^{-550}`.
    """

    mean: Float[Tensor, "*B K"]  # h(x), rows on the simplex
    log_precision: Float[Tensor, "*B"]  # g(x) = log alpha_0
    log_mean: Float[Tensor, "*B K"] = field(default=None, repr=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.mean.shape[:-1] != self.log_precision.shape:
            raise ValueError(
                "a Dirichlet needs one log-precision for each row of the mean; got a mean of shape "
                f"{tuple(self.mean.shape)} and a log-precision of shape {tuple(self.log_precision.shape)}."
            )
        if self.log_mean is None:
            smallest = torch.finfo(self.mean.dtype).tiny
            object.__setattr__(self, "log_mean", self.mean.clamp(min=smallest).log())

    @classmethod
    def from_logits(cls, logits: Float[Tensor, "*B K"], log_precision: Float[Tensor, "*B"]) -> "Dirichlet":
        """The Dirichlet whose mean is the softmax of ``logits``."""
        log_mean = logits.log_softmax(-1)
        return cls(log_mean.exp(), log_precision, log_mean)

    @classmethod
    def from_concentration(cls, concentration: Float[Tensor, "*B K"]) -> "Dirichlet":
        """The Dirichlet with this ``alpha``, in the usual parametrisation."""
        if not bool((concentration > 0).all()):
            raise ValueError(f"concentrations must be positive; got {float(concentration.detach().min()):g}.")
        return cls.from_log_concentration(concentration.log())

    @classmethod
    def from_log_concentration(cls, log_concentration: Float[Tensor, "*B K"]) -> "Dirichlet":
        """The Dirichlet with this ``log alpha``."""
        return cls.from_logits(log_concentration, log_concentration.logsumexp(-1))

    @property
    def num_classes(self) -> int:
        """K."""
        return self.mean.shape[-1]

    @property
    def precision(self) -> Float[Tensor, "*B"]:
        """alpha_0 = e^g; infinite in float32 above log-precision 88, in float64 above 709."""
        return self.log_precision.exp()

    @property
    def concentration(self) -> Float[Tensor, "*B K"]:
        """alpha = h e^g; infinite in float32 above :math:`e^{88}`, in float64 above :math:`e^{709}`."""
        return self.log_concentration().exp().to(self.mean.dtype)

    def log_concentration(self) -> Float[Tensor, "*B K"]:
        """Log alpha in float64; the rows of alpha sum to ``e^g``."""
        log_mean = self.log_mean.double().log_softmax(-1)
        return (log_mean + self.log_precision.double().unsqueeze(-1)).clamp(min=_LOWEST_LOG_CONCENTRATION)

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, rows: object) -> "Dirichlet":
        """Some rows of the batch, by any index that torch understands."""
        return Dirichlet(self.mean[rows], self.log_precision[rows], self.log_mean[rows])  # type: ignore[index]

    @classmethod
    def cat(cls, parts: Sequence["Dirichlet"]) -> "Dirichlet":
        """Several batches as one."""
        columns = zip(*((q.mean, q.log_precision, q.log_mean) for q in parts), strict=True)
        return cls(*(torch.cat(column) for column in columns))

    def to(self, dtype: torch.dtype) -> "Dirichlet":
        """The same Dirichlets in another dtype; in float64 the mean is normalised again."""
        if dtype == self.mean.dtype:
            return self
        if dtype == torch.float64:
            return Dirichlet.from_logits(self.log_mean.double(), self.log_precision.double())
        return Dirichlet(self.mean.to(dtype), self.log_precision.to(dtype), self.log_mean.to(dtype))

    def cpu(self) -> "Dirichlet":
        """The same Dirichlets in the memory of the CPU."""
        return Dirichlet(self.mean.cpu(), self.log_precision.cpu(), self.log_mean.cpu())

    def where(self, known: Bool[Tensor, "*B"]) -> "Dirichlet":
        """The same Dirichlets in some rows, and NaN in all others."""
        each = known.unsqueeze(-1)
        mean, log_mean = (torch.where(each, values, torch.nan) for values in (self.mean, self.log_mean))
        return Dirichlet(mean, torch.where(known, self.log_precision, torch.nan), log_mean)

    def replaced(self, rows: Int64[Tensor, " N"], others: "Dirichlet") -> "Dirichlet":
        """The same Dirichlets with others in some rows."""
        pairs = zip(_fields(self), _fields(others), strict=True)
        return Dirichlet(*(ours.index_copy(0, rows, theirs.to(ours)) for ours, theirs in pairs))

    def detach(self) -> "Dirichlet":
        """The same Dirichlets without gradients."""
        return Dirichlet(self.mean.detach(), self.log_precision.detach(), self.log_mean.detach())

    def interval(self, level: float = 0.9) -> tuple[Float[Tensor, "*B K"], Float[Tensor, "*B K"]]:
        """Lower and upper end of a credible interval of each class probability."""
        return self.marginals().interval(level)

    # Sampling

    def log_rsample(self, num_particles: int) -> Float[Tensor, "S *B K"]:
        r"""Reparameterised draws as log-probabilities.

        A Gamma variate of shape ``alpha`` is drawn as ``Gamma(alpha + 1) U^(1/alpha)``, all in logarithms, so that a
        concentration of 1e-4 (for which torch's own sampler returns uniform vectors) or of 1e-30 is drawn correctly. The
        gradient is implicit for ``Gamma(alpha + 1)`` and explicit for the power of the uniform.
        """
        log_concentration = self.log_concentration()
        log_concentration = log_concentration.expand(num_particles, *log_concentration.shape)
        log_particles = log_gamma_rsample(log_concentration).log_softmax(-1)
        dtype = self.mean.dtype
        return log_particles.clamp(min=torch.finfo(dtype).min).to(dtype)

    def rsample(self, num_particles: int) -> Float[Tensor, "S *B K"]:
        """Reparameterised draws as probabilities."""
        return self.log_rsample(num_particles).exp()

    # Density and information

    def log_prob(self, log_particles: Float[Tensor, "*S K"]) -> Float[Tensor, "*S"]:
        r"""Log-density at points given as log-probabilities, ``(B, K)`` or with more axes before the batch.

        .. math:: \ln\Gamma(\alpha_0) - \sum_k \ln\Gamma(\alpha_k) + \sum_k (\alpha_k - 1) \ln\pi_k

        The points are normalised again in float64. The terms that grow with the precision are gathered in
        :math:`-\alpha_0 \mathrm{KL}(h, \pi)`, which is summed without cancellation.
        """
        log_point = normalised(log_particles, lowest=-torch.inf)
        log_mean, u, g = normalised(self.log_mean), self.log_concentration(), self._log_precision()
        log_total = g.clamp(max=_LARGEST_EXPONENT)
        alpha, away = torch.exp(log_mean + log_total), log_point - log_mean
        near = -alpha * exponential_remainder(away.clamp(-1, 1)) - log_point
        far = (alpha - 1) * log_point - alpha * log_mean + (alpha - torch.exp(log_point + log_total))
        value = torch.where(away.abs() < 1, near, far).sum(-1)
        return self._cast(value + log_gamma_remainder(g).squeeze(-1) - log_gamma_remainder(u).sum(-1))

    def mean_log_prob(self, mean_log: Float[Tensor, "*B K"]) -> Float[Tensor, "*B"]:
        r"""Mean log-density of points on the simplex whose log-probabilities have this mean, in float64.

        .. math:: \ln\Gamma(\alpha_0) - \sum_k \ln\Gamma(\alpha_k) + \sum_k (\alpha_k - 1)\, \overline{\ln\pi_k}

        Rounding of ``mean_log`` to float64 is multiplied by :math:`\alpha_0`: the value has an error of about
        :math:`10^{-16}\alpha_0`, 1e-7 at log-precision 20 and a few hundredths at 33. Above 690, :math:`\alpha_0` counts
        as :math:`e^{690}`.
        """
        mean_log, log_mean = mean_log.double(), normalised(self.log_mean)
        u, g = self.log_concentration(), self._log_precision()
        # The value stops growing there, and its gradient does not.
        bounded = g - (g - _LARGEST_EXPONENT).clamp(min=0).detach()
        alpha = torch.exp(log_mean + bounded)
        away = (alpha * (mean_log - log_mean) - mean_log).sum(-1)
        return away + log_gamma_remainder(g).squeeze(-1) - log_gamma_remainder(u).sum(-1)

    def entropy(self) -> Float[Tensor, "*B"]:
        r"""Differential entropy; it falls without bound as some ``alpha_k`` tends to 0.

        .. math:: \ln B(\alpha) + (\alpha_0 - K)\,\psi(\alpha_0) - \sum_k (\alpha_k - 1)\,\psi(\alpha_k)

        Its error is about 1e-15 times the sum of :math:`|\ln\alpha_k|` and :math:`1/\alpha_k` over the classes.
        """
        u, g = self.log_concentration(), self._log_precision().clamp(min=_LOWEST_LOG_CONCENTRATION)
        excess, rest = excess_and_rest(torch.cat([u, g], -1))
        # Terms in alpha cancel, since concentrations add up to alpha_0, whose digamma is excess + g - 1 / alpha_0.
        each = rest[..., :-1] - rest[..., -1:] / self.num_classes - (torch.exp(-u) - torch.exp(-g))
        shared = (1 - self.num_classes) * (excess[..., -1] + g.squeeze(-1))
        return self._cast(each.sum(-1) + shared)

    def expected_entropy(self) -> Float[Tensor, "*B"]:
        r"""Aleatoric uncertainty: the mean entropy of class probabilities drawn from the Dirichlet.

        .. math:: \psi(\alpha_0 + 1) - \sum_k h_k\,\psi(\alpha_k + 1)
        """
        log_mean, (digammas, _) = self._gaps()
        return self._cast((log_mean.exp() * digammas).sum(-1))

    def mutual_information(self) -> Float[Tensor, "*B"]:
        r"""Epistemic uncertainty: the entropy of the mean minus the expected entropy.

        .. math:: \sum_k h_k\,[\psi(\alpha_k + 1) - \ln\alpha_k] - [\psi(\alpha_0 + 1) - \ln\alpha_0]
        """
        log_mean, (_, differences) = self._gaps()
        return self._cast((log_mean.exp() * differences).sum(-1))

    def _gaps(self) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        (log_mean, log_others), g = log_shares(self.log_mean), self._log_precision()
        return log_mean, digamma_gaps(log_mean + g, g, log_mean, log_others)

    def _log_precision(self) -> Float[Tensor, "*B 1"]:
        return self.log_precision.double().unsqueeze(-1)

    def _cast(self, value: Tensor) -> Tensor:
        """Values in the dtype of the mean; what it cannot hold is its largest or smallest number."""
        limits = torch.finfo(self.mean.dtype)
        return value.clamp(limits.min, limits.max).to(self.mean.dtype)

    def marginals(self) -> BetaMarginals:
        """The Beta distribution of each class probability, with its credible intervals.

        A log-precision above 690 counts as 690: the distribution is a point to all digits.
        """
        above = (self._log_precision() - _LARGEST_EXPONENT).clamp(min=0)
        alpha = (self.log_concentration() - above).detach().exp()
        return BetaMarginals(alpha, _sum_of_others(alpha))


def _fields(q: Dirichlet) -> tuple[Tensor, Tensor, Tensor]:
    return q.mean, q.log_precision, q.log_mean


def kl_divergence(p: Dirichlet, q: Dirichlet) -> Float[Tensor, "*B"]:
    r"""KL(p || q) between two batches of Dirichlets, never negative, and 0 if they are equal.

    .. math:: \ln B(\beta) - \ln B(\alpha) + \sum_k (\alpha_k - \beta_k)\,[\psi(\alpha_k) - \psi(\alpha_0)]

    With :math:`s(\alpha) = \ln\Gamma(\alpha) - \alpha\ln\alpha + \alpha` this is :math:`\beta_0` times the KL between the
    means, plus the Bregman divergences of ``s`` summed over the classes, minus that of the total. Each is right relative to
    its own size, however close the Dirichlets are. If all classes but one are next to impossible under both, the last two
    cancel, and an error of 1e-15 times the squared difference of the log-precisions is left. The largest value is about
    :math:`e^{690}`.
    """
    log_p, log_q = normalised(p.log_mean), normalised(q.log_mean)
    g_p, g_q = p._log_precision(), q._log_precision()
    # Differences of logarithms are taken before anything is added, so that close Dirichlets keep their digits.
    longer = g_q - g_p
    between = divergence(log_q, log_p) * g_q.clamp(max=_LARGEST_EXPONENT).exp().squeeze(-1)
    u, steps = torch.cat([log_p + g_p, g_p], -1), torch.cat([longer + (log_q - log_p), longer], -1)
    divergences = remainder_divergence(u, steps)
    value = between + (divergences[..., :-1] - divergences[..., -1:] / p.num_classes).sum(-1)
    return p._cast(value.clamp(min=0))


def log_gamma_rsample(log_shape: Float[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """Logarithms of standard Gamma draws, differentiable in the logarithm of their shape, in float64."""
    log_shape = log_shape.double()
    drawn = log_shape.clamp(max=_SURE_LOG_SHAPE)
    boosted = torch.distributions.Gamma(drawn.exp() + 1, log_shape.new_ones(()), validate_args=False).rsample()
    log_uniform = -torch.empty_like(log_shape).exponential_()
    return boosted.log() + (log_shape - drawn) + log_uniform * torch.exp(-log_shape)


def _sum_of_others(values: Float[Tensor, "*B K"]) -> Float[Tensor, "*B K"]:
    # A sum from the left plus a sum from the right; total minus alpha_k would lose all digits at a corner of the simplex.
    zero = torch.zeros_like(values[..., :1])
    from_left = torch.cat([zero, values[..., :-1].cumsum(-1)], -1)
    from_right = torch.cat([values[..., 1:].flip(-1).cumsum(-1).flip(-1), zero], -1)
    return from_left + from_right
