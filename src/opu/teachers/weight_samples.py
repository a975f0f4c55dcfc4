"""Samples from a posterior over weights, as SGLD, HMC or a Laplace approximation leave them."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from opu.teachers.base import Outputs, bytes_per_row, choose, evaluating, to_log_probabilities


class WeightSamples:
    """One architecture with many sets of weights, evaluated for many of them at once.

    Args:
        net: The architecture. Its own weights are not used and not changed.
        samples: A list of state dicts, or one dict whose tensors have a leading axis of samples.
        outputs: What the network gives.
        memory_budget: Bytes that the activations of one chunk may take.
    """

    def __init__(
        self,
        net: nn.Module,
        samples: Sequence[Mapping[str, Tensor]] | Mapping[str, Tensor],
        *,
        outputs: Outputs = "logits",
        memory_budget: int = 2**29,
    ) -> None:
        self.net, self.outputs, self.memory_budget = net, outputs, memory_budget
        self.samples = dict(samples) if isinstance(samples, Mapping) else _stack(samples)
        self.num_samples = _check(net, self.samples)

    def average_weights(self) -> dict[str, Tensor]:
        """The mean of the samples, from which the paper starts the mean network."""
        return {name: w.mean(0) if w.is_floating_point() else w[-1] for name, w in self.samples.items()}

    def __call__(self, x: Tensor, num_particles: int) -> Float[Tensor, "S B K"]:
        """Log-probabilities under a random choice of the samples, or under all of them."""
        index = choose(self.num_samples, num_particles)
        device = next(iter(self.samples.values())).device
        x = x.to(device)
        self.net.to(device)
        chunk = max(1, self.memory_budget // (bytes_per_row(self.net, x) * len(x)))

        def evaluate(weights: dict[str, Tensor]) -> Tensor:
            answer: Tensor = functional_call(self.net, weights, (x,))
            return answer

        with evaluating(self.net):
            parts = [
                vmap(evaluate)({name: w[part.to(device)] for name, w in self.samples.items()})
                for part in index.split(chunk)
            ]
        return to_log_probabilities(torch.cat(parts).float(), self.outputs)


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
                f"{tuple(w.shape)} where (S, {', '.join(map(str, own[name].shape))}) was expected."
            )
    if counts == {0}:
        raise ValueError("WeightSamples needs at least one sample; got a leading axis of length 0.")
    return counts.pop()
