"""Transformations of token sequences: integers ``(B, L)``, or a dict with ``input_ids`` and perhaps ``attention_mask``.

They are not applied by default, since only a user knows which token is the mask and which tokens must stay.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from opu.augment.transforms import Transform
from opu.batches import Batch

__all__ = ["dropped", "masked", "replaced"]

IDS, MASK = "input_ids", "attention_mask"


def masked(mask_token: int, *, keep: Collection[int] = (), most: float = 0.5) -> Transform:
    """Replace a random fraction of each sequence's tokens by the mask token.

    Args:
        mask_token: Number of the mask token.
        keep: Tokens that stay: padding, and those at the start and end of a sequence.
        most: Largest fraction of tokens that is replaced; for each sequence it is drawn between 0 and this.
    """
    return _Changing(f"masked({mask_token}", lambda ids, _: torch.full_like(ids, mask_token), keep, most)


def replaced(vocabulary_size: int, *, keep: Collection[int] = (), most: float = 0.5) -> Transform:
    """Replace a random fraction of each sequence's tokens by random ones.

    Args:
        vocabulary_size: Number of tokens.
        keep: Tokens that stay.
        most: Largest fraction of tokens that is replaced.
    """

    def others(ids: Tensor, generator: torch.Generator | None) -> Tensor:
        return torch.randint(vocabulary_size, ids.shape, generator=generator, device=ids.device, dtype=ids.dtype)

    return _Changing(f"replaced({vocabulary_size}", others, keep, most)


def dropped(padding_token: int, *, keep: Collection[int] = (), most: float = 0.5) -> Transform:
    """Drop a random fraction of each sequence's tokens: padding takes their place, and the attention mask skips them.

    Args:
        padding_token: Number of the padding token.
        keep: Tokens that stay.
        most: Largest fraction of tokens that is dropped.
    """
    kept = (*keep, padding_token)
    return _Changing(
        f"dropped({padding_token}", lambda ids, _: torch.full_like(ids, padding_token), kept, most, hide=True
    )


@dataclass(frozen=True, eq=False)
class _Changing:
    """A transformation that is known by its settings, so that a resumed run can be compared with them."""

    text: str
    others: Callable[[Tensor, torch.Generator | None], Tensor]
    keep: Collection[int]
    most: float
    hide: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.most <= 1:
            raise ValueError(f"the largest fraction of tokens to change must lie between 0 and 1; got {self.most}.")

    def __call__(self, x: Batch, generator: torch.Generator | None = None) -> Batch:
        ids = _ids(x)
        rate = self.most * torch.rand(len(ids), 1, generator=generator, device=ids.device)
        chosen = torch.rand(ids.shape, generator=generator, device=ids.device) < rate
        if self.keep:
            chosen &= ~torch.isin(ids, torch.tensor(list(self.keep), device=ids.device))
        if isinstance(x, Mapping) and MASK in x:
            chosen &= x[MASK].bool()
        changed = torch.where(chosen, self.others(ids, generator), ids)
        if isinstance(x, Tensor):
            return changed
        hidden = {MASK: x[MASK].masked_fill(chosen, 0)} if self.hide and MASK in x else {}
        return {**x, IDS: changed, **hidden}

    def __repr__(self) -> str:
        return f"tokens.{self.text}, keep={sorted(self.keep)}, most={self.most:g})"


def _ids(x: Batch) -> Tensor:
    ids = x if isinstance(x, Tensor) else x.get(IDS) if isinstance(x, Mapping) else None
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.ndim != 2:
        found = f"type {ids.dtype}, shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(x).__name__
        raise ValueError(
            f"token transformations need integers of shape (B, L), or a dict with {IDS!r}; got {found}. For another key use "
            "opu.augment.part(name, transform)."
        )
    return ids
