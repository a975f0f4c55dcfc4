"""A network as data: the graph of its operators as json, from which it is built again without its class.

``torch.export`` traces the network; its own file format is read by pickle, ours is not. A file can name operators of
PyTorch's ``aten`` library and a few of Python's arithmetic, and nothing else, so reading one runs no foreign code.
"""

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from opu.checks import first_line

_ARITHMETIC = ("getitem", "add", "sub", "mul", "floordiv", "mod", "neg")
_KINDS: dict[str, type] = {"dtype": torch.dtype, "memory_format": torch.memory_format, "layout": torch.layout}
# Operators that touch files; no network needs them.
_REFUSED = ("file", "save", "load", "print")


def to_program(module: nn.Module, example: Tensor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The graph of a network for batches of any size, and the constants in it that are no weights.

    Args:
        module: In evaluation mode from here on.
        example: A batch of inputs.
    """
    example = torch.cat([example[:1], example[:1]])  # a batch of one would be taken for a constant
    try:
        batch = torch.export.Dim("batch")
        exported = torch.export.export(module.eval(), (example,), dynamic_shapes=({0: batch},))
        return _encode_graph(exported), _constants(exported)
    except Exception as error:  # of many kinds, by what the network does that cannot be traced
        raise ValueError(
            f"the network {type(module).__name__} cannot be written as a graph ({first_line(error)[:200]}); save its "
            "state_dict() yourself, or use layers that torch.export knows."
        ) from error


def from_program(program: Mapping[str, Any], weights: Mapping[str, Tensor]) -> nn.Module:
    """The network of a graph.

    Args:
        program: What :func:`to_program` returned, perhaps by way of a file.
        weights: All tensors that it names.
    """
    try:
        root = nn.Module()
        for name in program["weights"]:
            _register(root, name, weights[name], name in program["buffers"])
        graph, nodes = fx.Graph(), {}
        for entry in program["nodes"]:
            nodes[entry["name"]] = _decode_node(graph, entry, nodes)
        graph.lint()
        return fx.GraphModule(root, graph, "Program")
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(
            f"the graph of this network cannot be read ({first_line(error)}); use another copy."
        ) from error


def _encode_graph(exported: Any) -> dict[str, Any]:
    signature = exported.graph_signature
    buffers = dict(signature.inputs_to_buffers) | dict(signature.inputs_to_lifted_tensor_constants)
    weights = dict(signature.inputs_to_parameters) | buffers
    nodes = []
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            entry = {"op": "weight", "target": weights[node.name]} if node.name in weights else {"op": "input"}
        elif node.op == "output":
            entry = {"op": "output", "args": _encode(node.args[0][0])}
        elif node.op == "call_function":
            if "_assert" in str(node.target):
                continue
            entry = {"op": "call", "target": _target_name(node.target), "args": _encode(node.args)}
            entry["kwargs"] = {key: _encode(value) for key, value in node.kwargs.items()}
        else:
            raise TypeError(f"it holds a part of kind {node.op}")
        nodes.append({"name": node.name, **entry})
    return {"nodes": nodes, "weights": list(dict.fromkeys(weights.values())), "buffers": sorted(set(buffers.values()))}


def _constants(exported: Any) -> dict[str, Tensor]:
    """Lifted constants and buffers that are not part of a state dict."""
    return {name: value for name, value in exported.constants.items() if isinstance(value, Tensor)}


def _target_name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
        return str(target)
    if getattr(operator, getattr(target, "__name__", ""), None) is target and target.__name__ in _ARITHMETIC:
        return f"operator.{target.__name__}"
    raise TypeError(f"it calls {target}")


def _target(name: str) -> Any:
    library, *path = name.split(".")
    if library == "operator" and len(path) == 1 and path[0] in _ARITHMETIC:
        return getattr(operator, path[0])
    if library != "aten" or len(path) != 2 or any(word in path[0] for word in _REFUSED):
        raise ValueError(
            f"the graph of this network calls {name!r}, which is no operator of a network; use another copy."
        )
    overload = getattr(getattr(torch.ops.aten, path[0]), path[1])
    if not isinstance(overload, torch._ops.OpOverload):
        raise TypeError(f"{name} is no operator")
    return overload


def _decode_node(graph: fx.Graph, entry: Mapping[str, Any], nodes: Mapping[str, fx.Node]) -> fx.Node:
    if entry["op"] == "weight":
        return graph.get_attr(entry["target"])
    if entry["op"] == "input":
        return graph.placeholder("x")
    if entry["op"] == "output":
        return graph.output(_decode(entry["args"], nodes))
    kwargs = {str(key): _decode(value, nodes) for key, value in entry["kwargs"].items()}
    return graph.call_function(_target(entry["target"]), tuple(_decode(entry["args"], nodes)), kwargs)


def _encode(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, list | tuple):
        return [_encode(each) for each in value]
    for kind, type_ in _KINDS.items():
        if isinstance(value, type_):
            return {kind: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": value.type}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"it holds a value of type {type(value).__name__}")


def _decode(value: Any, nodes: Mapping[str, fx.Node]) -> Any:
    if isinstance(value, list):
        return [_decode(each, nodes) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, name),) = value.items()
    if kind == "node":
        return nodes[name]
    if kind == "device":
        return torch.device(name)
    found = getattr(torch, name)
    if not isinstance(found, _KINDS[kind]):
        raise TypeError(f"{name} is no {kind}")
    return found


def _register(root: nn.Module, name: str, tensor: Tensor, buffer: bool) -> None:
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        child = root._modules[part]
        assert child is not None
        root = child
    if buffer:
        root.register_buffer(last, tensor)
    else:
        root.register_parameter(last, nn.Parameter(tensor))
