"""Which rows of a stream are held out: those that a checksum of their features chooses, whatever the order of the pass."""

import zlib

import torch
from torch import Tensor

from opu.batches import Batch, num_rows, tensors

_START, _MIX = 0x9E3779B9, 0x85EBCA6B  # any odd numbers: rows without content get a checksum like all others


def chosen(batch: Batch, fraction: float) -> list[bool]:
    """Whether each row is held out.

    Padding may differ from pass to pass, so it does not count: what an attention mask hides, and without a mask zeros at both
    ends.

    Args:
        batch: A batch of features.
        fraction: Fraction of all possible rows that is chosen.
    """
    parts = tensors(batch)
    masks = [t.bool().cpu() for name, t in parts.items() if "mask" in name and t.ndim == 2]
    sums = [_START] * num_rows(batch)
    for name, t in parts.items():
        if "mask" in name:
            continue
        mask = next((m for m in masks if m.shape == t.shape), None)
        for row, content in enumerate(_contents(t, mask)):
            sums[row] = zlib.crc32(content, sums[row])
    # Mixed, since a checksum of few bytes is far from uniform.
    return [((each ^ (each >> 15)) * _MIX) % 2**32 < fraction * 2**32 for each in sums]


def _contents(t: Tensor, mask: Tensor | None) -> list[bytes]:
    rows = t.detach().cpu().contiguous()
    if mask is not None:
        return [bytes(row[seen].numpy().tobytes()) for row, seen in zip(rows, mask, strict=True)]
    flat = rows.reshape(len(rows), -1).view(torch.uint8).numpy()
    return [row.tobytes().strip(b"\0") for row in flat]
