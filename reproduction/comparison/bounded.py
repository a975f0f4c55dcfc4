"""Layers whose spectral norm is bounded, for the methods that need features which keep distances."""

import torch
from torch import Tensor, nn


class BoundedSpectralNorm(nn.Module):
    """Scales a weight down if its largest singular value exceeds a bound, found by one power step in training."""

    right: Tensor

    def __init__(self, weight: Tensor, bound: float) -> None:
        super().__init__()
        self.bound = bound
        self.register_buffer("right", nn.functional.normalize(torch.randn_like(weight[0]), dim=0))

    def forward(self, weight: Tensor) -> Tensor:
        """The weight within its bound."""
        with torch.no_grad():
            left = nn.functional.normalize(weight @ self.right, dim=0)
            if self.training:
                self.right.copy_(nn.functional.normalize(weight.mT @ left, dim=0))
        largest = left @ weight @ self.right
        return weight * (self.bound / largest).clamp(max=1.0)


def with_bounded_layers(net: nn.Sequential, bound: float = 3.0) -> nn.Sequential:
    """The network with every hidden layer's spectral norm bounded from above.

    In the papers residual connections keep distances from below as well; an MLP of this kind has none.
    """
    *hidden, _ = (layer for layer in net.children() if isinstance(layer, nn.Linear))
    for layer in hidden:
        bounded = BoundedSpectralNorm(layer.weight.detach(), bound)
        nn.utils.parametrize.register_parametrization(layer, "weight", bounded)
    return net


def without_bounds(net: nn.Sequential) -> None:
    """Replace bounded weights by their values once training is over, so that predicting does not find the norms again."""
    net.eval()
    for layer in net.children():
        if nn.utils.parametrize.is_parametrized(layer):
            nn.utils.parametrize.remove_parametrizations(layer, "weight")
