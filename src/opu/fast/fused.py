"""The last hidden layer of both networks, their heads, softmax and link in one kernel, with nothing between written out.

What a plain implementation does behind the first layer is bound by memory and by launches: hidden units go out and come
back, and small kernels follow. Here a program keeps the hidden units of 64 or 128 inputs on the chip.
"""

import torch
from torch import Tensor

from opu.fast.side_by_side import Answer, SideBySide
from opu.students import SlowlyBounded


class Fused:
    """A student with its networks side by side, whose last hidden layer and all that follows are one Triton kernel."""

    def __init__(self, layers: SideBySide) -> None:
        from opu.fast.kernel import behind_the_first_layer

        self.kernel, self.layers = behind_the_first_layer, layers
        width, classes = layers.width, layers.num_classes
        self.padded = max(16, 1 << (classes - 1).bit_length())  # a product must be that wide at least
        self.weight = torch.stack([w.contiguous() for w, _ in layers.middle[-1]])
        self.bias = torch.stack([b for _, b in layers.middle[-1]]).float()
        weight, bias = layers.last
        self.head, self.head_bias = weight.new_zeros(2, width, self.padded), bias.new_zeros(2, self.padded)
        self.head[0, :, :classes], self.head[1, :, 0] = weight[:width, :classes], weight[width:, classes]
        self.head_bias[0, :classes], self.head_bias[1, 0] = bias[:classes], bias[classes]

    def __call__(self, x: Tensor) -> Answer:
        """Mean, log-precision and log-mean."""
        layers = self.layers
        units = layers.hidden(x, depth=len(layers.middle) - 1)
        mean, log_mean = units.new_empty(2, len(x), layers.num_classes, dtype=torch.float32)
        log_precision = units.new_empty(len(x), dtype=torch.float32)
        link = layers.link
        bounds = (link.low, link.high - link.low) if isinstance(link, SlowlyBounded) else (0.0, 0.0)
        self.kernel[lambda chosen: (2 * -(-len(x) // chosen["ROWS"]),)](
            units,
            self.weight,
            self.bias,
            self.head,
            self.head_bias,
            mean,
            log_mean,
            log_precision,
            *map(float, bounds),
            len(x),
            WIDTH=layers.width,
            WHOLE=-(-layers.width // 16) * 16,
            CLASSES=layers.num_classes,
            PADDED=self.padded,
            SLOWLY_BOUNDED=isinstance(link, SlowlyBounded),
        )
        return mean, log_precision if isinstance(link, SlowlyBounded) else link(log_precision), log_mean
