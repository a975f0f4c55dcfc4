"""Deterministic networks that measure distances in feature space: DDU (Mukhoti et al., 2023), SNGP (Liu et al., 2020)."""

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from reproduction.comparison.bounded import with_bounded_layers, without_bounds
from reproduction.paper.models import Models

NUM_RANDOM_FEATURES = 1024
# Candidates of which held-out inputs or labels choose one: the factor of the mean-field formula, the bound on the layers'
# spectral norms, and the fraction of the average variance that is added to every variance.
MEAN_FIELD_FACTORS = (math.pi / 8, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
SPECTRAL_BOUNDS = (1.0, 3.0, 10.0)
JITTERS = (1e-4, 1e-3, 1e-2, 1e-1)

M = TypeVar("M", bound=nn.Module)


class DensityOfFeatures(nn.Module):
    """A classifier, and minus the log-density of its last hidden layer under one Gaussian for each class."""

    centres: Tensor
    roots: Tensor
    log_shares: Tensor

    @torch.no_grad()
    def __init__(self, net: nn.Sequential, x: Tensor, labels: Tensor, num_classes: int, held_out: Tensor) -> None:
        super().__init__()
        self.body, self.head = net[:-1], net[-1]
        features = torch.cat([self.body(part) for part in x.split(4096)]).double()
        parts = [features[labels == k] for k in range(num_classes)]
        shares = torch.tensor([len(part) / len(x) for part in parts], device=x.device)
        covariances = torch.stack([part.T.cov() for part in parts])
        self.register_buffer("centres", torch.stack([part.mean(0) for part in parts]))
        self.register_buffer("log_shares", shares.double().log())
        self.register_buffer("roots", torch.empty_like(covariances))
        # A hidden unit that never fires for a class has no variance there. A fraction of the average variance is added to
        # all, the one under which held-out inputs are most likely.
        average = covariances.diagonal(dim1=-2, dim2=-1).mean()
        identity = torch.eye(features.shape[1], dtype=torch.float64, device=x.device)
        roots = [torch.linalg.cholesky(covariances + jitter * average * identity) for jitter in JITTERS]
        self.roots = min(roots, key=lambda root: self._mean_distance(root, held_out))

    def _mean_distance(self, roots: Tensor, x: Tensor) -> float:
        self.roots = roots
        return float(torch.cat([self(part)[1] for part in x.split(2000)]).mean())

    def forward(self, x: Tensor) -> tuple[Float[Tensor, "B K"], Float[Tensor, " B"]]:
        """Logits, and minus the log-density."""
        features = self.body(x)
        away = features.double().unsqueeze(0) - self.centres.unsqueeze(1)
        scaled = torch.linalg.solve_triangular(self.roots, away.mT, upper=False)
        volume = self.roots.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        log_density = -0.5 * scaled.square().sum(1) - volume.unsqueeze(1) + self.log_shares.unsqueeze(1)
        return self.head(features), -log_density.logsumexp(0)


class RandomFeaturesGP(nn.Module):
    """A Gaussian process on the last hidden layer, by random Fourier features, with a Laplace covariance.

    Args:
        net: A classifier, whose last layer is replaced.
        num_classes: Number of classes.
        length: Length scale of the kernel.
        num_features: Number of random Fourier features.
    """

    frequencies: Tensor
    phases: Tensor
    root: Tensor

    def __init__(
        self, net: nn.Sequential, num_classes: int, length: float, num_features: int = NUM_RANDOM_FEATURES
    ) -> None:
        super().__init__()
        self.body = net[:-1]
        width = hidden_width(net)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.register_buffer("frequencies", torch.randn(width, num_features) / length)
        self.register_buffer("phases", 2 * math.pi * torch.rand(num_features))
        self.register_buffer("root", torch.eye(num_features, dtype=torch.float64))
        self.head = nn.Linear(num_features, num_classes, bias=False)
        self.factor = math.pi / 8

    def random_features(self, x: Tensor) -> Float[Tensor, "B W"]:
        """The random Fourier features, whose inner products approximate a Gaussian kernel."""
        return math.sqrt(2 / len(self.phases)) * torch.cos(self.norm(self.body(x)) @ self.frequencies + self.phases)

    @torch.no_grad()
    def settle(self, x: Tensor, held_out: Tensor, labels: Tensor) -> None:
        """Fit the precision of the weights, one for all classes, and choose how far variance shrinks logits.

        Each input counts with weight 1, as in the authors' layer: with p (1 - p) a network that is sure of its training
        inputs would learn nothing from them.

        Args:
            x: Training inputs.
            held_out: Inputs whose labels choose the factor of the mean-field formula.
            labels: Classes of the held-out inputs.
        """
        precision = torch.eye(len(self.phases), dtype=torch.float64, device=x.device)
        for part in x.split(4096):
            features = self.random_features(part).double()
            precision += features.T @ features
        self.root = torch.linalg.cholesky(precision)
        losses = {}
        for factor in MEAN_FIELD_FACTORS:
            self.factor = factor
            losses[factor] = float(nn.functional.cross_entropy(self(held_out)[0], labels))
        self.factor = min(losses, key=lambda factor: losses[factor])

    def forward(self, x: Tensor) -> tuple[Float[Tensor, "B K"], Float[Tensor, " B"]]:
        """Mean-field logits, and minus their evidence by Dempster and Shafer, which grows far from the data."""
        features = self.random_features(x)
        variance = torch.linalg.solve_triangular(self.root, features.double().T, upper=False).square().sum(0)
        logits = self.head(features).double() / (1 + self.factor * variance).sqrt().unsqueeze(1)
        evidence = logits.logsumexp(-1)
        return logits, -torch.nn.functional.softplus(evidence - math.log(logits.shape[-1]))


def ddu(models: Models) -> tuple[nn.Module, int]:
    """A network with bounded layers and Gaussians over its features, and how many numbers it keeps."""
    domain = models.domain

    def fit(bound: float) -> DensityOfFeatures:
        torch.manual_seed(10_000 + models.seed)
        net = with_bounded_layers(models.classifier(), bound)
        models.train(net)
        without_bounds(net)
        return DensityOfFeatures(net, domain.x, domain.labels, domain.num_classes, domain.held_out).eval()

    model = _best_bound(fit, models)
    size = sum(p.numel() for p in model.parameters()) + model.centres.numel() + model.roots.numel() // 2
    return model, size


def sngp(models: Models) -> tuple[nn.Module, int]:
    """A network with bounded layers under a Gaussian process, and how many numbers it keeps."""
    domain = models.domain

    def fit(bound: float) -> RandomFeaturesGP:
        torch.manual_seed(20_000 + models.seed)
        net = with_bounded_layers(models.classifier(), bound)
        # Features are normalised to a length of sqrt(width), and two of them are about that far apart.
        model = RandomFeaturesGP(net, domain.num_classes, math.sqrt(hidden_width(net))).to(models.device)
        models.train(model, lambda x, labels: nn.functional.cross_entropy(model.head(model.random_features(x)), labels))
        without_bounds(net)
        model.settle(domain.x, domain.held_out, domain.held_out_labels)
        return model.eval()

    model = _best_bound(fit, models)
    size = sum(p.numel() for p in model.parameters()) + model.frequencies.numel() + model.root.numel() // 2
    return model, size


def _best_bound(fit: Callable[[float], M], models: Models) -> M:
    """The model of that bound under which held-out labels are most likely."""
    domain = models.domain

    @torch.no_grad()
    def loss(model: M) -> float:
        return float(nn.functional.cross_entropy(model(domain.held_out)[0], domain.held_out_labels))

    return min([fit(bound) for bound in SPECTRAL_BOUNDS], key=loss)


def hidden_width(net: nn.Sequential) -> int:
    """Width of the last hidden layer."""
    last = net[-1]
    assert isinstance(last, nn.Linear)
    return last.in_features
