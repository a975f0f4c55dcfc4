"""The device of a module, and the device that a user names on the command line."""

import torch
from torch import Tensor, nn


def device_of(module: nn.Module, x: Tensor | None = None) -> torch.device:
    """The device of a module's weights; of the inputs, or the CPU, for a module without weights."""
    parameter = next(module.parameters(), None)
    if parameter is not None:
        return parameter.device
    return torch.device("cpu") if x is None else x.device


def choose_device(name: str) -> torch.device:
    """The device with this name; ``auto`` is the GPU, if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
        return device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"--device takes cpu, cuda or auto; {name!r} cannot be used on this machine.") from error
