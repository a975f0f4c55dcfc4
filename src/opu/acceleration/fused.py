"""The last hidden layer of both networks, their heads, softmax and link in one kernel, with nothing between written out.

What a plain implementation does behind the first layer is bound by memory and by launches: hidden units go out and come
back, and small kernels follow. Here a program keeps the hidden units of 64 or 128 inputs on the chip.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from opu.acceleration.recorded import Recorded, unpack
from opu.acceleration.stacked import Answer, Stacked
from opu.students import Softsign

WIDEST = 448  # hidden units of which a program can hold the sums


class Fused:
    """A student with its networks side by side, whose last hidden layer and all that follows are one Triton kernel."""

    def __init__(self, layers: Stacked) -> None:
        from opu.acceleration.kernel import last_layers

        self.kernel, self.layers = last_layers, layers
        self.width, classes = layers.width, layers.num_classes
        self.whole, self.deep = -(-self.width // 16) * 16, -(-self.width // 64) * 64
        self.padded = max(16, 1 << (classes - 1).bit_length())  # a product must be that wide at least
        # The bias is one more row of the first weights, for inputs with a one behind them: the library's product is a
        # quarter faster without a bias of its own, and with rows of such a length.
        first, bias = layers.first
        self.features = len(first)
        beyond = -(self.features + 1) % 32
        self.first = pad(torch.cat([first, bias.unsqueeze(0)]), (0, 0, 0, beyond)).T.contiguous().T
        more = (0, self.whole - self.width)
        self.weight = torch.stack([pad(w, (*more, 0, self.deep - self.width)) for w, _ in layers.middle[-1]])
        self.bias = torch.stack([pad(b.float(), more) for _, b in layers.middle[-1]])
        weight, bias = layers.last
        self.head, self.head_bias = weight.new_zeros(2, self.whole, self.padded), bias.new_zeros(2, self.padded)
        self.head[0, : self.width, :classes] = weight[: self.width, :classes]
        self.head[1, : self.width, 0] = weight[self.width :, classes]
        self.head_bias[0, :classes], self.head_bias[1, 0] = bias[:classes], bias[classes]

    def __call__(self, x: Tensor) -> Answer:
        """Mean, log-precision and log-mean."""
        return unpack(self.packed(self.room(x)), self.layers.num_classes)

    def recorded(self, example: Tensor) -> Recorded:
        """The same as a CUDA graph for inputs of the example's shape."""
        room = self.room(example)
        place = room[:, : self.features].unflatten(1, example.shape[1:])
        return Recorded(self, place, lambda: self.packed(room))

    def room(self, x: Tensor) -> Tensor:
        """Inputs with a one behind each."""
        room = self.first.new_zeros(len(x), len(self.first))
        room[:, : self.features], room[:, self.features] = x.flatten(1), 1.0
        return room

    def packed(self, room: Tensor) -> Tensor:
        """The answers as one row of numbers."""
        layers, link = self.layers, self.layers.link
        units = torch.mm(room, self.first)
        if len(layers.middle) > 1:  # else the kernel does what follows a product
            units = layers.onward(units.relu_(), depth=len(layers.middle) - 1)
        slowly = isinstance(link, Softsign)
        low, high = (link.low, link.high) if isinstance(link, Softsign) else (0.0, 0.0)
        answers = units.new_empty(len(room) * (2 * layers.num_classes + 1), dtype=torch.float32)
        mean, log_precision, log_mean = unpack(answers, layers.num_classes)
        with torch.cuda.device_of(units):  # Triton launches on the current device
            self.kernel[lambda chosen: (2 * -(-len(room) // chosen["ROWS"]),)](
                units,
                self.weight,
                self.bias,
                self.head,
                self.head_bias,
                mean,
                log_mean,
                log_precision,
                float(low),
                float(high - low),
                len(room),
                len(room).bit_length(),
                WIDTH=self.width,
                WHOLE=self.whole,
                DEEP=self.deep,
                CLASSES=layers.num_classes,
                PADDED=self.padded,
                SOFTSIGN=slowly,
            )
        if not slowly:
            log_precision.copy_(link(log_precision))
        return answers
