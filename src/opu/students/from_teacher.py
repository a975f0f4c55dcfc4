"""A student made from its teacher's own network and weights."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from opu.batches import Batch, Scores, as_scores, call, cannot_read, check_batch, fit_to, num_rows, reads
from opu.inputs import Features
from opu.students.families import Family, parse_family
from opu.students.heads import NoHeadError, find_head, two_logits
from opu.students.links import Link
from opu.students.networks import mlp
from opu.students.start import copied, network_of
from opu.students.student import Student
from opu.teachers.outputs import ONE_OUTPUT, Log, Reading, TwoClasses


def from_teacher(
    teacher: Any,
    *,
    shared_trunk: bool = False,
    link: Link | str | None = None,
    family: Family | str = "dirichlet",
    example: Any = None,
) -> Student:
    """A student with the teacher's architecture that starts from the teacher's weights.

    The mean network is a copy of the teacher's network: its own weights for MC dropout, the average of weight samples, the
    first member of an ensemble. The precision network is a second copy with a new head. Both are distilled in evaluation
    mode: without dropout, and with the teacher's batch-norm statistics.

    Args:
        teacher: An ``MCDropout``, ``Ensemble`` or ``WeightSamples`` teacher, or any classifier. One with a single output per
            input must come in a teacher with ``binary=True``; the student has both classes.
        shared_trunk: One copy with two heads instead of two copies: half the cost of a prediction.
        link: See :class:`Student`.
        family: ``dirichlet`` or ``logistic_normal``: what the student predicts.
        example: A few inputs as the network takes them: a tensor, an array, or a dict or tuple of these. They are needed if
            the network's last layer cannot be found without them, as in models of ``transformers``, and if the student is
            saved before it is distilled.
    """
    net = network_of(teacher)
    if net is None:
        raise ValueError(
            "from_teacher needs a teacher that holds a network (MCDropout, Ensemble, WeightSamples), or a network; got "
            f"{type(teacher).__name__}. Use opu.students.mlp, lenet or from_backbone."
        )
    net = trainable_copy(net)
    layers = _plain_mlp(net)
    if layers is not None:
        return _as_mlp(layers, shared_trunk, parse_family(family, link, layers[-1].out_features))
    binary = bool(getattr(teacher, "binary", False))
    num_classes, wrapped = 2 if binary else None, False
    if example is not None:
        example = Features(reads(net))(example)
        if not isinstance(example, Tensor):
            check_batch(example, "the example")
        num_classes, wrapped = _try(net, example)
    student = from_network(
        wrapped_network(net) if wrapped else net,
        shared_trunk=shared_trunk,
        family=lambda num_classes: parse_family(family, link, num_classes),
        num_classes=num_classes,
        example=example,
    )
    assert student.architecture is not None
    student.architecture |= {"outputs": getattr(teacher, "outputs", "logits"), "wrapped": wrapped}
    student.architecture |= {"binary": True} if binary else {}
    if example is not None:
        student.saw(fit_to(example, net))
    return student


def wrapped_network(net: nn.Module) -> nn.Module:
    """The network as one that takes a batch of any structure and returns a tensor."""
    if type(net) is nn.Sequential and isinstance(net[-1], Log | TwoClasses):
        return nn.Sequential(Scores(net[0]), net[-1])
    return Scores(net)


def trainable_copy(net: nn.Module) -> nn.Module:
    """A copy in evaluation mode without dropout whose weights all learn, also if the teacher's were frozen."""
    weights = list(net.parameters())
    if not weights or any(is_lazy(w) for w in weights):
        kind = "lazy layers without weights so far; run it once, net(x), before" if weights else "no weights to give to"
        raise ValueError(f"the network has {kind} from_teacher.")
    net = copied(getattr(net, "_orig_mod", net))  # torch.compile wraps the network
    for layer in net.modules():
        if isinstance(layer, _DropoutNd):
            layer.p = 0.0
        elif isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
            layer.dropout = 0.0
        if isinstance(layer, nn.RNNBase):
            layer.flatten_parameters()  # one block of memory, which a GPU wants
    for w in net.parameters():
        w.requires_grad_(w.is_floating_point())
    return net.eval()


