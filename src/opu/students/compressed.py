"""Students with less in them, which are distilled as any other: weights of one bit, and weights that are left out."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from opu.students.links import Link
from opu.students.networks import mlp
from opu.students.student import Student


class BinaryLinear(nn.Linear):
    """A layer each of whose units has weights of one size, which differ in their sign alone.

    The size is the mean of the absolute values below it. Training moves those real values: a gradient passes the signs as
    if they were not there (straight-through), and a weight that has come to zero changes sides.
    """

    def forward(self, x: Tensor) -> Tensor:
        """With binary weights."""
        return nn.functional.linear(x, self.binary_weight(), self.bias)

    def binary_weight(self) -> Tensor:
        """As large as the mean of each unit's weights, with their signs; never zero."""
        size = self.weight.abs().mean(1, keepdim=True)
        binary = torch.where(self.weight < 0, -size, size)
        return self.weight + (binary - self.weight).detach()


def binary_mlp(
    num_features: int,
    num_classes: int,
    hidden: Sequence[int] = (400, 400),
    *,
    shared_trunk: bool = False,
    link: Link | str = "softsign",
) -> Student:
    """A student of fully connected layers with weights of one bit; the heads, which are small, keep theirs.

    Args:
        num_features: Numbers per input: 784 for 28 x 28 images.
        num_classes: K.
        hidden: Widths of the hidden layers.
        shared_trunk: One trunk with two heads instead of two networks.
        link: See :class:`Student`.
    """
    student = mlp(num_features, num_classes, hidden, shared_trunk=shared_trunk, link=link)
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
    """The same student, changed in place, with binary weights as they are in place of the real ones behind them."""
    for module in list(student.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, BinaryLinear):
                plain = nn.Linear(layer.in_features, layer.out_features, device=layer.weight.device)
                plain.load_state_dict({"weight": layer.binary_weight().detach(), "bias": layer.bias})
                setattr(module, name, plain)
    return student


def prune(student: Student, share: float | int) -> Student:
    """Leave out a share of the weights of every layer, the smallest ones; they stay out when it is distilled further.

    The student is changed in place. Distil it again after that: the weights that are left make up for the others.

    Args:
        student: Trained, of any architecture.
        share: How many of a layer's weights to leave out, from 0 to below 1; biases and heads of less than a thousand
            weights are left alone.
    """
    if not 0 <= share < 1:
        raise ValueError(f"the share of weights to leave out must be from 0 to below 1; got {share}.")
    for layer in student.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.Conv1d) and layer.weight.numel() >= _SMALL:
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
    # Without a gradient an optimiser that starts anew leaves them at zero, and files and graphs need no masks.
    weight.register_hook(lambda gradient: gradient * kept.to(gradient))


def zeros(student: Student) -> float:
    """The share of all weights that are zero."""
    weights = [layer.weight for layer in student.modules() if hasattr(layer, "weight")]
    counted = [w for w in weights if isinstance(w, Tensor)]
    return sum(int((w == 0).sum()) for w in counted) / sum(w.numel() for w in counted)
