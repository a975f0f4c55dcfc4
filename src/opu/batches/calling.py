"""From a batch to class scores: how a network of any calling convention is called."""

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from opu.batches.structure import Batch, describe, is_dataclass
from opu.checks import first_line


def parameters_of(net: nn.Module) -> list[inspect.Parameter] | None:
    """The parameters of a network's ``forward``; None if they cannot be found out."""
    inner: Any = getattr(net, "_orig_mod", net)  # torch.compile wraps the network
    inner = inner.module if isinstance(inner, nn.DataParallel | nn.parallel.DistributedDataParallel) else inner
    try:
        return list(inspect.signature(inner.forward).parameters.values())
    except (TypeError, ValueError):
        return None


def call(net: nn.Module, batch: Batch) -> Any:
    """Call a network with a batch as its ``forward`` takes it.

    A dict is given as keywords if ``forward`` has parameters of these names, and a tuple as several arguments if it has room
    for them. Everything else is given as one argument.
    """
    if isinstance(batch, Tensor) or is_dataclass(batch):
        return net(batch)
    parameters = parameters_of(net)
    if parameters is None:
        return net(batch)
    signature = inspect.Signature(parameters)
    if isinstance(batch, Mapping) and _binds(signature, **batch):
        return net(**batch)
    if isinstance(batch, tuple) and _binds(signature, *batch):
        return net(*batch)
    return net(batch)


def _binds(signature: inspect.Signature, *args: Any, **named: Any) -> bool:
    try:
        signature.bind(*args, **named)
    except TypeError:
        return False
    return True


def scores(net: nn.Module, batch: Batch) -> Tensor:
    """The class scores that a network gives: a tensor, or the ``logits`` of the object that it returns."""
    return as_scores(call(net, batch), type(net).__name__)


def as_scores(output: Any, name: str = "the network") -> Tensor:
    """The tensor of class scores in a network's output."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(found, Tensor):
        return found
    kind = type(output).__name__
    raise ValueError(
        f"a classifier must return one tensor with a row of class scores per input, or an object with such .logits; {name} "
        f"returns a {kind}. Wrap it in a module that returns the scores."
    )


class Scores(nn.Module):
    """A network of any calling convention as one that takes a batch and returns a tensor of class scores.

    Args:
        net: Takes a tensor, keywords or several arguments; returns a tensor or an object with ``logits``.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: Batch) -> Tensor:
        """The class scores, or what the network returns in their place."""
        return scores(self.net, batch)


class Path(nn.Sequential):
    """Layers one after another, the first of which is called as its ``forward`` takes the batch."""

    def forward(self, batch: Batch) -> Any:
        """The output of the last layer."""
        first, *others = self
        return functools.reduce(lambda x, layer: layer(x), others, call(first, batch))


def reads(net: nn.Module) -> nn.Module:
    """The network whose ``forward`` meets the batch first: the one inside a wrapper or at the start of a sequence."""
    while True:
        if isinstance(net, Scores):
            net = net.net
        elif isinstance(net, Path) or (type(net) is nn.Sequential and _begins_with_another(net)):
            net = net[0]
        else:
            return net


def _begins_with_another(net: nn.Sequential) -> bool:
    return len(net) > 0 and isinstance(net[0], Scores | nn.Sequential)


def cannot_read(who: str, batch: Batch, error: Exception) -> ValueError:
    """The error for a network that fails on a batch."""
    return ValueError(f"{who} cannot read inputs of {describe(batch)} ({first_line(error)[:200].rstrip('.')}).")
