"""Dirichlet prior networks (Malinin and Gales, 2018): no teacher, but labels, and OOD inputs in training."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from opu.distributions.dirichlet import Dirichlet, kl_divergence


def prior_network_loss(
    inside: Dirichlet,
    labels: Int64[Tensor, " B"],
    outside: Dirichlet,
    precision: float = 1000.0,
    smoothing: float = 0.01,
    cross_entropy: float = 0.0,
) -> Float[Tensor, ""]:
    """Forward KL from a sharp Dirichlet at each label, and from the flat one at each OOD input.

    Args:
        inside: The network's predictions for training inputs.
        labels: Classes of the training inputs.
        outside: The network's predictions for OOD inputs.
        precision: Precision of the target Dirichlets at labels.
        smoothing: Probability that a target leaves to each of the other classes.
        cross_entropy: Weight of the labels' cross-entropy as a further term, without which accuracy suffers.
    """
    num_classes = inside.num_classes
    mean = torch.full_like(inside.mean, smoothing)
    mean = mean.scatter(1, labels.unsqueeze(-1), 1 - smoothing * (num_classes - 1))
    sharp = Dirichlet.from_log_concentration(mean.log() + torch.full_like(mean[:, :1], precision).log())
    flat = Dirichlet.from_log_concentration(torch.zeros_like(outside.mean))
    divergences = kl_divergence(sharp, inside).mean() + kl_divergence(flat, outside).mean()
    return divergences + cross_entropy * nn.functional.nll_loss(inside.log_mean, labels)


@dataclass(frozen=True)
class FactorNoise:
    """OOD inputs made from the training inputs alone: a factor model of the pixels, sampled wider than the data.

    The first factors of the pixels' covariance are kept. A draw has factors ``spread`` times as wide as the data's, so
    that it lies at the edge of the data and beyond. No other dataset is used.
    """

    mean: Float[Tensor, " F"]
    factors: Float[Tensor, "L F"]  # rows scaled by the standard deviation of their factor
    low: Float[Tensor, ""]
    high: Float[Tensor, ""]
    spread: float = 3.0

    @classmethod
    def fit(cls, x: Float[Tensor, "N ..."], num_factors: int = 50, spread: float = 3.0) -> "FactorNoise":
        """The factor model of these inputs."""
        rows = x.flatten(1)
        mean = rows.mean(0)
        covariance = torch.cov((rows - mean).T)
        values, vectors = torch.linalg.eigh(covariance)
        strongest = values.argsort(descending=True)[:num_factors]
        factors = vectors[:, strongest].T * values[strongest].clamp(min=0).sqrt().unsqueeze(-1)
        return cls(mean, factors, rows.min(), rows.max(), spread)

    def like(self, x: Float[Tensor, "B ..."]) -> Float[Tensor, "B ..."]:
        """As many OOD inputs as there are inputs, in their shape."""
        draws = torch.randn(len(x), len(self.factors), device=x.device, dtype=x.dtype)
        pixels = self.mean + self.spread * draws @ self.factors
        return pixels.clamp(min=self.low, max=self.high).reshape(x.shape)
