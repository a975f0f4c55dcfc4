"""MC dropout on an MLP, from the slowest implementation to the fastest: all of them draw from the same posterior."""

import torch
from torch import Tensor, nn

from opu.devices import device_of
from opu.teachers import MCDropout

Summary = tuple[Tensor, Tensor]  # the mean over particles, and the mean of their entropies


class Running:
    """Means over particles that come a few at a time, so that memory does not grow with the number of particles."""

    def __init__(self) -> None:
        self.mean: Tensor | float = 0.0
        self.entropy: Tensor | float = 0.0
        self.count = 0

    def add(self, logits: Tensor) -> None:
        """Count some particles, ``(S, B, K)``."""
        self.add_sums(summed(logits), len(logits))

    def add_sums(self, sums: Summary, count: int) -> None:
        """Count particles that have been summed already."""
        self.mean, self.entropy = self.mean + sums[0], self.entropy + sums[1]
        self.count += count

    def summary(self) -> Summary:
        """The mean prediction and the expected entropy. Mutual information is the entropy of the first minus the second."""
        return torch.as_tensor(self.mean) / self.count, torch.as_tensor(self.entropy) / self.count


def summed(logits: Tensor) -> Summary:
    """Probabilities and entropies, summed over particles."""
    log_probabilities = logits.float().log_softmax(-1)
    probabilities = log_probabilities.exp()
    return probabilities.sum(0), -(probabilities * log_probabilities).sum((0, -1))


def dropout_mlp(num_features: int, hidden: tuple[int, ...], num_classes: int, rate: float = 0.5) -> nn.Sequential:
    """The paper's teacher, untrained: speed does not depend on the weights."""
    layers: list[nn.Module] = [nn.Flatten()]
    for wide in hidden:
        layers += [nn.Linear(num_features, wide), nn.ReLU(), nn.Dropout(rate)]
        num_features = wide
    return nn.Sequential(*layers, nn.Linear(num_features, num_classes))


def mc_dropout(net: nn.Module, *, consistent: bool) -> MCDropout:
    """The library's teacher with room for its activations: 4 GiB on a GPU, 256 MiB otherwise."""
    return MCDropout(net, consistent=consistent, memory_budget=2**32 if device_of(net).type == "cuda" else 2**28)


def loop(net: nn.Module, x: Tensor, num_particles: int) -> Summary:
    """One pass after the other, as in most tutorials."""
    net.train()
    found = Running()
    for _ in range(num_particles):
        found.add(net(x).unsqueeze(0))
    net.eval()
    return found.summary()


def vectorised(teacher: MCDropout, x: Tensor, num_particles: int, rows: int) -> Summary:
    """The library's teacher on some rows at a time: many particles at once, the first layer computed once."""
    parts = []
    for some in x.split(rows):
        found = Running()
        found.add(teacher(some, num_particles))
        parts.append(found.summary())
    mean, entropy = zip(*parts, strict=True)
    return torch.cat(mean), torch.cat(entropy)


class Folded:
    """One mask per particle, folded into the weights: dropout costs nothing, and a chunk of particles is one product.

    Args:
        net: A network of :func:`dropout_mlp` with two hidden layers.
        dtype: Precision of the layers.
        chunk: Number of particles in one product.
    """

    def __init__(self, net: nn.Sequential, dtype: torch.dtype, chunk: int) -> None:
        linear = [layer for layer in net if isinstance(layer, nn.Linear)]
        self.weights = [layer.weight.detach().T.to(dtype) for layer in linear]
        self.biases = [layer.bias.detach().to(dtype) for layer in linear]
        self.rate = next(layer.p for layer in net if isinstance(layer, nn.Dropout))
        self.chunk = chunk

    def __call__(self, x: Tensor, num_particles: int) -> Summary:
        """Mean prediction and expected entropy."""
        units = torch._addmm_activation(self.biases[0], x.flatten(1).to(self.weights[0].dtype), self.weights[0])
        found = Running()
        for start in range(0, num_particles, self.chunk):
            count = min(self.chunk, num_particles - start)
            found.add_sums(self.sums(units, count), count)
        return found.summary()

    def sums(self, units: Tensor, count: int) -> Summary:
        """Probabilities and entropies, summed over this number of particles."""
        return summed(self.logits(units, count))

    def logits(self, units: Tensor, count: int) -> Tensor:
        """Logits of this number of particles, from the first hidden units."""
        _, second, third = self.weights
        first_masks, second_masks = (self._masks(count, wide, units) for wide in (len(second), len(third)))
        wide = (first_masks.T.unsqueeze(-1) * second.unsqueeze(1)).flatten(1)
        hidden = torch._addmm_activation(self.biases[1].repeat(count), units, wide).view(len(units), count, -1)
        return torch.baddbmm(
            self.biases[2].expand(count, 1, -1), hidden.transpose(0, 1), second_masks.unsqueeze(-1) * third
        )

    def _masks(self, count: int, wide: int, like: Tensor) -> Tensor:
        kept = torch.rand(count, wide, device=like.device) >= self.rate
        return kept.to(like.dtype) / (1 - self.rate)


class CompiledFolded(Folded):
    """:class:`Folded` by ``torch.compile``: masks, products, softmax and sums."""

    def __init__(self, net: nn.Sequential, dtype: torch.dtype, chunk: int) -> None:
        super().__init__(net, dtype, chunk)
        self.compiled = torch.compile(super().sums, dynamic=False)

    def sums(self, units: Tensor, count: int) -> Summary:
        """Probabilities and entropies, summed over this number of particles."""
        return self.compiled(units, count)


class KeptUnits(Folded):
    """One mask per particle, and only the units that it keeps: at a rate of one half, a quarter of the arithmetic."""

    def logits(self, units: Tensor, count: int) -> Tensor:
        """Logits of this number of particles, one after the other: each keeps another number of units."""
        return torch.stack([self._one(units) for _ in range(count)])

    def _one(self, units: Tensor) -> Tensor:
        _, second, third = self.weights
        first, last = ((torch.rand(len(w), device=units.device) >= self.rate).nonzero()[:, 0] for w in (second, third))
        scale = 1 / (1 - self.rate)
        hidden = torch._addmm_activation(
            self.biases[1][last], units.index_select(1, first), scale * second.index_select(0, first)[:, last]
        )
        return torch.addmm(self.biases[2], hidden, scale * third.index_select(0, last))
