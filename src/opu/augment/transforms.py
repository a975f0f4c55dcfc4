"""How transformations combine: one of several for each row, or one after another."""

from collections.abc import Callable

import torch
from torch import Tensor

# A transformation takes a batch and a random source (None: torch's own) and gives a batch of the same shape.
Transform = Callable[[Tensor, torch.Generator | None], Tensor]


def one_of(*transforms: Transform) -> Transform:
    """Each row goes through one of the transformations, chosen at random; each sees the whole batch."""
    _at_least_one(transforms)

    def transform(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        choice = torch.randint(len(transforms), (len(x),), generator=generator, device=x.device)
        choice = choice.view(-1, *[1] * (x.ndim - 1))
        answer = x
        for number, each in enumerate(transforms):
            answer = torch.where(choice == number, each(x, generator), answer)
        return answer

    return transform


def chain(*transforms: Transform) -> Transform:
    """All transformations, one after another."""
    _at_least_one(transforms)

    def transform(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        for each in transforms:
            x = each(x, generator)
        return x

    return transform


def _at_least_one(transforms: tuple[Transform, ...]) -> None:
    if not transforms:
        raise ValueError("a combination needs at least one transformation; got none. Leave it out instead.")


def uniform(x: Tensor, low: float, high: float, generator: torch.Generator | None, *shape: int) -> Tensor:
    """Uniform numbers, one per row unless a shape is given, ready to be broadcast over ``x``."""
    size = shape or (len(x), *[1] * (x.ndim - 1))
    return low + (high - low) * torch.rand(size, generator=generator, device=x.device, dtype=x.dtype)


def normal_like(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers in the shape of ``x``."""
    return torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)


def other_rows(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """A shuffled index of the rows."""
    # On a GPU torch.randperm may wait for its result; the order of random numbers does not.
    return torch.rand(len(x), generator=generator, device=x.device).argsort()


def mixup(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Each row moved towards another one, by a uniform share."""
    share = uniform(x, 0.0, 1.0, generator)
    return share * x + (1 - share) * x[other_rows(x, generator)]
