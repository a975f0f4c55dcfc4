"""Smaller students, distilled like any other: binary weights, and pruned weights."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from opu.students.families import Family
from opu.students.links import Link
from opu.students.networks import mlp
from opu.students.student import Student


class BinaryLinear(nn.Linear):
    """A linear layer with binary weights: all weights of a unit have one absolute value and differ in sign only.

    That value is the mean absolute value of the real weights behind them. Training updates the real weights with
    straight-through gradients: the sign function is ignored in the backward pass.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output with binary weights."""
        return nn.functional.linear(x, self.binary_weight(), self.bias)

    def binary_weight(self) -> Tensor:
        """The binary weights; their gradient is that of the real ones."""
        size = self.weight.abs().mean(1, keepdim=True)
        binary = torch.where(self.weight < 0, -size, size)
        return self.weight + (binary - self.weight).detach()


def binary_mlp(
    num_features: int,
    num_classes: int,
    hidden: Sequence[int] = (400, 400),
    *,
    shared_trunk: bool = False,
    link: Link | str | None = None,
    family: Family | str = "dirichlet",
) -> Student:
    """A student of fully connected layers with binary weights; the heads, which are small, keep real weights.

    Args:
        num_features: Numbers per input: 784 for 28 x 28 images.
        num_classes: K.
        hidden: Widths of the hidden layers.
        shared_trunk: One trunk with two heads instead of two networks.
        link: See :class:`Student`.
        family: ``dirichlet`` or ``logistic_normal``: what the student predicts.
    """
    student = mlp(num_features, num_classes, hidden, shared_trunk=shared_trunk, link=link, family=family)
    assert student.architecture is not None
    student.architecture["architecture"] = "binary_mlp"
    for net in (student.trunk, student.mean_net, student.precision_net):
        if isinstance(net, nn.Sequential):
            layers = [place for place, layer in enumerate(net) if isinstance(layer, nn.Linear)]
            for place in layers if net is student.trunk else layers[:-1]:
                net[place] = _binary(net[place])
    return student


def _binary(layer: nn.Module) -> BinaryLinear:
    assert isinstance(layer, nn.Linear)
    binary = BinaryLinear(layer.in_features, layer.out_features)
    binary.load_state_dict(layer.state_dict())
    return binary


def with_plain_layers(student: Student) -> Student:
    """Replace binary layers by plain ones with the same weights; the student is changed in place."""
    for module in list(student.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, BinaryLinear):
                plain = nn.Linear(layer.in_features, layer.out_features, device=layer.weight.device)
                plain.load_state_dict({"weight": layer.binary_weight().detach(), "bias": layer.bias})
                setattr(module, name, plain)
    return student


def prune(student: Student, share: float | int) -> Student:
    """Set the smallest weights of every layer to zero; they stay zero when the student is distilled further.

    The student is changed in place. Distil it again afterwards, so that the other weights make up for the loss.

    Args:
        student: A trained student of any architecture.
        share: Fraction of each layer's weights to prune, from 0 to below 1. Biases and layers of fewer than a thousand
            weights are not pruned.
    """
    if not 0 <= share < 1:
        raise ValueError(f"the fraction of weights to prune must be from 0 to below 1; got {share}.")
    kinds = nn.Linear | nn.Conv2d | nn.Conv1d
    layers = [m for m in student.modules() if isinstance(m, kinds) and isinstance(m.weight, nn.Parameter)]
    layers = [layer for layer in layers if layer.weight.numel() >= _SMALL]
    if not layers:
        raise ValueError(
            f"this student has no layer of at least {_SMALL} weights to prune; if it was loaded without the class of its "
            "network, give that: opu.load(folder, backbone=net)."
        )
    for layer in layers:
        _prune_layer(layer.weight, share)
    return student


_SMALL = 1000


@torch.no_grad()
def _prune_layer(weight: Tensor, share: float | int) -> None:
    count = int(share * weight.numel())
    if count:
        smallest = weight.abs().flatten().kthvalue(count).values
        weight.mul_(weight.abs() > smallest)
    kept = weight != 0
    # Without a gradient, an optimiser without momentum from before leaves them at zero; files need no masks.
    weight.register_hook(lambda gradient: gradient * kept.to(gradient))
