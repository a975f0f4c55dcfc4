"""A stacked student whose last hidden layer, heads, softmax and link are one Triton kernel.

Behind the first layer, plain PyTorch waits for memory and launches: it writes hidden units out, reads them back, and
launches many small kernels. The Triton kernel keeps the hidden units of 64 or 128 inputs on the chip.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from opu.acceleration.captured import Captured, Outputs, unpack
from opu.acceleration.stacked import Stacked
from opu.students import Softsign
from opu.students.families import DirichletFamily

WIDEST = 448  # hidden units whose sums one program can hold


class Fused:
    """A stacked student of Dirichlets that computes its last hidden layer and all that follows in one Triton kernel."""

    def __init__(self, layers: Stacked) -> None:
        from opu.acceleration.kernel import last_layers

        assert isinstance(layers.family, DirichletFamily), "the kernel ends in a softmax and a log-precision"
        self.kernel, self.layers, self.link = last_layers, layers, layers.family.link
        self.width, classes = layers.width, layers.num_classes
        self.shapes = [(classes,), (), (classes,)]
        # The kernel reads weights of the width rounded up to 16 in columns, and up to 64, its longest step, in rows.
        self.whole, self.deep = -(-self.width // 16) * 16, -(-self.width // 64) * 64
        self.padded = max(16, 1 << (classes - 1).bit_length())  # Triton's products need 16 columns at least
        # The bias is one more row of the first weights, and each input has a one behind it. With rows whose length 32
        # divides, this product is a quarter faster than one with a bias.
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

    def __call__(self, x: Tensor) -> Outputs:
        """Mean, log-precision and log-mean."""
        return unpack(self.packed(self.rows(x)), self.shapes)

    def captured(self, example: Tensor) -> Captured:
        """The same as a CUDA graph for inputs of the example's shape."""
        rows = self.rows(example)
        placeholder = rows[:, : self.features].unflatten(1, example.shape[1:])
        return Captured(self, placeholder, lambda: self.packed(rows), self.shapes)

    def rows(self, x: Tensor) -> Tensor:
        """Inputs as rows in the layers' precision, with a one behind each, and zeros up to the padded length."""
        rows = self.first.new_zeros(len(x), len(self.first))
        rows[:, : self.features], rows[:, self.features] = x.flatten(1), 1.0
        return rows

    def packed(self, rows: Tensor) -> Tensor:
        """The outputs for such rows as one row of numbers."""
        layers, link = self.layers, self.link
        units = torch.mm(rows, self.first)
        if len(layers.middle) > 1:  # with one hidden layer behind the first, the kernel applies the ReLU itself
            units = layers.deeper(units.relu_(), depth=len(layers.middle) - 1)
        softsign = isinstance(link, Softsign)
        low, high = (link.low, link.high) if isinstance(link, Softsign) else (0.0, 0.0)
        outputs = units.new_empty(len(rows) * (2 * layers.num_classes + 1), dtype=torch.float32)
        mean, log_precision, log_mean = unpack(outputs, self.shapes)
        with torch.cuda.device_of(units):  # Triton launches on the current device
            self.kernel[lambda chosen: (2 * -(-len(rows) // chosen["ROWS"]),)](
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
                len(rows),
                len(rows).bit_length(),
                WIDTH=self.width,
                WHOLE=self.whole,
                DEEP=self.deep,
                CLASSES=layers.num_classes,
                PADDED=self.padded,
                SOFTSIGN=softsign,
            )
        if not softsign:
            log_precision.copy_(link(log_precision))
        return outputs
