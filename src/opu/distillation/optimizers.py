"""What a run's optimisers are set to: a checkpoint restores it, so a resumed run must ask for the same."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from opu.digests import Digest
from opu.distillation.fingerprint import refusal, setting

# The learning rate is the recipe's. The others say how a step is computed, and not which step it is.
_LEFT_OUT = ("params", "lr", "foreach", "fused", "capturable", "differentiable")


def options_of(optimizers: Sequence[Optimizer], parameters: Sequence[nn.Parameter]) -> dict[str, str]:
    """Class and settings of new optimisers, and which parameters each of their groups holds, in words.

    Args:
        optimizers: One, or one for each group of alternating updates.
        parameters: All parameters that they may hold, in a fixed order.
    """
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    groups = [(optimizer, group) for optimizer in optimizers for group in optimizer.param_groups]
    found = {"class": _classes([type(optimizer).__name__ for optimizer in optimizers])}
    for number, (optimizer, group) in enumerate(groups, 1):
        held = Digest()
        held.add_text("parameters", str([places.get(id(parameter)) for parameter in group["params"]]))
        own = {name: value for name, value in vars(optimizer).items() if name[0] != "_"}
        said = {name: setting(value) for name, value in (own | group).items() if name not in _LEFT_OUT}
        said["parameters"] = held.text()
        where = "" if len(groups) == 1 else f" of group {number}"
        found |= {name + where: value for name, value in said.items() if value is not None}
    return found


def refuse_other_optimizer(before: Mapping[str, Any], now: Mapping[str, str]) -> None:
    """Refuse optimisers with other settings than those that the run began with; old checkpoints do not say them.

    Args:
        before: The checkpoint of the run. Settings that it lacks, such as those of a later torch, are not compared.
        now: What :func:`options_of` says of the optimisers of the call which resumes it.
    """
    options = before.get("options", {"class": _classes(before["kinds"])} if "kinds" in before else {})
    for name, was in options.items() if isinstance(options, Mapping) else ():
        if now.get(name, was) != was:
            values = f" ({now[name]} now, {was} before)"
            raise refusal("optimizer", name + ("" if name.startswith("parameters") else values))


def _classes(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))
