"""MC dropout: a network whose dropout layers stay active at prediction time."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from opu.batches import Batch, first_tensor, fit_to, num_rows, repeat, scores, shapes, split, take
from opu.checks import check_at_least
from opu.choices import Outputs
from opu.teachers.base import BaseTeacher, chunk_sizes
from opu.teachers.masks import MaskedPass, SharedMasks, drops_inside, holds_dropout, is_dropout
from opu.teachers.modes import bytes_per_row, changing, evaluating, without_draws
from opu.teachers.outputs import Reading, as_logits


class MCDropout(BaseTeacher):
    """Any torch classifier with dropout, as a teacher.

    Many particles are computed at once. Layers before the first dropout layer do not depend on the masks, so they are
    computed once, and the batch is repeated for the particles at the first dropout layer. Batch normalisation and all other
    layers stay in evaluation mode.

    Dropout that is called as a function, ``F.dropout(x, p, self.training)``, is switched on as well; the batch is then
    repeated at the input. So is an attention whose class says so in its name, but a call of
    ``scaled_dot_product_attention`` elsewhere, with a rate of 0 in evaluation mode, cannot be told from one without dropout.

    Several threads may call the teacher; they take turns. A network that another thread calls directly meanwhile, ``net(x)``,
    computes with masks: give the teacher a copy of it.

    Args:
        net: The classifier. It is not changed: modes are restored after every call. One of ``torch.compile`` runs as it was
            before it was compiled.
        outputs: Kind of the network's outputs.
        consistent: One mask per particle for all rows, so that each particle is one function drawn from the posterior. It
            needs fewer random numbers and is faster; the marginals of each row are the same. Dropout must be in layers.
        binary: Whether there is one output per input, which belongs to class 1 of two, as sigmoid classifiers have it.
        memory_budget: Largest number of bytes for the activations of one chunk; particles, then rows, are chunked to fit.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        outputs: Outputs = "logits",
        consistent: bool = False,
        binary: bool = False,
        memory_budget: int = 2**29,
    ) -> None:
        self.net, self.outputs, self.binary = net, outputs, binary
        self.consistent, self.memory_budget = consistent, memory_budget
        self._eager: nn.Module = getattr(net, "_orig_mod", net)  # hooks are not a part of what torch.compile made
        self._reading = Reading(outputs, binary)
        # A module with dropout in its name may be a mere container of dropout layers; then only those count.
        self._layers = [layer for layer in net.modules() if is_dropout(layer) and not holds_dropout(layer)]
        self._inner = [layer for layer in net.modules() if drops_inside(layer)]
        self._repeat_at_input = bool(self._inner)
        self._one_by_one = self._found_function = False
        self._bytes: dict[tuple[Any, ...], int] = {}
        if not self._layers and not self._inner and all(_is_torchs_own(layer) for layer in net.modules()):
            raise self._no_dropout()
        if consistent and self._inner:
            raise ValueError(
                "consistent masks need dropout in layers of its own; got dropout inside "
                f"{type(self._inner[0]).__name__}. Use consistent=False."
            )

    def _no_dropout(self) -> ValueError:
        return ValueError(
            "MCDropout needs a network with dropout of a rate above 0, in layers (torch.nn.Dropout) or as a function "
            f"(torch.nn.functional.dropout); got none in {type(self._eager).__name__}."
        )

    def network(self) -> nn.Module:
        """The network itself: without dropout it computes about the average of the masked networks."""
        return as_logits(self.net, self.outputs, self.binary)

    def __call__(self, x: Batch, num_particles: int) -> Float[Tensor, "S B K"]:
        """Log-probabilities of ``num_particles`` masked networks."""
        check_at_least(1, num_particles=num_particles)
        x = fit_to(x, self.net)
        with changing(self.net), evaluating(self.net):
            rows, particles = chunk_sizes(self.memory_budget, self._bytes_per_row(x), num_rows(x))
            counts = [min(particles, num_particles - start) for start in range(0, num_particles, particles)]
            if self._one_by_one:
                counts = [1] * num_particles
            values = torch.cat([self._all_rows(x, count, rows) for count in counts])
        return self._reading.log_probabilities(values)

    def _bytes_per_row(self, x: Batch) -> int:
        """Bytes per row of inputs of this shape.

        The first call for a shape also finds out where dropout is, and whether the batch is the first axis at every dropout
        layer. It draws no masks. It tries batches of two sizes, since an axis may have the length of one of them by chance.
        """
        if shapes(x) not in self._bytes:
            with without_draws(_random_state(first_tensor(x).device)):
                for rows in (2, 3):
                    self._forward(repeat(take(x, slice(0, 1)), rows), 2, SharedMasks(), trial=True)
            if not self._layers and not self._inner and not self._found_function:
                raise self._no_dropout()
            self._bytes[shapes(x)] = bytes_per_row(self._eager, x)
        return self._bytes[shapes(x)]

    def _all_rows(self, x: Batch, count: int, rows: int) -> Tensor:
        shared, parts = SharedMasks(), []
        for chunk in split(x, rows):
            shared.rewind()
            parts.append(self._forward(chunk, count, shared))
        return torch.cat(parts, 1)

    def _forward(self, x: Batch, count: int, shared: SharedMasks, trial: bool = False) -> Tensor:
        if not self._repeat_at_input and count > 1:
            try:
                return self._masked(x, count, shared, late=True, trial=trial)
            except (RuntimeError, IndexError):
                # For instance a skip connection around dropout: the batch has to be repeated at the input. An error that
                # has another reason occurs there again.
                self._repeat_at_input = True
                shared.rewind()
        return self._masked(x, count, shared, late=False, trial=trial)

    def _masked(self, x: Batch, count: int, shared: SharedMasks, *, late: bool, trial: bool) -> Tensor:
        """Outputs of masked networks; if late, the batch is repeated at the first mask, else at the input."""
        rows = num_rows(x)
        with MaskedPass(
            self._layers,
            self._inner,
            rows=rows,
            count=count,
            late=late,
            shared=shared if self.consistent else None,
            trial=trial,
        ).run() as done:
            values = scores(self._eager, x if late else repeat(x, count))
        self._found_function = self._found_function or done.found_function
        self._one_by_one = self._one_by_one or done.without_batch
        values = self._reading.rows(values, type(self._eager).__name__)
        if late and len(values) != rows * count:
            raise RuntimeError("no dropout layer on the way to the output has repeated the batch")
        if len(values) != rows * count:
            raise ValueError(
                f"the network must give one row of class scores per input; got {len(values)} for {rows * count} inputs."
            )
        return values.reshape(count, rows, -1).float()


def _is_torchs_own(layer: nn.Module) -> bool:
    """Whether it is known what a layer calls; any other class may call dropout as a function."""
    return type(layer).__module__.startswith("torch.nn.modules.")


def _random_state(device: torch.device) -> Callable[[], None]:
    """A function that restores the random state that this device has now."""
    if device.type == "cuda":
        return partial(torch.cuda.set_rng_state, torch.cuda.get_rng_state(device), device)
    return partial(torch.set_rng_state, torch.get_rng_state())
