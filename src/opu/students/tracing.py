"""From a network to its program: a list of PyTorch operators, which :class:`opu.students.program.Program` runs.

``torch.export`` traces the network. Its own file format is read by pickle and evaluates text as code, so ours is another.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import OutputKind

from opu.batches import Batch, reads, rebuild, repeat, take, tensors
from opu.checks import first_line
from opu.students.program import KINDS, target_of


def to_program(module: nn.Module, example: Batch) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The program of a network for batches of any size, and the constants in it that are not in its state dict.

    Args:
        module: In evaluation mode from here on.
        example: A batch of inputs.
    """
    example = repeat(take(example, slice(0, 1)), 2)  # a batch of one would be taken for a constant
    parts = tensors(example)
    try:
        if isinstance(example, Tensor):
            exported, names, prefix = _export(module.eval(), (example,)), None, ""
        else:
            exported, names = _export(_FromParts(module.eval(), example), tuple(parts.values())), list(parts)
            prefix = "module."
        constants = {n.removeprefix(prefix): v for n, v in exported.constants.items() if isinstance(v, Tensor)}
        return _encode_graph(exported, names, prefix), constants
    except Exception as error:  # of many kinds, by what the network does that cannot be traced
        raise ValueError(
            f"the network {type(reads(module)).__name__} cannot be written as a graph ({first_line(error)[:200]})"
        ) from error


class _FromParts(nn.Module):
    """A network that takes the tensors of a batch as separate arguments, in the order of :func:`opu.batches.tensors`."""

    def __init__(self, module: nn.Module, like: Batch) -> None:
        super().__init__()
        self.module, self.like = module, like

    def forward(self, *parts: Tensor) -> Tensor:
        output: Tensor = self.module(rebuild(self.like, parts))
        return output


def _export(module: nn.Module, parts: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    """Trace the network for any size of each axis, or, if its layers depend on the others, for any size of the batch.

    Tracing runs the network. If that takes the size of the batch for a constant, its code is read instead.
    """
    batch: list[dict[int, Any]] = [{0: torch.export.Dim("batch")} for _ in parts]
    sizes = [[axis for axis, size in enumerate(part.shape) if size > 1] for part in parts]
    every = [dict.fromkeys(axes, torch.export.Dim.AUTO) | first for axes, first in zip(sizes, batch, strict=True)]
    attempts = [(axes, strict) for axes in (every, batch) for strict in (False, True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, (axes, strict) in enumerate(attempts):
            shapes: Any = (tuple(axes),) if isinstance(module, _FromParts) else tuple(axes)
            try:
                return torch.export.export(module, parts, dynamic_shapes=shapes, strict=strict)
            except Exception:  # of many kinds; the last attempt says why
                if number == len(attempts) - 1:
                    raise
    raise AssertionError("one of the attempts returns or raises")


def _encode_graph(exported: torch.export.ExportedProgram, parts: list[str] | None, prefix: str) -> dict[str, Any]:
    signature, graph = exported.graph_signature, exported.graph
    buffers = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    buffers = {node: name.removeprefix(prefix) for node, name in buffers.items()}
    weights = {node: name.removeprefix(prefix) for node, name in signature.inputs_to_parameters.items()} | buffers
    used = []
    inputs = iter(["input"] if parts is None else [f"input:{name}" for name in parts])
    position = [spec.kind for spec in signature.output_specs].index(OutputKind.USER_OUTPUT)
    _inline(exported.graph_module)
    for node in reversed(graph.nodes):
        if node.op == "call_function" and "_assert" in str(node.target):
            graph.erase_node(node)
    graph.eliminate_dead_code()
    names: dict[fx.Node, str] = {}
    steps = []
    for node in graph.nodes:
        if node.op == "placeholder" and node.name in weights:
            names[node] = f"weight:{weights[node.name]}"
            used += [weights[node.name]] if node.users else []
        elif node.op == "placeholder":
            names[node] = next(inputs)
        elif node.op == "call_function":
            names[node] = node.name
            kwargs = {key: _encode(value, names) for key, value in node.kwargs.items()}
            target = _target_name(node.target)
            steps.append({"name": node.name, "call": target, "args": _encode(node.args, names), "kwargs": kwargs})
        elif node.op == "get_attr":  # a region of another kind: a branch, a loop, or one under autocast
            raise TypeError(f"it calls {next(iter(node.users)).target}")
    (outputs,) = graph.output_node().args
    assert isinstance(outputs, tuple | list)
    output = outputs[position]
    assert isinstance(output, fx.Node)
    return {
        **({} if parts is None else {"inputs": parts}),
        "weights": sorted(set(used)),
        "buffers": sorted(set(used) & set(buffers.values())),
        "steps": steps,
        "output": names[output],
    }


def _inline(module: fx.GraphModule) -> None:
    """Put the operators of regions without gradients, or without autocast, in the place of the regions themselves.

    Rotary position codes are computed in such regions. Gradients do not change what a program computes, and a program is not
    run under autocast.
    """
    higher_order = torch.ops.higher_order
    for node in module.graph.nodes:
        if node.target is higher_order.wrap_with_set_grad_enabled:
            _, region, *args = node.args
        elif node.target is higher_order.wrap_with_autocast and node.args[2] is False:
            _, _, _, _, region, *args = node.args
        else:
            continue
        inner = module.get_submodule(region.target)
        assert isinstance(inner, fx.GraphModule)
        _inline(inner)
        placeholders = inner.graph.find_nodes(op="placeholder")
        with module.graph.inserting_before(node):
            results: Any = module.graph.graph_copy(inner.graph, dict(zip(placeholders, args, strict=True)))
        for use in list(node.users):  # each takes one of the region's results
            use.replace_all_uses_with(results[use.args[1]])
            module.graph.erase_node(use)
        module.graph.erase_node(node)
        if not region.users:
            module.graph.erase_node(region)


def _target_name(target: Any) -> str:
    if target is torch.ops.aten.view.default:  # strides on another device may not allow a view
        target = torch.ops.aten.reshape.default
    is_aten = isinstance(target, torch._ops.OpOverload)
    name = str(target) if is_aten else f"operator.{getattr(target, '__name__', target)}"
    if target_of(name) is not target:
        raise TypeError(f"it calls {target}")
    return name


def _encode(value: Any, names: Mapping[fx.Node, str]) -> Any:
    if isinstance(value, fx.Node):
        return {"value": names[value]}
    if isinstance(value, list | tuple):
        return [_encode(each, names) for each in value]
    for kind, type_ in KINDS.items():
        if isinstance(value, type_):
            return {kind: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"value": "device"}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"it holds a value of type {type(value).__name__}")
