"""A student made from its teacher's own network: nothing to design, and a start where the teacher is."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from opu.devices import device_of
from opu.students.links import Link
from opu.students.networks import mlp
from opu.students.start import copy_weights
from opu.students.student import Student
from opu.teachers import as_teacher
from opu.teachers.mc_dropout import is_dropout


def from_teacher(
    teacher: Any, *, shared_trunk: bool = False, link: Link | str = "softsign", example: Tensor | None = None
) -> Student:
    """A student with the teacher's architecture that starts from the teacher's weights.

    The mean network is a copy of the teacher's network: its own weights for MC dropout, the average of weight samples, the
    first member of an ensemble. The precision network is a second copy with a new head. Dropout is switched off in both.

    Args:
        teacher: An ``MCDropout``, ``Ensemble`` or ``WeightSamples`` teacher, or any classifier.
        shared_trunk: One copy with two heads instead of two copies: half the cost of a prediction.
        link: See :class:`Student`.
        example: A few inputs. They are needed with ``shared_trunk`` unless the network is an ``nn.Sequential`` that ends in a
            linear layer, and for networks whose last layer is not linear.
    """
    net = teacher if isinstance(teacher, nn.Module) else as_teacher(teacher).network()
    if net is None:
        raise ValueError(
            "from_teacher needs a teacher that holds a network (MCDropout, Ensemble, WeightSamples), or a network; got "
            f"{type(teacher).__name__}. Use opu.students.mlp, lenet or from_backbone."
        )
    net = _trainable_copy(net)
    layers = _plain_mlp(net)
    if layers is not None:
        return _as_mlp(layers, shared_trunk, link)
    student = (_with_shared_trunk if shared_trunk else _with_two_networks)(net, link, example)
    if example is not None:
        student.saw(example)
    return student.to(device_of(net))


def _trainable_copy(net: nn.Module) -> nn.Module:
    """A copy without dropout whose weights all learn, also if the teacher's were frozen."""
    net = copy.deepcopy(net).requires_grad_(True)
    for layer in net.modules():
        for name, child in list(layer.named_children()):
            if is_dropout(child) and not any(True for _ in child.children()):
                layer.set_submodule(name, nn.Identity())
        if isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
            layer.dropout = 0.0
    return net.eval()


def _leaves(net: nn.Module) -> list[nn.Module]:
    """The layers of nested sequences in order; any other module is one layer."""
    if type(net) is not nn.Sequential:
        return [net]
    return [leaf for child in net for leaf in _leaves(child) if not isinstance(leaf, nn.Identity)]


def _plain_mlp(net: nn.Module) -> list[nn.Linear] | None:
    """The linear layers of a network that is an MLP with ReLU and nothing else."""
    first, *rest = _leaves(net) or [net]
    layers = rest if isinstance(first, nn.Flatten) and first.start_dim == 1 and first.end_dim == -1 else [first, *rest]
    kinds = [type(layer) for layer in layers]
    if kinds != [nn.Linear, nn.ReLU] * (len(layers) // 2) + [nn.Linear]:
        return None
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    return linear if all(layer.bias is not None for layer in linear) else None


@torch.no_grad()
def _as_mlp(layers: list[nn.Linear], shared_trunk: bool, link: Link | str) -> Student:
    """The same student as from :func:`mlp`, which knows how to be saved, stacked and compressed."""
    *hidden, head = layers
    widths = [layer.out_features for layer in hidden]
    student = mlp(layers[0].in_features, head.out_features, widths, shared_trunk=shared_trunk, link=link).to(
        head.weight
    )
    student.start_mean_from(nn.ModuleList(layers))
    if not shared_trunk:
        assert isinstance(student.precision_net, nn.Sequential)
        copy_weights(nn.ModuleList(hidden), student.precision_net[:-1])
    return student


def _with_two_networks(net: nn.Module, link: Link | str, example: Tensor | None) -> Student:
    precision_net = copy.deepcopy(net)
    leaves = _leaves(net)
    if len(leaves) > 1 and isinstance(leaves[-1], nn.Linear):
        name = next(name for name, layer in net.named_modules() if layer is leaves[-1])
        precision_net.set_submodule(name, nn.Linear(leaves[-1].in_features, 1))
    else:
        # What follows the last linear layer in forward() is not known, so the new head stands behind all of it.
        precision_net = nn.Sequential(precision_net, nn.Linear(_num_classes(net, example), 1))
    return Student(net, precision_net, link=link, architecture={"architecture": "from_teacher", "shared_trunk": False})


def _with_shared_trunk(net: nn.Module, link: Link | str, example: Tensor | None) -> Student:
    name = _head_name(net, example)
    head = net.get_submodule(name)
    assert isinstance(head, nn.Linear)
    trunk = copy.deepcopy(net)
    trunk.set_submodule(name, nn.Identity())
    if example is not None:
        with torch.no_grad():
            expected, found = net(example), head(trunk(example).flatten(1))
        if expected.shape != found.shape or not torch.allclose(expected, found, atol=1e-5):
            raise ValueError(
                f"shared_trunk=True needs a network that returns what its last linear layer {name!r} gives; this one does "
                "something else afterwards. Use shared_trunk=False, or remove what follows that layer."
            )
    architecture = {
        "architecture": "from_teacher",
        "shared_trunk": True,
        "num_features": head.in_features,
        "num_classes": head.out_features,
    }
    return Student(
        copy.deepcopy(head), nn.Linear(head.in_features, 1), trunk=trunk, link=link, architecture=architecture
    )


def _head_name(net: nn.Module, example: Tensor | None) -> str:
    """The linear layer that gives the network's output: the end of a sequence, or the last one that runs."""
    last: list[nn.Module] = []
    leaves = _leaves(net)
    if example is None and len(leaves) > 1 and isinstance(leaves[-1], nn.Linear):
        last.append(leaves[-1])
    elif example is not None:
        handles = [
            layer.register_forward_hook(lambda layer, *_: last.append(layer))
            for layer in net.modules()
            if isinstance(layer, nn.Linear)
        ]
        with torch.no_grad():
            net(example)
        for handle in handles:
            handle.remove()
    if not last:
        raise ValueError(
            "shared_trunk=True needs to know the network's last linear layer; give a few inputs: "
            "from_teacher(teacher, shared_trunk=True, example=x[:2])."
        )
    return next(name for name, layer in net.named_modules() if layer is last[-1])


def _num_classes(net: nn.Module, example: Tensor | None) -> int:
    if example is not None:
        with torch.no_grad():
            return int(net(example[:2]).shape[-1])
    linear = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise ValueError(
            f"the number of classes cannot be read off {type(net).__name__}, which has no linear layer; give a few inputs: "
            "from_teacher(teacher, example=x[:2])."
        )
    return linear[-1].out_features
