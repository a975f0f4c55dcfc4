"""A student made from its teacher's own network and weights."""

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from opu.batches import Batch, Scores, as_scores, call, cannot_read, check_batch, fit_to, num_rows, reads
from opu.checks import first_line
from opu.inputs import Features
from opu.students.links import Link
from opu.students.networks import mlp
from opu.students.start import copied, network_of
from opu.students.student import Student
from opu.teachers.base import Log, to_log_probabilities


def from_teacher(
    teacher: Any, *, shared_trunk: bool = False, link: Link | str = "softsign", example: Any = None
) -> Student:
    """A student with the teacher's architecture that starts from the teacher's weights.

    The mean network is a copy of the teacher's network: its own weights for MC dropout, the average of weight samples, the
    first member of an ensemble. The precision network is a second copy with a new head. Both are distilled in evaluation
    mode: without dropout, and with the teacher's batch-norm statistics.

    Args:
        teacher: An ``MCDropout``, ``Ensemble`` or ``WeightSamples`` teacher, or any classifier.
        shared_trunk: One copy with two heads instead of two copies: half the cost of a prediction.
        link: See :class:`Student`.
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
        return _as_mlp(layers, shared_trunk, link)
    num_classes, wrapped = None, False
    if example is not None:
        example = Features(reads(net))(example)
        if not isinstance(example, Tensor):
            check_batch(example, "the example")
        num_classes, wrapped = _try(net, example)
    student = from_network(
        wrapped_network(net) if wrapped else net,
        shared_trunk=shared_trunk,
        link=link,
        num_classes=num_classes,
        example=example,
    )
    assert student.architecture is not None
    student.architecture |= {"outputs": getattr(teacher, "outputs", "logits"), "wrapped": wrapped}
    if example is not None:
        student.saw(fit_to(example, net))
    return student


def wrapped_network(net: nn.Module) -> nn.Module:
    """The network as one that takes a batch of any structure and returns a tensor."""
    if type(net) is nn.Sequential and isinstance(net[-1], Log):
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
    flatten = type(first) is nn.Flatten and (first.start_dim, first.end_dim) == (1, -1)
    layers = rest if flatten else [first, *rest]
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    kinds = [type(layer) for layer in layers]
    plain = kinds == [nn.Linear, nn.ReLU] * (len(layers) // 2) + [nn.Linear]
    hooked = any(each._forward_hooks or each._forward_pre_hooks for each in net.modules())
    tied = len({id(w) for layer in linear for w in layer.parameters()}) < 2 * len(linear)  # or without a bias
    return linear if plain and not hooked and not tied and linear[-1].out_features > 1 else None


def _leaves(net: nn.Module) -> list[nn.Module]:
    """The layers of nested sequences in order, without those that do nothing; any other module is one layer."""
    if type(net) is not nn.Sequential:
        return [] if isinstance(net, nn.Identity | _DropoutNd) else [net]
    return [leaf for child in net for leaf in _leaves(child)]


def _as_mlp(layers: list[nn.Linear], shared_trunk: bool, link: Link | str) -> Student:
    """The same student as from :func:`mlp`, whose two networks can be stacked for speed."""
    *hidden, head = layers
    widths = [layer.out_features for layer in hidden]
    student = mlp(layers[0].in_features, head.out_features, widths, shared_trunk=shared_trunk, link=link)
    return student.to(head.weight).start_mean_from(nn.ModuleList(layers)).start_precision_from_mean()


def from_network(
    net: nn.Module,
    *,
    shared_trunk: bool,
    link: Link | str,
    num_classes: int | None,
    example: Batch | None = None,
    head_name: str | None = None,
) -> Student:
    """The student on a network that is its own already.

    Args:
        net: Becomes part of the student.
        shared_trunk: See :func:`from_teacher`.
        link: See :class:`Student`.
        num_classes: K, if it is known; otherwise it is that of the network's last linear layer.
        example: A few inputs, with which the last layer of any network can be found.
        head_name: Name of the last layer, if it is known.
    """
    try:
        trunk, head, head_name = _find_head(net, example, head_name)
        width, num_classes = head.in_features, head.out_features
    except _NoHeadError as reason:
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
        raise ValueError(
            "a student needs a network with an output for each of two or more classes; this one has a single output. For a "
            "binary classifier with one logit z, return the logits 0 and z."
        )
    precision_head = nn.Linear(width, 1).to(next(net.parameters()))
    sizes = {"shared_trunk": shared_trunk, "num_classes": num_classes, "head": head_name}
    architecture = {"architecture": "from_teacher", **sizes}
    if shared_trunk:
        assert head is not None
        return Student(head, precision_head, trunk=trunk, link=link, architecture=architecture)
    return Student(net, nn.Sequential(trunk, precision_head), link=link, architecture=architecture)


class _NoHeadError(Exception):
    """Why the last linear layer of a network cannot be found."""


def _find_head(net: nn.Module, example: Batch | None, name: str | None) -> tuple[nn.Module, nn.Linear, str | None]:
    """Copies of all that comes before the network's last linear layer, and of that layer; its name if tracing failed."""
    if name is not None:
        return *_without(net, name), name
    try:
        return *_split(net), None
    except _NoHeadError:
        found = None if example is None else head_of(net, example)
        if found is None:
            raise
        return *_without(net, found), found


