"""The architectures of the paper, and any backbone of the user's."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from opu.batches import Path
from opu.students.families import Family, parse_family
from opu.students.links import Link
from opu.students.start import copied
from opu.students.student import Student


def mlp(
    num_features: int,
    num_classes: int,
    hidden: Sequence[int] = (400, 400),
    *,
    shared_trunk: bool = False,
    link: Link | str | None = None,
    family: Family | str = "dirichlet",
) -> Student:
    """A student of fully connected layers with ReLU; inputs of any shape are flattened.

    Args:
        num_features: Numbers per input: 784 for 28 x 28 images.
        num_classes: K.
        hidden: Widths of the hidden layers; the paper's are 400 and 400.
        shared_trunk: One trunk with two heads instead of two networks.
        link: See :class:`Student`.
        family: ``dirichlet`` or ``logistic_normal``: what the student predicts.
    """
    _positive(num_features=num_features, num_classes=num_classes)
    sizes = {"num_features": num_features, "hidden": list(hidden)}
    width = hidden[-1] if hidden else num_features
    return _student(
        "mlp",
        partial(_layers, num_features, hidden),
        width,
        num_classes,
        shared_trunk,
        parse_family(family, link, num_classes),
        sizes,
    )


def lenet(
    num_classes: int,
    image_shape: tuple[int, int, int] = (1, 28, 28),
    channels: tuple[int, int] = (20, 50),
    hidden: int = 500,
    *,
    shared_trunk: bool = False,
    link: Link | str | None = None,
    family: Family | str = "dirichlet",
) -> Student:
    """A student of two 5 x 5 convolutions with pooling and one hidden layer: 20 and 50 channels in the paper.

    Args:
        num_classes: K.
        image_shape: Channels, height, width.
        channels: Numbers of channels of the two convolutions.
        hidden: Width of the hidden layer.
        shared_trunk: One trunk with two heads instead of two networks.
        link: See :class:`Student`.
        family: ``dirichlet`` or ``logistic_normal``: what the student predicts.
    """
    _positive(num_classes=num_classes)
    if min(image_shape[1:]) < 16:
        raise ValueError(f"lenet needs images of at least 16 x 16; got {image_shape[1]} x {image_shape[2]}. Use mlp.")
    sizes = {"image_shape": list(image_shape), "channels": list(channels), "hidden": hidden}
    trunk = partial(convolutions, image_shape, channels, hidden)
    return _student("lenet", trunk, hidden, num_classes, shared_trunk, parse_family(family, link, num_classes), sizes)


def from_backbone(
    trunk: nn.Module,
    num_features: int,
    num_classes: int,
    *,
    shared_trunk: bool = True,
    link: Link | str | None = None,
    family: Family | str = "dirichlet",
) -> Student:
    """A student on a network of the user's, with linear heads.

    Args:
        trunk: From inputs to features, ``(B, num_features)`` once flattened. The student gets a copy; yours does not change.
        num_features: How many features the trunk gives.
        num_classes: K.
        shared_trunk: Both heads on one trunk; otherwise the precision gets a copy of the trunk of its own.
        link: See :class:`Student`.
        family: ``dirichlet`` or ``logistic_normal``: what the student predicts.
    """
    _positive(num_features=num_features, num_classes=num_classes)
    sizes = {"num_features": num_features, "num_classes": num_classes, "shared_trunk": shared_trunk}
    architecture = {"architecture": "from_backbone", **sizes}
    family = parse_family(family, link, num_classes)
    mean_head = nn.Linear(num_features, num_classes)
    precision_head = nn.Linear(num_features, family.num_outputs(num_classes))
    trunk = copied(trunk)
    if shared_trunk:
        return Student(mean_head, precision_head, trunk=trunk, family=family, architecture=architecture)
    mean_net = Path(trunk, nn.Flatten(), mean_head)
    precision_net = Path(copied(trunk), nn.Flatten(), precision_head)
    return Student(mean_net, precision_net, family=family, architecture=architecture)


def _student(
    name: str,
    trunk: Callable[[], nn.Sequential],
    width: int,
    num_classes: int,
    shared_trunk: bool,
    family: Family,
    sizes: dict[str, Any],
) -> Student:
    """Two networks, or one trunk with two heads, with random weights."""
    architecture = {"architecture": name, "num_classes": num_classes, "shared_trunk": shared_trunk, **sizes}
    if shared_trunk:
        body = trunk()
        heads = nn.Linear(width, num_classes), nn.Linear(width, family.num_outputs(num_classes))
        return Student(*heads, trunk=body, family=family, architecture=architecture).mark_untrained()
    mean_net = trunk().append(nn.Linear(width, num_classes))
    precision_net = trunk().append(nn.Linear(width, family.num_outputs(num_classes)))
    return Student(mean_net, precision_net, family=family, architecture=architecture).mark_untrained()


def _layers(num_features: int, hidden: Sequence[int]) -> nn.Sequential:
    widths = [num_features, *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for below, above in itertools.pairwise(widths):
        layers += [nn.Linear(below, above), nn.ReLU()]
    return nn.Sequential(*layers)


def convolutions(image_shape: tuple[int, int, int], channels: tuple[int, int], hidden: int) -> nn.Sequential:
    """Two 5 x 5 convolutions with pooling, and one hidden layer."""
    depth, height, width = image_shape
    convolutions = nn.Sequential(
        _AsImages(image_shape),
        nn.Conv2d(depth, channels[0], 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels[0], channels[1], 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    left = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
    return convolutions.append(nn.Linear(channels[1] * left[0] * left[1], hidden)).append(nn.ReLU())


class _AsImages(nn.Module):
    """Rows of pixels, or images with or without an axis of channels, as ``(B, C, H, W)``."""

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.image_shape = tuple(image_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], *self.image_shape)  # len(x) would become a constant in an export


def _positive(**numbers: int) -> None:
    for name, number in numbers.items():
        smallest = 2 if name == "num_classes" else 1
        if number < smallest:
            raise ValueError(f"{name} must be at least {smallest}; got {number}.")
