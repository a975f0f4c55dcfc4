"""Both networks of a student as one stack of layers: a wide first layer, and weights in the precision of choice."""

import torch
from torch import Tensor, nn

from opu.acceleration.captured import Outputs, fields_of
from opu.students import Student


class Stacked:
    """An MLP student whose two networks are computed together. Its numbers differ by the order of sums alone.

    Both networks read the same inputs, so their first layers are computed as one layer of twice the width. Behind it each
    network has its own layers.

    Args:
        student: A student with two networks of the same hidden widths. Its weights are copied: later changes have no effect.
        dtype: The precision of the hidden layers. The heads give float32.
    """

    def __init__(self, student: Student, dtype: torch.dtype = torch.float32) -> None:
        pairs = layers_of(student)
        assert pairs is not None, "only two fully connected networks with equal hidden layers can be stacked"
        self.family, self.dtype = student.family, dtype
        self.width = pairs[-1][0].in_features
        self.num_classes = pairs[-1][0].out_features
        first, *middle, last = [[_frozen(layer, dtype) for layer in pair] for pair in pairs]
        self.first = (torch.cat([w.T for w, _ in first]).T, torch.cat([b for _, b in first]))
        self.middle = middle
        # As blocks, so that one product gives logits and precision from the hidden units of both networks.
        self.last = (torch.block_diag(*[w for w, _ in last]), torch.cat([b for _, b in last]).float())

    def __call__(self, x: Tensor) -> Outputs:
        """The fields of the family's distribution."""
        heads = self.heads(self.hidden(x))
        logits, z = heads[:, : self.num_classes], heads[:, self.num_classes :]
        return fields_of(self.family.distribution(logits, self.family.parameters(z)))

    def hidden(self, x: Tensor) -> Tensor:
        """The last hidden units of both networks, one after the other in each row."""
        weight, bias = self.first
        # A GPU has products with ReLU inside, but some of them turn NaN into 0: a broken input would look like a good one.
        return self.deeper(torch.addmm(bias, x.flatten(1).to(self.dtype), weight).relu_())

    def deeper(self, units: Tensor, depth: int | None = None) -> Tensor:
        """First hidden units of both networks through the next ``depth`` layers, or through all of them."""
        for blocks in self.middle[:depth]:
            halves = [
                torch.addmm(bias, half, weight) for half, (weight, bias) in zip(units.chunk(2, 1), blocks, strict=True)
            ]
            units = torch.cat(halves, 1).relu_()
        return units

    def heads(self, units: Tensor) -> Tensor:
        """Logits and, behind them, the outputs of the precision network, before a link or bounds."""
        weight, bias = self.last
        if units.is_cuda and units.dtype != torch.float32:
            return torch.mm(units, weight, out_dtype=torch.float32) + bias
        return torch.addmm(bias.to(units.dtype), units, weight).float()


def layers_of(student: Student) -> list[tuple[nn.Linear, nn.Linear]] | None:
    """The layers of both networks in pairs if both are fully connected with ReLU and equally wide; None otherwise."""
    if student.trunk is not None:
        return None
    networks = []
    for net in (student.mean_net, student.precision_net):
        if not isinstance(net, nn.Sequential):
            return None
        flatten, *layers = list(net)
        if not isinstance(flatten, nn.Flatten) or flatten.start_dim != 1 or len(layers) < 3:
            return None
        kinds = [type(layer) for layer in layers]
        if kinds != [nn.Linear, nn.ReLU] * (len(layers) // 2) + [nn.Linear]:
            return None
        networks.append([layer for layer in layers if isinstance(layer, nn.Linear)])
    pairs = list(zip(*networks, strict=False))
    alike = len(networks[0]) == len(networks[1]) and all(
        a.in_features == b.in_features and a.out_features == b.out_features for a, b in pairs[:-1]
    )
    return pairs if alike and all(layer.bias is not None for pair in pairs for layer in pair) else None


def _frozen(layer: nn.Linear, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    # A transposed view, so that weights keep the layer's order in memory: products on a GPU are fastest in it.
    return layer.weight.detach().clone().to(dtype).T, layer.bias.detach().clone().to(dtype)
