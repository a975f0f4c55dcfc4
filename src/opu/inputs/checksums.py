"""Which rows of a stream are held out: those that a checksum of their features chooses, whatever the order of the pass."""

import zlib

import torch
from torch import Tensor

from opu.batches import Batch, num_rows, take, tensors
from opu.digests import Digest

_START, _MIX = 0x9E3779B9, 0x85EBCA6B  # any odd numbers: rows without content get a checksum like all others


def chosen(batch: Batch, fraction: float) -> list[bool]:
    """Whether each row is held out.

    Padding may differ from pass to pass, so it does not count: what an attention mask hides, and without a mask zeros at both
    ends.

    Args:
        batch: A batch of features.
        fraction: Fraction of all possible rows that is chosen.
    """
    sums = [_START] * num_rows(batch)
    for parts in _without_padding(batch).values():
        for row, content in enumerate(parts):
            sums[row] = zlib.crc32(content, sums[row])
    # Mixed, since a checksum of few bytes is far from uniform.
    return [((each ^ (each >> 15)) * _MIX) % 2**32 < fraction * 2**32 for each in sums]


def add_first_row(digest: Digest, batch: Batch) -> None:
    """Add the first row of a batch to a digest, without its padding, which depends on the other rows."""
    for name, t in sorted(tensors(batch).items()):
        digest.add_text(name, f"{t.dtype} {t.ndim}")
    for name, rows in sorted(_without_padding(take(batch, slice(0, 1))).items()):
        digest.add_bytes(name, rows[0])


def _without_padding(batch: Batch) -> dict[str, list[bytes]]:
    parts = tensors(batch)
    masks = [t.bool().cpu() for name, t in parts.items() if "mask" in name and t.ndim == 2]
    found = {}
    for name, t in parts.items():
        if "mask" not in name:
            found[name] = _contents(t, next((m for m in masks if m.shape == t.shape), None))
    return found


def _contents(t: Tensor, mask: Tensor | None) -> list[bytes]:
    rows = t.detach().cpu().contiguous()
    if mask is not None:
        return [bytes(row[seen].numpy().tobytes()) for row, seen in zip(rows, mask, strict=True)]
    flat = rows.reshape(len(rows), -1).view(torch.uint8).numpy()
    return [row.tobytes().strip(b"\0") for row in flat]
