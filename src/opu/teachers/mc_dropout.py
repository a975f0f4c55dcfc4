"""MC dropout: a network whose dropout layers stay active at prediction time."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from opu.batches import Batch, first_tensor, fit_to, num_rows, repeat, scores, shapes, split, take
from opu.checks import check_at_least
from opu.choices import Outputs
from opu.teachers.base import BaseTeacher, as_logits, bytes_per_row, chunk_sizes, evaluating, to_log_probabilities


class MCDropout(BaseTeacher):
    """Any torch classifier with dropout layers, as a teacher.

    Many particles are computed at once. Layers before the first dropout layer do not depend on the masks, so they are
    computed once, and the batch is repeated for the particles at the first dropout layer. Batch normalisation and all other
    layers stay in evaluation mode.

    Args:
        net: The classifier. It is not changed: modes are restored after every call.
        outputs: Kind of the network's outputs.
        consistent: One mask per particle for all rows, so that each particle is one function drawn from the posterior. It
            needs fewer random numbers and is faster; the marginals of each row are the same.
        memory_budget: Largest number of bytes for the activations of one chunk; particles, then rows, are chunked to fit.
    """

    def __init__(
        self, net: nn.Module, *, outputs: Outputs = "logits", consistent: bool = False, memory_budget: int = 2**29
    ) -> None:
        self.net, self.outputs = net, outputs
        self.consistent, self.memory_budget = consistent, memory_budget
        # A module with dropout in its name may be a mere container of dropout layers; then only those count.
        self._layers = [layer for layer in net.modules() if is_dropout(layer) and not _holds_dropout(layer)]
        self._inner = [layer for layer in net.modules() if _drops_inside(layer)]
        self._repeat_at_input = bool(self._inner)
        self._one_by_one = False
        self._bytes: dict[tuple[Any, ...], int] = {}
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
        """The network itself: without dropout it computes about the average of the masked networks."""
        return as_logits(self.net, self.outputs)

    def __call__(self, x: Batch, num_particles: int) -> Float[Tensor, "S B K"]:
        """Log-probabilities of ``num_particles`` masked networks."""
        check_at_least(1, num_particles=num_particles)
        x = fit_to(x, self.net)
        rows, particles = chunk_sizes(self.memory_budget, self._bytes_per_row(x), num_rows(x))
        counts = [min(particles, num_particles - start) for start in range(0, num_particles, particles)]
        if self._one_by_one:
            counts = [1] * num_particles
        with evaluating(self.net):
            return torch.cat([self._all_rows(x, count, rows) for count in counts])

    def _bytes_per_row(self, x: Batch) -> int:
        """Bytes per row of inputs of this shape.

        The first call for a shape also finds out whether the batch is the first axis at every dropout layer. It tries
        batches of two sizes, since an axis may have the length of one of them by chance.
        """
        if shapes(x) not in self._bytes:
            restore_random_state = _random_state(first_tensor(x).device)
            with evaluating(self.net):
                for rows in (2, 3):
                    self._forward(repeat(take(x, slice(0, 1)), rows), 2)
            restore_random_state()
            self._bytes[shapes(x)] = bytes_per_row(self.net, x)
        return self._bytes[shapes(x)]

    def _all_rows(self, x: Batch, count: int, rows: int) -> Tensor:
        chunks, parts = list(split(x, rows)), []
        restore_random_state = _random_state(first_tensor(x).device) if self.consistent and len(chunks) > 1 else None
        for chunk in chunks:
            if restore_random_state is not None:
                restore_random_state()  # the same masks for all rows
            parts.append(self._forward(chunk, count))
        return torch.cat(parts, 1)

    def _forward(self, x: Batch, count: int) -> Tensor:
        if not self._repeat_at_input and count > 1:
            try:
                return self._masked(x, count, late=True)
            except (RuntimeError, IndexError):
                # For instance a skip connection around dropout: the batch has to be repeated at the input. An error that
                # has another reason occurs there again.
                self._repeat_at_input = True
        return self._masked(x, count, late=False)

    def _masked(self, x: Batch, count: int, late: bool) -> Tensor:
        """Log-probabilities of masked networks; if late, the batch is repeated at the first mask, else at the input."""
        rows = num_rows(x)
        with self._dropping(rows, count, late):
            values = scores(self.net, x if late else repeat(x, count))
        if late and len(values) == rows:
            raise RuntimeError("no dropout layer on the way to the output has repeated the batch")
        values = values.reshape(count, rows, *values.shape[1:])
        if values.ndim != 3:
            raise ValueError(
                f"the network must give one row of class scores per input; got outputs of shape {tuple(values.shape[1:])}."
            )
        return to_log_probabilities(values.float(), self.outputs)

    @contextmanager
    def _dropping(self, rows: int, count: int, late: bool) -> Iterator[None]:
        """Switch dropout on; if late, the first dropout layer repeats the batch for the particles."""
        with ExitStack() as stack:
            for layer in self._inner:
                layer.training = True
            for layer in self._layers:
                layer.training = not self.consistent
                if self.consistent:
                    stack.callback(layer.register_forward_hook(partial(_shared_mask, rows, count, late)).remove)
                elif late:
                    stack.callback(layer.register_forward_pre_hook(partial(_repeat_rows, rows, count)).remove)
                elif count > 1:
                    stack.callback(layer.register_forward_pre_hook(partial(self._look_for_batch, rows * count)).remove)
            yield

    def _look_for_batch(self, rows: int, _layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Hook before a dropout layer: a tensor without the batch, such as weights, would get one mask for all particles."""
        if inputs and rows not in inputs[0].shape:
            self._one_by_one = True


