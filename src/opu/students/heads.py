"""The last linear layer of a network, and all that comes before it."""

import copy

import torch
from torch import fx, nn
from torch.nn.utils import parametrize

from opu.batches import Batch, call, fit_to
from opu.checks import first_line
from opu.students.start import copied
from opu.teachers.outputs import Log, TwoClasses


class NoHeadError(Exception):
    """Why the last linear layer of a network cannot be found."""


def find_head(net: nn.Module, example: Batch | None, name: str | None) -> tuple[nn.Module, nn.Linear, str | None]:
    """Copies of all that comes before the network's last linear layer, and of that layer; its name if tracing failed."""
    if name is not None:
        return *_without(net, name), name
    try:
        return *_split(net), None
    except NoHeadError:
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
        return (
            parametrize.is_parametrized(m)
            or isinstance(m, Log | TwoClasses)
            or super().is_leaf_module(m, module_qualified_name)
        )


# What may follow the last layer: the softmax of its output stays the same, if a softmax in turn is followed by our Log.
_SOFTMAX = {"softmax", "Softmax"}
_AFTERWARDS = {"Identity", "Dropout", "log_softmax", "LogSoftmax", "Log"} | _SOFTMAX

# What may stand between a last layer with one output and both classes: a change of shape, or a sigmoid.
_SIGMOIDS = {"sigmoid": "probabilities", "Sigmoid": "probabilities"}
_SIGMOIDS |= dict.fromkeys(("logsigmoid", "log_sigmoid", "LogSigmoid"), "log_probabilities")
_AFTER_ONE = {"TwoClasses", "squeeze", "flatten", "Flatten", "view", "reshape", "getitem", *_SIGMOIDS}


def _split(net: nn.Module) -> tuple[nn.Module, nn.Linear]:
    """Copies of all that comes before the network's last linear layer, and of that layer."""
    root = nn.Sequential(copied(net))  # whose forward() has one argument, whatever the network's has
    try:
        graph = _Tracer().trace(root)
    except Exception as error:  # of many kinds, by what forward() does
        reason = first_line(error)[:200].rstrip(".")
        raise NoHeadError(f"the forward() of this one cannot be traced ({reason})") from error
    (output,) = graph.find_nodes(op="output")
    node, after = output.args[0], {}
    if not isinstance(node, fx.Node):
        found = type(node).__name__.removeprefix("immutable_")
        raise NoHeadError(f"this one returns a {found}")
    two = net[-1] if isinstance(net, nn.Sequential) and isinstance(net[-1], TwoClasses) else None
    while (name := _operation(node, root)) in (_AFTERWARDS if two is None else _AFTERWARDS | _AFTER_ONE):
        after[node] = name
        node = node.all_input_nodes[0]
    head = root.get_submodule(str(node.target)) if node.op == "call_module" else None
    is_softmax, is_logged = not _SOFTMAX.isdisjoint(after.values()), "Log" in after.values()
    if not isinstance(head, nn.Linear) or (is_logged and not is_softmax):
        raise NoHeadError(f"this one ends in {name!r}")
    if two is not None:
        head = _of_two_classes(head, two, list(after.values()))
    elif is_softmax and not is_logged:
        raise ValueError(
            "the network ends in a softmax, and another one would flatten its probabilities; give from_teacher a teacher "
            'with outputs="probabilities", or remove the softmax.'
        )
    output.args = (node.all_input_nodes[0],)
    for each in [*after, node]:
        if not each.users:
            graph.erase_node(each)
    return fx.GraphModule(root, graph), copy.deepcopy(head)


def _of_two_classes(head: nn.Linear, two: TwoClasses, after: list[str]) -> nn.Linear:
    """The last layer of a network with one output, with a logit for each of two classes."""
    found = [_SIGMOIDS[name] for name in after if name in _SIGMOIDS]
    if found and two.outputs == "logits":
        raise ValueError(
            "the network ends in a sigmoid, and another one would flatten its probabilities; say "
            f'outputs="{found[0]}", or remove the sigmoid.'
        )
    if head.out_features != 1 or found != ([] if two.outputs == "logits" else [two.outputs]):
        raise NoHeadError("this one does not end in a linear layer with one output and, for probabilities, a sigmoid")
    return two_logits(head)


def _operation(node: fx.Node, root: nn.Module) -> str:
    """The name of a layer's class, of a method or of a function."""
    if node.op == "call_module":
        return type(root.get_submodule(str(node.target))).__name__
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


@torch.no_grad()
def two_logits(head: nn.Linear) -> nn.Linear:
    """The layer with the logits 0 and z in place of its one logit z."""
    both = nn.Linear(head.in_features, 2, bias=head.bias is not None).to(head.weight)
    for w, one in zip(both.parameters(), head.parameters(), strict=True):
        w.copy_(torch.cat([torch.zeros_like(one), one]))
    return both


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
