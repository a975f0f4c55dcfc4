"""Weights to start from: a teacher's network, matched tensor by tensor."""

import zlib

import torch
from torch import Tensor, nn


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> bool:
    """Copy all weights and statistics in order, if their shapes agree; whether they did.

    Names need not agree, and layers without weights, such as dropout, do not count.
    """
    theirs, ours = _tensors(source), _tensors(target)
    if [w.shape for w in theirs] != [w.shape for w in ours]:
        return False
    for w, start in zip(ours, theirs, strict=True):
        w.copy_(start)
    return True


def checksum(module: nn.Module) -> int:
    """A number that changes when any weight of the module does."""
    total = 0
    for w in _tensors(module):
        total = zlib.crc32(w.detach().to("cpu", torch.float32).contiguous().numpy().tobytes(), total)
    return total


def _tensors(module: nn.Module) -> list[Tensor]:
    return list(module.state_dict().values())
