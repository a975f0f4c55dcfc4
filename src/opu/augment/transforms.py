"""Combinations of transformations, and helpers that transformations share."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from opu.batches import Batch, first_tensor, rebuild, tensors, together

# From a batch and a generator (None: torch's global random state) to a batch of the same shape.
Transform = Callable[[Batch, torch.Generator | None], Batch]


def one_of(*transforms: Transform) -> Transform:
    """For each row one of the transformations, chosen at random. Each transformation is applied to the whole batch."""
    _at_least_one(transforms)

    def transform(x: Batch, generator: torch.Generator | None = None) -> Batch:
        first = first_tensor(x)
        choice = torch.randint(len(transforms), (len(first),), generator=generator, device=first.device)
        result = x
        for number, each in enumerate(transforms):
            result = together(partial(_chosen, choice == number), [each(x, generator), result])
        return result

    return transform


def _chosen(rows: Tensor, both: list[Tensor]) -> Tensor:
    chosen, other = both
    return torch.where(rows.view(-1, *[1] * (chosen.ndim - 1)), chosen, other)


def part(name: str, transform: Transform) -> Transform:
    """A transformation of one part of a dict, tuple or dataclass; the other parts stay as they are.

    Args:
        name: The key or field, or the position as a text.
        transform: Transformation of that tensor.
    """

    def of_part(x: Batch, generator: torch.Generator | None = None) -> Batch:
        found = tensors(x)
        if name not in found:
            raise ValueError(f"the inputs have the parts {', '.join(found)}; there is no {name!r} to augment.")
        return rebuild(x, [transform(t, generator) if key == name else t for key, t in found.items()])

    return of_part


def chain(*transforms: Transform) -> Transform:
    """All transformations, one after another."""
    _at_least_one(transforms)

    def transform(x: Batch, generator: torch.Generator | None = None) -> Batch:
        for each in transforms:
            x = each(x, generator)
        return x

    return transform


def _at_least_one(transforms: tuple[Transform, ...]) -> None:
    if not transforms:
        raise ValueError("a combination needs at least one transformation; got none.")


def uniform(x: Tensor, low: float, high: float, generator: torch.Generator | None, *shape: int) -> Tensor:
    """Uniform random numbers of a shape; by default one per row, ready to be broadcast over ``x``."""
    size = shape or (len(x), *[1] * (x.ndim - 1))
    return low + (high - low) * torch.rand(size, generator=generator, device=x.device, dtype=x.dtype)


def normal_like(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal random numbers in the shape of ``x``."""
    return torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)


def mixup(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Average each row with another one, with a uniform random weight."""
    weight = uniform(x, 0.0, 1.0, generator)
    # A random order of the rows; torch.randperm would make the CPU wait for the GPU.
    order = torch.rand(len(x), generator=generator, device=x.device).argsort()
    return weight * x + (1 - weight) * x[order]