def _without(net: nn.Module, name: str) -> tuple[nn.Module, nn.Linear]:
    """A copy of the network that returns what its layer of this name would read, and a copy of that layer."""
    trunk = copied(net)
    path, _, last = name.rpartition(".")
    head = trunk.get_submodule(name)
    if not isinstance(head, nn.Linear):
        raise ValueError(f"the layer {name!r} of the network should be linear, but is a {type(head).__name__}.")
    setattr(trunk.get_submodule(path), last, nn.Identity())
    return trunk, head


class _Tracer(fx.Tracer):
    """Tracer to which layers with parametrised weights, and our own, are layers as well."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return parametrize.is_parametrized(m) or isinstance(m, Log) or super().is_leaf_module(m, module_qualified_name)


# What may follow the last layer: the softmax of its output stays the same, if a softmax in turn is followed by our Log.
_SOFTMAX = {"softmax", "Softmax"}
_AFTERWARDS = {"Identity", "Dropout", "log_softmax", "LogSoftmax", "Log"} | _SOFTMAX


def _split(net: nn.Module) -> tuple[nn.Module, nn.Linear]:
    """Copies of all that comes before the network's last linear layer, and of that layer."""
    root = nn.Sequential(copied(net))  # whose forward() has one argument, whatever the network's has
    try:
        graph = _Tracer().trace(root)
    except Exception as error:  # of many kinds, by what forward() does
        reason = first_line(error)[:200].rstrip(".")
        raise _NoHeadError(f"the forward() of this one cannot be traced ({reason})") from error
    (output,) = graph.find_nodes(op="output")
    node, after = output.args[0], {}
    if not isinstance(node, fx.Node):
        found = type(node).__name__.removeprefix("immutable_")
        raise _NoHeadError(f"this one returns a {found}")
    while (name := _operation(node, root)) in _AFTERWARDS:
        after[node] = name
        node = node.all_input_nodes[0]
    head = root.get_submodule(str(node.target)) if node.op == "call_module" else None
    is_softmax, is_logged = not _SOFTMAX.isdisjoint(after.values()), "Log" in after.values()
    if not isinstance(head, nn.Linear) or (is_logged and not is_softmax):
        raise _NoHeadError(f"this one ends in {name!r}")
    if is_softmax and not is_logged:
        raise ValueError(
            "the network ends in a softmax, and another one would flatten its probabilities; give from_teacher a teacher "
            'with outputs="probabilities", or remove the softmax.'
        )
    output.args = (node.all_input_nodes[0],)
    for each in [*after, node]:
        if not each.users:
            graph.erase_node(each)
    return fx.GraphModule(root, graph), copy.deepcopy(head)


def _operation(node: fx.Node, root: nn.Module) -> str:
    """The name of a layer's class, of a method or of a function."""
    if node.op == "call_module":
        return type(root.get_submodule(str(node.target))).__name__
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


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
    if scores.ndim != 2 or len(scores) != num_rows(example):
        raise ValueError(_ONE_TENSOR.format(type(net).__name__, f"shape {tuple(scores.shape)}"))
    to_log_probabilities(scores, "logits")  # refuses probabilities
    return int(scores.shape[1]), not (isinstance(output, Tensor) and isinstance(example, Tensor))


@torch.no_grad()
def head_of(net: nn.Module, example: Batch) -> str | None:
    """The name of the linear layer whose outputs are the class scores, found by running the network.

    A layer is the last one if the network without it gives features from which the layer makes the same scores.

    Args:
        net: In evaluation mode.
        example: A few inputs.
    """
    example, called = fit_to(example, net), []
    layers = {layer: name for name, layer in net.named_modules() if isinstance(layer, nn.Linear)}
    hooks = [layer.register_forward_hook(lambda layer, *_: called.append(layer)) for layer in layers]
    try:
        wanted = call(net, example)
    finally:
        for hook in hooks:
            hook.remove()
    for layer in dict.fromkeys(reversed(called)):
        if layer.out_features != wanted.shape[-1]:
            continue
        try:
            trunk, head = _without(net, layers[layer])
            features = call(trunk, example)
            found = head(features) if features.ndim == 2 else None
        except Exception:  # of many kinds, by what the network does with its layer
            continue
        if found is not None and found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-4, atol=1e-5):
            name: str = layers[layer]
            return name
    return None
