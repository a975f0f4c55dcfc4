"""The networks of the paper's experiments, and training with labels."""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from rich.progress import track
from torch import Tensor, nn

from opu.cuda_graph import captured
from opu.students.networks import convolutions


def mlp(num_classes: int, hidden: Sequence[int] = (400, 400), dropout: float = 0.0) -> nn.Sequential:
    """784-400-400-K with ReLU, and dropout after each hidden layer if a rate is given."""
    layers: list[nn.Module] = [nn.Flatten()]
    for below, above in itertools.pairwise([784, *hidden]):
        layers += [nn.Linear(below, above), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(hidden[-1], num_classes))


def lenet(
    num_classes: int, channels: tuple[int, int] = (20, 50), hidden: int = 500, dropout: float = 0.0
) -> nn.Sequential:
    """Two 5 x 5 convolutions with pooling and one hidden layer; dropout before and after the hidden layer."""
    *body, linear, relu = convolutions((1, 28, 28), channels, hidden)
    drop = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*body, *drop, linear, relu, *drop, nn.Linear(hidden, num_classes))


def vgg(num_classes: int, channels: tuple[int, int] = (64, 128), hidden: int = 100) -> nn.Sequential:
    """Four 3 x 3 convolutions in two blocks and one hidden layer, after the small VGG of the prior-network paper."""
    layers: list[nn.Module] = []
    for below, above in ((1, channels[0]), (channels[0], channels[1])):
        layers += [nn.Conv2d(below, above, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(above, above, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(49 * channels[1], hidden), nn.ReLU(), nn.Linear(hidden, num_classes)
    )


def train(
    net: nn.Module,
    x: Tensor,
    labels: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    epochs: int,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    progress: bool = False,
) -> None:
    """Train by Adam with a cosine schedule; on a GPU the steps are captured as a CUDA graph.

    Args:
        net: The network; it is trained in place.
        x: Training inputs.
        labels: Classes of the training inputs.
        loss: From a batch of inputs and its labels to the loss.
        epochs: Passes over the inputs.
        batch_size: Inputs per step.
        learning_rate: The learning rate at the start.
        progress: Show a progress bar.
    """
    on_gpu = x.is_cuda
    rate: float | Tensor = torch.tensor(learning_rate, device=x.device) if on_gpu else learning_rate
    optimizer = torch.optim.Adam(net.parameters(), rate, capturable=on_gpu)

    def learn(rows_x: Tensor, rows_labels: Tensor) -> Tensor:
        value = loss(rows_x, rows_labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.detach()

    step = captured(learn, x.device)
    batch_size = min(batch_size, len(x))
    steps_per_epoch = len(x) // batch_size
    total = epochs * steps_per_epoch
    net.train()
    for number in track(range(total), "training", disable=not progress, transient=True):
        if number % steps_per_epoch == 0:
            order = torch.randperm(len(x), device=x.device)
        fraction = 0.5 * (1 + math.cos(math.pi * number / total))
        if on_gpu:
            optimizer.param_groups[0]["lr"].fill_(learning_rate * fraction)
        else:
            optimizer.param_groups[0]["lr"] = learning_rate * fraction
        place = number % steps_per_epoch * batch_size
        rows = order[place : place + batch_size]
        step(x[rows], labels[rows])
    net.eval()


def train_plainly(net: nn.Module, x: Tensor, labels: Tensor, epochs: int) -> nn.Module:
    """The network after some epochs of cross-entropy by Adam at a constant rate, as small studies need it."""
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), labels[rows]).backward()
            optimizer.step()
    return net