def is_dropout(layer: nn.Module) -> bool:
    """Whether a module is dropout: a layer of torch at a rate above 0, or a module named so."""
    if isinstance(layer, _DropoutNd):
        return layer.p > 0
    name = type(layer).__name__.lower()
    return "dropout" in name or "droppath" in name or "stochasticdepth" in name


def _holds_dropout(layer: nn.Module) -> bool:
    return any(is_dropout(child) for child in layer.modules() if child is not layer)


def _drops_inside(layer: nn.Module) -> bool:
    # These check their own training flag; a transformer layer in evaluation mode uses a fused kernel without dropout.
    inside = isinstance(layer, nn.MultiheadAttention | nn.RNNBase) and layer.dropout > 0
    # Attention of other libraries reads a rate, and calls a fused kernel that drops weights in training mode.
    if "attention" in type(layer).__name__.lower() and not isinstance(layer, nn.MultiheadAttention):
        rates = [value for name, value in vars(layer).items() if "dropout" in name and isinstance(value, float)]
        rates += [child.p for child in layer.children() if isinstance(child, _DropoutNd)]
        inside = max(rates, default=0.0) > 0
    return inside or isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer | nn.TransformerEncoder)


def _repeat_rows(rows: int, count: int, _layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """Hook before a dropout layer: repeat the batch, unless an earlier layer has done so."""
    z, *rest = inputs
    if len(z) == rows * count:
        return None
    _must_be_batch(z, rows)
    return (repeat(z, count), *rest)


def _shared_mask(rows: int, count: int, late: bool, layer: nn.Module, _inputs: tuple[Tensor, ...], z: Tensor) -> Tensor:
    """Hook after a dropout layer that is switched off: apply one mask per particle to all rows."""
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


def _must_be_batch(z: Tensor, rows: int) -> None:
    if len(z) != rows:
        raise RuntimeError(f"a dropout layer met a first axis of {len(z)}, not the batch of {rows}")


def _affine_mask(layer: nn.Module, ones: Tensor) -> tuple[Tensor, Tensor | None]:
    """Scale and offset of a dropout layer, ``z * scale + offset`` with a random mask, from its outputs for 1 and for 0."""
    layer.training = True
    offset = None
    if not isinstance(layer, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):  # these have no offset
        restore_random_state = _random_state(ones.device)
        offset = layer.forward(torch.zeros_like(ones))
        restore_random_state()
    at_one = layer.forward(ones)
    layer.training = False
    # Most layers have no offset, which saves an addition over all activations.
    return (at_one, None) if offset is None or not bool(offset.any()) else (at_one - offset, offset)


def _random_state(device: torch.device) -> Callable[[], None]:
    """A function that restores the random state that this device has now."""
    if device.type == "cuda":
        return partial(torch.cuda.set_rng_state, torch.cuda.get_rng_state(device), device)
    return partial(torch.set_rng_state, torch.get_rng_state())
