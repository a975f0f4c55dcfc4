"""MC dropout: a network whose dropout layers keep dropping at prediction time."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from opu.choices import Outputs
from opu.teachers.base import BaseTeacher, as_logits, bytes_per_row, device_of, evaluating, to_log_probabilities


class MCDropout(BaseTeacher):
    """Any torch classifier with dropout layers, as a teacher.

    Particles are computed many at a time. Whatever comes before the first dropout layer does not depend on the masks,
    so it is computed once; the batch is repeated for the particles only where the first mask falls. Batch
    normalisation and everything else stay in evaluation mode.

    Args:
        net: The classifier. It is not changed: modes are restored after every call.
        outputs: What the network gives.
        consistent: One mask per particle for all rows, so that each particle is one function drawn from the posterior;
            faster too, as far fewer random numbers are needed. The marginals of each row are the same.
        memory_budget: Bytes that the activations of one chunk may take; particles, then rows, are chunked to fit.
    """

    def __init__(
        self, net: nn.Module, *, outputs: Outputs = "logits", consistent: bool = False, memory_budget: int = 2**29
    ) -> None:
        self.net, self.outputs = net, outputs
        self.consistent, self.memory_budget = consistent, memory_budget
        # A module with dropout in its name may hold the layers that drop; then those are the ones.
        self._layers = [layer for layer in net.modules() if is_dropout(layer) and not _holds_dropout(layer)]
        self._inner = [layer for layer in net.modules() if _drops_inside(layer)]
        self._repeat_at_input = bool(self._inner)
        self._bytes: dict[torch.Size, int] = {}
        if not self._layers and not self._inner:
            raise ValueError(
                "MCDropout needs a network with dropout layers of a rate above 0; got none in "
                f"{type(net).__name__}. Dropout that is called as a function inside forward() cannot be found: make it a "
                "layer (torch.nn.Dropout)."
            )
        if consistent and self._inner:
            raise ValueError(
                "consistent masks need dropout in layers of its own; got dropout inside "
                f"{type(self._inner[0]).__name__}. Use consistent=False."
            )

    def network(self) -> nn.Module:
        """The network itself: dropout keeps the scale of what passes, so its weights are the posterior's mean."""
        return as_logits(self.net, self.outputs)

    def __call__(self, x: Tensor, num_particles: int) -> Float[Tensor, "S B K"]:
        """Log-probabilities of ``num_particles`` masked networks."""
        if num_particles < 1:
            raise ValueError(f"num_particles must be at least 1; got {num_particles}.")
        x = x.to(device_of(self.net, x))
        per_row = self._get_to_know(x)
        rows = max(1, min(len(x), self.memory_budget // per_row))
        particles = max(1, min(num_particles, self.memory_budget // (per_row * rows)))
        chunks = [min(particles, num_particles - start) for start in range(0, num_particles, particles)]
        with evaluating(self.net):
            return torch.cat([self._all_rows(x, count, rows) for count in chunks])

    def _get_to_know(self, x: Tensor) -> int:
        """Bytes per row of inputs like these; and whether the batch is the first axis wherever masks fall.

        Batches of two sizes tell: an axis that is as long as the batch by chance is so for one of them only.
        """
        if x.shape[1:] not in self._bytes:
            state = _RandomState(x.device)
            with evaluating(self.net):
                for rows in (2, 3):
                    self._forward(x[:1].repeat(rows, *[1] * (x.ndim - 1)), 2)
            state.restore()
            self._bytes[x.shape[1:]] = bytes_per_row(self.net, x)
        return self._bytes[x.shape[1:]]

    def _all_rows(self, x: Tensor, count: int, rows: int) -> Tensor:
        answers: list[Tensor] = []
        masks = _RandomState(x.device) if self.consistent and rows < len(x) else None
        for part in x.split(rows):
            if self.consistent and answers:
                assert masks is not None
                masks.restore()  # the same masks for the next rows
            answers.append(self._forward(part, count))
        return torch.cat(answers, 1)

    def _forward(self, x: Tensor, count: int) -> Tensor:
        if not self._repeat_at_input and count > 1:
            try:
                return self._repeated_at_first_mask(x, count)
            except _CannotRepeatLate:
                # A skip connection around dropout, say: the batch has to be repeated from the start.
                self._repeat_at_input = True
        repeated = x.repeat(count, *[1] * (x.ndim - 1))
        with self._dropping(len(x), count, late=False):
            return self._answer(self.net(repeated), len(x), count)

    def _repeated_at_first_mask(self, x: Tensor, count: int) -> Tensor:
        try:
            with self._dropping(len(x), count, late=True):
                return self._answer(self.net(x), len(x), count)
        except (RuntimeError, IndexError) as error:
            # Whatever is really wrong shows again when the batch is repeated from the start.
            raise _CannotRepeatLate from error

    def _answer(self, values: Tensor, rows: int, count: int) -> Tensor:
        if len(values) == rows != rows * count:
            raise _CannotRepeatLate  # no mask fell on the way to the output
        values = values.reshape(count, rows, *values.shape[1:])
        if values.ndim != 3:
            raise ValueError(
                f"the network must give one row of class scores per input; got outputs of shape {tuple(values.shape[1:])}."
            )
        return to_log_probabilities(values.float(), self.outputs)

    @contextmanager
    def _dropping(self, rows: int, count: int, late: bool) -> Iterator[None]:
        """Dropout on; with ``late``, the batch is repeated for the particles by the first layer that drops."""
        with ExitStack() as stack:
            for layer in self._inner:
                layer.training = True
            for layer in self._layers:
                layer.training = not self.consistent
                if self.consistent:
                    handle = layer.register_forward_hook(_shared_mask(rows, count, late))
                elif late:
                    handle = layer.register_forward_pre_hook(_repeat_rows(rows, count))
                else:
                    continue
                stack.callback(handle.remove)
            yield


class _CannotRepeatLate(RuntimeError):
    """The batch cannot be repeated where the first mask falls."""


def is_dropout(layer: nn.Module) -> bool:
    """Whether a module drops at random: torch's own layers at a rate above 0, or one with such a name."""
    if isinstance(layer, _DropoutNd):
        return layer.p > 0
    name = type(layer).__name__.lower()
    return "dropout" in name or "droppath" in name or "stochasticdepth" in name


def _holds_dropout(layer: nn.Module) -> bool:
    return any(is_dropout(child) for child in layer.modules() if child is not layer)


def _drops_inside(layer: nn.Module) -> bool:
    # These look at their own training flag; a transformer layer in evaluation mode takes a fused path with no dropout.
    inside = isinstance(layer, nn.MultiheadAttention | nn.RNNBase) and layer.dropout > 0
    return inside or isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer | nn.TransformerEncoder)


def _repeat_rows(rows: int, count: int) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...] | None]:
    def hook(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        z, *rest = inputs
        if len(z) == rows * count:
            return None
        _must_be_batch(z, rows)
        return (z.repeat(count, *[1] * (z.ndim - 1)), *rest)

    return hook


def _shared_mask(rows: int, count: int, late: bool) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
    def hook(layer: nn.Module, _inputs: tuple[Tensor, ...], z: Tensor) -> Tensor:
        if len(z) == rows * count:
            z = z.view(count, rows, *z.shape[1:])
        elif late:
            _must_be_batch(z, rows)
            z = z.unsqueeze(0)
        else:
            raise ValueError(
                "consistent masks need dropout on tensors whose first axis is the batch; "
                f"{type(layer).__name__} met one of length {len(z)} for a batch of {rows * count}. Use consistent=False."
            )
        scale, offset = _affine_mask(layer, z.new_ones(count, *z.shape[2:]))
        masked = z * scale.unsqueeze(1)
        return (masked if offset is None else masked + offset.unsqueeze(1)).flatten(0, 1)

    return hook


def _must_be_batch(z: Tensor, rows: int) -> None:
    if len(z) != rows:
        raise _CannotRepeatLate(f"a dropout layer met a first axis of {len(z)}, not the batch of {rows}")


def _affine_mask(layer: nn.Module, ones: Tensor) -> tuple[Tensor, Tensor | None]:
    """Every dropout is ``z * scale + offset`` for a random mask: read both off its answers to 1 and to 0."""
    if isinstance(layer, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):  # which have no offset
        layer.training = True
        scale = layer.forward(ones)
        layer.training = False
        return scale, None
    state = _RandomState(ones.device)
    layer.training = True
    at_zero = layer.forward(torch.zeros_like(ones))
    state.restore()
    at_one = layer.forward(ones)
    layer.training = False
    # Without an offset a pass over all activations is saved.
    return (at_one - at_zero, at_zero) if bool(at_zero.any()) else (at_one, None)


class _RandomState:
    """The random state of one device, to draw the same numbers twice."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()

    def restore(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(self.state, self.device)
        else:
            torch.set_rng_state(self.state)
