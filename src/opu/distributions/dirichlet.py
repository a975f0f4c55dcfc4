r"""A batch of Dirichlets, kept as a mean and a log-precision: what a student predicts.

.. math:: \alpha = h\, e^{g}, \qquad \textstyle\sum_k h_k = 1, \qquad \alpha_0 = e^{g}.

Everything here is computed in float64 from ``log alpha`` and cast back at the end. In float32 the differential entropy
is off by two nats at log-precision 14. A mean that sums to 1 only up to float32 rounding changes ``alpha_0`` by fifty at
log-precision 20, so the mean is normalised again in float64 before it is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from opu.distributions.beta import BetaMarginals

# exp(-300) is far below any concentration that matters, and its reciprocal is still finite in float64.
_LOWEST_LOG_CONCENTRATION = -300.0


@dataclass(frozen=True)
class Dirichlet:
    """A batch of Dirichlets on the simplex, as a value.

    ``log_mean`` is computed from ``mean`` by default. Networks should use :meth:`from_logits`, which keeps
    classes whose probability is too small for float32.
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
        """alpha_0 = e^g."""
        return self.log_precision.exp()

    @property
    def concentration(self) -> Float[Tensor, "*B K"]:
        """alpha = h e^g."""
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
        """
        alpha = self.log_concentration().exp()
        log_beta = torch.lgamma(alpha).sum(-1) - torch.lgamma(alpha.sum(-1))
        return (((alpha - 1) * log_particles.double()).sum(-1) - log_beta).to(self.mean.dtype)

    def entropy(self) -> Float[Tensor, "*B"]:
        r"""Differential entropy; it falls without bound as some ``alpha_k`` tends to 0.

        .. math:: \ln B(\alpha) + (\alpha_0 - K)\,\psi(\alpha_0) - \sum_k (\alpha_k - 1)\,\psi(\alpha_k)
        """
        alpha = self.log_concentration().exp()
        alpha_0 = alpha.sum(-1)
        log_beta = torch.lgamma(alpha).sum(-1) - torch.lgamma(alpha_0)
        centre = (alpha_0 - self.num_classes) * torch.digamma(alpha_0)
        value = log_beta + centre - ((alpha - 1) * torch.digamma(alpha)).sum(-1)
        return value.to(self.mean.dtype)

    def expected_entropy(self) -> Float[Tensor, "*B"]:
        r"""Aleatoric uncertainty: the mean entropy of class probabilities drawn from the Dirichlet.

        .. math:: \psi(\alpha_0 + 1) - \sum_k h_k\,\psi(\alpha_k + 1)
        """
        log_alpha = self.log_concentration()
        alpha = log_alpha.exp()
        mean = log_alpha.softmax(-1)
        value = torch.digamma(alpha.sum(-1) + 1) - (mean * torch.digamma(alpha + 1)).sum(-1)
        return value.clamp(min=0).to(self.mean.dtype)

    def mutual_information(self) -> Float[Tensor, "*B"]:
        r"""Epistemic uncertainty: the entropy of the mean minus the expected entropy.

        .. math:: \sum_k h_k\,[\psi(\alpha_k + 1) - \ln\alpha_k] - [\psi(\alpha_0 + 1) - \ln\alpha_0]
        """
        log_alpha = self.log_concentration()
        alpha = log_alpha.exp()
        mean = log_alpha.softmax(-1)
        total = torch.digamma(alpha.sum(-1) + 1) - log_alpha.logsumexp(-1)
        value = (mean * (torch.digamma(alpha + 1) - log_alpha)).sum(-1) - total
        return value.clamp(min=0).to(self.mean.dtype)

    def marginals(self) -> BetaMarginals:
        """The Beta distribution of each class probability, with its credible intervals."""
        alpha = self.log_concentration().detach().exp()
        return BetaMarginals(alpha, _sum_of_others(alpha))


def kl_divergence(p: Dirichlet, q: Dirichlet) -> Float[Tensor, "*B"]:
    r"""KL(p || q) between two batches of Dirichlets, never negative.

    .. math:: \ln B(\beta) - \ln B(\alpha) + \sum_k (\alpha_k - \beta_k)\,[\psi(\alpha_k) - \psi(\alpha_0)]
    """
    alpha, beta = p.log_concentration().exp(), q.log_concentration().exp()
    alpha_0, beta_0 = alpha.sum(-1), beta.sum(-1)
    # Large terms that nearly cancel are subtracted class by class before they are summed.
    normaliser = (torch.lgamma(beta) - torch.lgamma(alpha)).sum(-1) - (torch.lgamma(beta_0) - torch.lgamma(alpha_0))
    linear = ((alpha - beta) * (torch.digamma(alpha) - torch.digamma(alpha_0).unsqueeze(-1))).sum(-1)
    return (normaliser + linear).clamp(min=0).to(p.mean.dtype)


def log_gamma_rsample(log_shape: Float[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """Logarithms of standard Gamma draws, differentiable in the logarithm of their shape, in float64."""
    log_shape = log_shape.double()
    boosted = torch.distributions.Gamma(log_shape.exp() + 1, log_shape.new_ones(()), validate_args=False).rsample()
    log_uniform = -torch.empty_like(log_shape).exponential_()
    return boosted.log() + log_uniform * torch.exp(-log_shape)


def _sum_of_others(values: Float[Tensor, "*B K"]) -> Float[Tensor, "*B K"]:
    # A sum from the left plus a sum from the right; total minus alpha_k would lose all digits at a corner of the simplex.
    zero = torch.zeros_like(values[..., :1])
    from_left = torch.cat([zero, values[..., :-1].cumsum(-1)], -1)
    from_right = torch.cat([values[..., 1:].flip(-1).cumsum(-1).flip(-1), zero], -1)
    return from_left + from_right
