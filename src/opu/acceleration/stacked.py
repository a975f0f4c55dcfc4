"""Two networks of fully connected layers side by side: one wide first layer, and weights in the precision of choice."""

import torch
from torch import Tensor, nn

from opu.students import Student

Answer = tuple[Tensor, Tensor, Tensor]  # mean, log-precision and log-mean: the fields of a Dirichlet, in its order


class Stacked:
    """An MLP student whose two networks are computed together, with the same numbers but for the order of sums.

    Both networks read the same inputs, so their first layers are one layer that is twice as wide; the layers behind it
    are blocks of one matrix, of which each network has its own.

    Args:
        student: Of two networks with the same hidden widths; it is copied, so later changes of it are not seen.
        dtype: In which layers are computed. The heads answer in float32.
    """

    def __init__(self, student: Student, dtype: torch.dtype = torch.float32) -> None:
        pairs = layers_of(student)
        assert pairs is not None, "only two fully connected networks with equal hidden layers stand side by side"
        self.link, self.dtype = student.link, dtype
        self.width = pairs[-1][0].in_features
        self.num_classes = pairs[-1][0].out_features
        first, *middle, last = [[_frozen(layer, dtype) for layer in pair] for pair in pairs]
        self.first = (torch.cat([w.T for w, _ in first]).T, torch.cat([b for _, b in first]))
        self.middle = middle
        # As blocks, so that one product gives logits and precision from the hidden units of both networks.
        self.last = (torch.block_diag(*[w for w, _ in last]), torch.cat([b for _, b in last]).float())

    def __call__(self, x: Tensor) -> Answer:
        """Mean, log-precision and log-mean."""
        answers = self.answers(self.hidden(x))
        log_mean = answers[:, : self.num_classes].log_softmax(-1)
        return log_mean.exp(), self.link(answers[:, self.num_classes]), log_mean

    def hidden(self, x: Tensor) -> Tensor:
        """The last hidden units of both networks, side by side."""
        weight, bias = self.first
        # Products with ReLU inside are there on a GPU, but some turn NaN into 0, and inputs that are no numbers into
        # ordinary answers.
        return self.onward(torch.addmm(bias, x.flatten(1).to(self.dtype), weight).relu_())

    def onward(self, units: Tensor, depth: int | None = None) -> Tensor:
        """From the first hidden units of both networks through some layers more."""
        for blocks in self.middle[:depth]:
            halves = [
                torch.addmm(bias, half, weight) for half, (weight, bias) in zip(units.chunk(2, 1), blocks, strict=True)
            ]
            units = torch.cat(halves, 1).relu_()
        return units

    def answers(self, units: Tensor) -> Tensor:
        """Logits and, behind them, what the link makes a log-precision."""
        weight, bias = self.last
        if units.is_cuda and units.dtype != torch.float32:
            return torch.mm(units, weight, out_dtype=torch.float32) + bias
        return torch.addmm(bias.to(units.dtype), units, weight).float()


def layers_of(student: Student) -> list[tuple[nn.Linear, nn.Linear]] | None:
    """The layers of both networks in pairs, where they are fully connected, with ReLU, and alike; else None."""
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
    # A view of weights that lie as the layer's own do, which is the order that products on a GPU like best.
    return layer.weight.detach().clone().to(dtype).T, layer.bias.detach().clone().to(dtype)