def _plain_mlp(net: nn.Module) -> list[nn.Linear] | None:
    """The linear layers of a network that is an MLP with ReLU, and no more than that."""
    first, *rest = _leaves(net) or [net]
    one_logit = bool(rest) and isinstance(rest[-1], TwoClasses) and rest[-1].outputs == "logits"
    rest = rest[:-1] if one_logit else rest
    flatten = type(first) is nn.Flatten and (first.start_dim, first.end_dim) == (1, -1)
    layers = rest if flatten else [first, *rest]
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    kinds = [type(layer) for layer in layers]
    plain = kinds == [nn.Linear, nn.ReLU] * (len(layers) // 2) + [nn.Linear]
    hooked = any(each._forward_hooks or each._forward_pre_hooks for each in net.modules())
    tied = len({id(w) for layer in linear for w in layer.parameters()}) < 2 * len(linear)  # or without a bias
    if not plain or hooked or tied or (linear[-1].out_features > 1) == one_logit:
        return None
    return [*linear[:-1], two_logits(linear[-1])] if one_logit else linear


def _leaves(net: nn.Module) -> list[nn.Module]:
    """The layers of nested sequences in order, without those that do nothing; any other module is one layer."""
    if type(net) is not nn.Sequential:
        return [] if isinstance(net, nn.Identity | _DropoutNd) else [net]
    return [leaf for child in net for leaf in _leaves(child)]


def _as_mlp(layers: list[nn.Linear], shared_trunk: bool, family: Family) -> Student:
    """The same student as from :func:`mlp`, whose two networks can be stacked for speed."""
    *hidden, head = layers
    widths = [layer.out_features for layer in hidden]
    student = mlp(layers[0].in_features, head.out_features, widths, shared_trunk=shared_trunk, family=family)
    return student.to(head.weight).start_mean_from(nn.ModuleList(layers)).start_precision_from_mean()


def from_network(
    net: nn.Module,
    *,
    shared_trunk: bool,
    family: Callable[[int], Family],
    num_classes: int | None,
    example: Batch | None = None,
    head_name: str | None = None,
) -> Student:
    """The student on a network that is its own already.

    Args:
        net: Becomes part of the student.
        shared_trunk: See :func:`from_teacher`.
        family: What the student predicts, by the number of classes.
        num_classes: K, if it is known; otherwise it is that of the network's last linear layer.
        example: A few inputs, with which the last layer of any network can be found.
        head_name: Name of the last layer, if it is known.
    """
    try:
        trunk, head, head_name = find_head(net, example, head_name)
        width, num_classes = head.in_features, head.out_features
    except NoHeadError as reason:
        if shared_trunk:
            raise ValueError(
                f"shared_trunk=True needs a network that ends in a linear layer, but {reason}; use shared_trunk=False."
            ) from reason
        if num_classes is None:
            raise ValueError(
                f"the number of classes cannot be read off {type(net).__name__}, since {reason}; give a few inputs: "
                "from_teacher(teacher, example=x[:2])."
            ) from reason
        # The new head stands behind the whole network, and reads its logits.
        trunk, head, width = copy.deepcopy(net), None, num_classes
    if num_classes < 2:
        raise ValueError(ONE_OUTPUT.format(type(reads(net)).__name__, _ONE_LOGIT_ADVICE))
    chosen = family(num_classes)
    precision_head = nn.Linear(width, chosen.num_outputs(num_classes)).to(next(net.parameters()))
    sizes = {"shared_trunk": shared_trunk, "num_classes": num_classes, "head": head_name}
    architecture = {"architecture": "from_teacher", **sizes}
    if shared_trunk:
        assert head is not None
        return Student(head, precision_head, trunk=trunk, family=chosen, architecture=architecture)
    return Student(net, nn.Sequential(trunk, precision_head), family=chosen, architecture=architecture)


_ONE_LOGIT_ADVICE = (
    "give from_teacher a teacher with binary=True, such as MCDropout(net, binary=True), or return "
    "the two logits 0 and z"
)


_ONE_TENSOR = (
    "from_teacher needs a network that returns one tensor with a row of class scores per input; {} returns {}."
)


@torch.no_grad()
def _try(net: nn.Module, example: Batch) -> tuple[int, bool]:
    """The number of classes, and whether the network must be wrapped to take a batch and return a tensor."""
    try:
        output = call(net, fit_to(example, net))
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{cannot_read('the network', example, error)} Give an example as the teacher takes its inputs."
        ) from error
    scores = as_scores(output, type(net).__name__)
    if scores.shape in ((num_rows(example),), (num_rows(example), 1)):
        raise ValueError(ONE_OUTPUT.format(type(net).__name__, _ONE_LOGIT_ADVICE))
    if scores.ndim != 2 or len(scores) != num_rows(example):
        raise ValueError(_ONE_TENSOR.format(type(net).__name__, f"shape {tuple(scores.shape)}"))
    Reading("logits", enough=2).check(scores)  # refuses probabilities; a single row may look like them by chance
    return int(scores.shape[1]), not (isinstance(output, Tensor) and isinstance(example, Tensor))
