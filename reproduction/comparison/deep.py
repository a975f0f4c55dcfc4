"""Deterministic networks with a sense of distance: DDU (Mukhoti et al., 2023) and SNGP (Liu et al., 2020)."""

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from reproduction.comparison.bounded import with_bounded_layers, without_bounds
from reproduction.paper.domains import Domain
from reproduction.paper.models import Models

NUM_RANDOM_FEATURES = 1024
SHRINKAGE = (math.pi / 8, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
# Of the layers' spectral norms; each rival takes the one that suits held-out labels best.
BOUNDS = (1.0, 3.0, 10.0)
LENT = (1e-4, 1e-3, 1e-2, 1e-1)


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
        covariances = torch.stack([part.T.cov() for part in parts])
        self.register_buffer("centres", torch.stack([part.mean(0) for part in parts]))
        self.register_buffer(
            "log_shares", torch.tensor([len(p) / len(x) for p in parts], device=x.device).double().log()
        )
        self.register_buffer("roots", torch.empty_like(covariances))
        # A hidden unit that never fires for a class has no variance there; a little of the average is lent to all, as much
        # as makes held-out inputs most likely.
        average = covariances.diagonal(dim1=-2, dim2=-1).mean()
        identity = torch.eye(features.shape[1], dtype=torch.float64, device=x.device)
        roots = [torch.linalg.cholesky(covariances + lent * average * identity) for lent in LENT]
        self.roots = min(roots, key=lambda root: self._surprise(root, held_out))

    def _surprise(self, roots: Tensor, x: Tensor) -> float:
        self.roots = roots
        return float(torch.cat([self(part)[1] for part in x.split(2000)]).mean())

    def forward(self, x: Tensor) -> tuple[Float[Tensor, "B K"], Float[Tensor, " B"]]:
        """Logits, and strangeness."""
        features = self.body(x)
        away = features.double().unsqueeze(0) - self.centres.unsqueeze(1)
        scaled = torch.linalg.solve_triangular(self.roots, away.mT, upper=False)
        volume = self.roots.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        log_density = -0.5 * scaled.square().sum(1) - volume.unsqueeze(1) + self.log_shares.unsqueeze(1)
        return self.head(features), -log_density.logsumexp(0)


def ddu(models: Models) -> tuple[nn.Module, int]:
    """A network with bounded layers, and Gaussians over its features."""
    domain = models.domain

    def fitted(bound: float) -> DensityOfFeatures:
        torch.manual_seed(10_000 + models.seed)
        net = with_bounded_layers(models.classifier(), bound)
        models.train(net)
        without_bounds(net)
        return DensityOfFeatures(net, domain.x, domain.labels, domain.num_classes, domain.held_out).eval()

    model = _most_likely([fitted(bound) for bound in BOUNDS], domain)
    size = sum(p.numel() for p in model.parameters()) + model.centres.numel() + model.roots.numel() // 2
    return model, size


M = TypeVar("M", bound=nn.Module)


@torch.no_grad()
def _most_likely(candidates: Sequence[M], domain: Domain) -> M:
    """The one under which held-out labels are most likely."""
    return min(
        candidates, key=lambda m: float(nn.functional.cross_entropy(m(domain.held_out)[0], domain.held_out_labels))
    )


class RandomFeaturesGP(nn.Module):
    """A Gaussian process on the last hidden layer, by random random_features, with Laplace's covariance and mean-field logits."""

    frequencies: Tensor
    phases: Tensor
    root: Tensor

    def __init__(
        self, net: nn.Sequential, num_classes: int, length: float, num_waves: int = NUM_RANDOM_FEATURES
    ) -> None:
        super().__init__()
        self.body = net[:-1]
        width = width_of(net)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.register_buffer("frequencies", torch.randn(width, num_waves) / length)
        self.register_buffer("phases", 2 * math.pi * torch.rand(num_waves))
        self.register_buffer("root", torch.eye(num_waves, dtype=torch.float64))
        self.head = nn.Linear(num_waves, num_classes, bias=False)
        self.factor = math.pi / 8

    def random_features(self, x: Tensor) -> Float[Tensor, "B W"]:
        """The random features."""
        return math.sqrt(2 / len(self.phases)) * torch.cos(self.norm(self.body(x)) @ self.frequencies + self.phases)

    @torch.no_grad()
    def settle(self, x: Tensor, held_out: Tensor, labels: Tensor) -> None:
        """The precision of the weights over the training inputs, one for all classes; and how far variance shrinks logits.

        Each input counts with weight 1, as in the authors' layer: with p (1 - p) a network that is sure of its training
        inputs would learn nothing from them. The factor of the mean-field formula is chosen by held-out labels.
        """
        precision = torch.eye(len(self.phases), dtype=torch.float64, device=x.device)
        for part in x.split(4096):
            random_features = self.random_features(part).double()
            precision += random_features.T @ random_features
        self.root = torch.linalg.cholesky(precision)
        surprise = {}
        for factor in SHRINKAGE:
            self.factor = factor
            surprise[factor] = float(nn.functional.cross_entropy(self(held_out)[0], labels))
        self.factor = min(SHRINKAGE, key=lambda factor: surprise[factor])

    def forward(self, x: Tensor) -> tuple[Float[Tensor, "B K"], Float[Tensor, " B"]]:
        """Logits, shrunk where the process is unsure, and strangeness: Dempster and Shafer's share of no evidence."""
        random_features = self.random_features(x)
        spread = torch.linalg.solve_triangular(self.root, random_features.double().T, upper=False).square().sum(0)
        logits = self.head(random_features).double() / (1 + self.factor * spread).sqrt().unsqueeze(1)
        evidence = logits.logsumexp(-1)
        return logits, -torch.nn.functional.softplus(evidence - math.log(logits.shape[-1]))


def sngp(models: Models) -> tuple[nn.Module, int]:
    """A network with bounded layers under a Gaussian process."""
    domain = models.domain

    def fitted(bound: float) -> RandomFeaturesGP:
        torch.manual_seed(20_000 + models.seed)
        net = with_bounded_layers(models.classifier(), bound)
        # Features are normalised to a length of sqrt(width), and two of them are about that far apart.
        model = RandomFeaturesGP(net, domain.num_classes, math.sqrt(width_of(net))).to(models.device)
        models.train(model, lambda x, labels: nn.functional.cross_entropy(model.head(model.random_features(x)), labels))
        without_bounds(net)
        model.settle(domain.x, domain.held_out, domain.held_out_labels)
        return model.eval()

    model = _most_likely([fitted(bound) for bound in BOUNDS], domain)
    size = sum(p.numel() for p in model.parameters()) + model.frequencies.numel() + model.root.numel() // 2
    return model, size


def width_of(net: nn.Sequential) -> int:
    """Of the last hidden layer."""
    last = net[-1]
    assert isinstance(last, nn.Linear)
    return last.in_features
