"""Posterior samples of a network's weights, from SGLD, HMC or a Laplace approximation, as a teacher."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from opu.batches import Batch, Scores, fit_to, num_rows, shapes
from opu.choices import Outputs
from opu.files import write_atomically
from opu.teachers.base import BaseTeacher, choose, chunk_sizes
from opu.teachers.modes import bytes_per_row, changing, evaluating
from opu.teachers.outputs import Reading, as_logits
from opu.tensor_file import from_file, to_bytes


class WeightSamples(BaseTeacher):
    """One architecture with many sets of weights, evaluated for many of them at once.

    Args:
        net: The architecture. Its own weights are not used and not changed.
        samples: A list of state dicts, or one dict whose tensors have a leading axis of samples.
        outputs: Kind of the network's outputs.
        binary: Whether there is one output per input, which belongs to class 1 of two, as sigmoid classifiers have it.
        memory_budget: Largest number of bytes for the activations of one chunk.
    """

    def __init__(
        self,
        net: nn.Module,
        samples: Sequence[Mapping[str, Tensor]] | Mapping[str, Tensor],
        *,
        outputs: Outputs = "logits",
        binary: bool = False,
        memory_budget: int = 2**29,
    ) -> None:
        self.net, self.outputs, self.binary, self.memory_budget = net, outputs, binary, memory_budget
        self._reading = Reading(outputs, binary)
        self.samples = dict(samples) if isinstance(samples, Mapping) else _stack(samples)
        self.num_samples = _check(net, self.samples)
        self._bytes: dict[tuple[Any, ...], int] = {}

    def average_weights(self) -> dict[str, Tensor]:
        """The mean of the samples."""
        return {name: w.mean(0) if w.is_floating_point() else w[-1] for name, w in self.samples.items()}

    def network(self) -> nn.Module:
        """A copy of the network with the average of the samples, from which the paper starts the mean network."""
        net = copy.deepcopy(self.net)
        net.load_state_dict(self.average_weights())
        return as_logits(net, self.outputs, self.binary)

    def save(self, path: str | Path) -> None:
        """Write all samples into one safetensors file, in half precision: a posterior is far wider than its rounding.

        A checksum in the file lets :meth:`load` refuse one that is damaged.
        """
        half = {name: w.half() if w.is_floating_point() else w for name, w in self.samples.items()}
        for name, w in half.items():
            if w.is_floating_point() and not bool(torch.isfinite(w).all()):
                raise ValueError(
                    f"weights must be finite and below 65,504 to be kept in half precision; {name!r} has others."
                )
        write_atomically(Path(path), to_bytes({name: w.cpu().contiguous() for name, w in half.items()}))

    @classmethod
    def load(cls, net: nn.Module, path: str | Path, **options: Any) -> "WeightSamples":
        """Read samples that :meth:`save` wrote for the same architecture, onto the device of the network's weights."""
        try:
            samples, _ = from_file(path)
        except (ValueError, OSError) as error:
            raise ValueError(f"{path} is not a whole file of weight samples ({error}); sample again.") from error
        # Names are sorted in the file; callers rely on the order of the network's state dict.
        known = {name: samples.pop(name).to(w) for name, w in net.state_dict().items() if name in samples}
        return cls(net, known | samples, **options)

    def __call__(self, x: Batch, num_particles: int) -> Float[Tensor, "S B K"]:
        """Log-probabilities under a random subset of the samples, or under all of them."""
        device = next(iter(self.samples.values())).device
        index = choose(self.num_samples, num_particles, device)
        network = _Rows(self.net, self._reading)
        # The samples stand in the place of the network's own weights while it runs, so no other thread may use it.
        with changing(self.net), evaluating(self.net):
            self.net.to(device)
            x = fit_to(x, self.net)
            if shapes(x) not in self._bytes:
                self._bytes[shapes(x)] = bytes_per_row(self.net, x)
            _, chunk = chunk_sizes(self.memory_budget, self._bytes[shapes(x)], num_rows(x))

            def evaluate(weights: dict[str, Tensor]) -> Tensor:
                named = {f"net.{name}": w for name, w in weights.items()}
                outputs: Tensor = functional_call(network, named, (x,))
                return outputs

            some = ({name: w[part] for name, w in self.samples.items()} for part in index.split(chunk))
            parts = [vmap(evaluate)(weights) for weights in some]
        return self._reading.log_probabilities(torch.cat(parts).float())


class _Rows(Scores):
    """A network that returns one row per input: the scores of all classes, or the one of class 1."""

    def __init__(self, net: nn.Module, reading: Reading) -> None:
        super().__init__(net)
        self.reading = reading

    def forward(self, batch: Batch) -> Tensor:
        """The rows."""
        return self.reading.rows(super().forward(batch), type(self.net).__name__)


def _stack(samples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    if not samples:
        raise ValueError("WeightSamples needs at least one state dict; got an empty list.")
    names = samples[0].keys()
    for position, sample in enumerate(samples):
        if sample.keys() != names:
            raise ValueError(
                f"all state dicts must have the same names; number {position} differs in "
                f"{sorted(names ^ sample.keys())[:3]}."
            )
    return {name: torch.stack([sample[name].detach() for sample in samples]) for name in names}


def _check(net: nn.Module, samples: Mapping[str, Tensor]) -> int:
    own = net.state_dict()
    if samples.keys() != own.keys():
        raise ValueError(
            "weight samples must have the names of the network's state dict; they differ in "
            f"{sorted(own.keys() ^ samples.keys())[:3]}. Save net.state_dict() at each step."
        )
    counts = {len(w) if w.ndim else 0 for w in samples.values()}
    for name, w in samples.items():
        if w.shape[1:] != own[name].shape or len(counts) != 1 or not w.ndim:
            raise ValueError(
                f"weight samples must have a leading axis of samples before the network's shapes; {name!r} has shape "
                f"{tuple(w.shape)}, expected was (S, {', '.join(map(str, own[name].shape))})."
            )
    if counts == {0}:
        raise ValueError("WeightSamples needs at least one sample; got a leading axis of length 0.")
    return counts.pop()
