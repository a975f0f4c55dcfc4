"""Quantisation after training: weights and activations in eight bits, with ranges from calibration inputs."""

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from opu.batches import Batch, split
from opu.export.onnx_file import feeds, quiet

_LAYERS = ("Gemm", "Conv", "Relu")  # a ReLU becomes part of the range of the layer before it, and costs nothing
_ROWS_AT_ONCE = 100


def quantised(model: Any, calibration: Batch) -> Any:
    """The same model with its layers in int8; the measures behind the network stay as they are.

    Args:
        model: A model of :func:`opu.export.onnx_file.to_onnx`.
        calibration: Some hundreds of in-distribution inputs, which set the ranges of activations.
    """
    import onnx
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.parts: Iterator[Batch] = split(calibration, _ROWS_AT_ONCE)

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            part = next(self.parts, None)
            return None if part is None else feeds(part)

    with tempfile.TemporaryDirectory() as folder, quiet():
        path = Path(folder) / "int8.onnx"
        quantization.quantize_static(
            _with_own_inputs(model),
            path,
            Reader(),
            op_types_to_quantize=list(_LAYERS),
            per_channel=True,
            reduce_range=True,  # weights of seven bits do not overflow on CPUs that add products in 16 bits
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )
        small = onnx.load(path)
    del small.metadata_props[:]
    small.metadata_props.extend(model.metadata_props)
    small.producer_name = "opu"
    return small


def _with_own_inputs(model: Any) -> Any:
    """A copy of the model in which layers read copies of tensors that others read too.

    The quantiser puts the rounded and clipped tensor in the place of the first one for all its readers. The test of whether
    an input is finite, and its distance from the range, must see the input as it came.
    """
    import onnx

    model = copy.deepcopy(model)
    readers: dict[str, set[bool]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, set()).add(node.op_type in _LAYERS)
    shared = {name for name, kinds in readers.items() if len(kinds) == 2 and name}
    shared -= {each.name for each in model.graph.initializer}
    nodes, copied = [], set()
    for node in model.graph.node:
        if node.op_type in _LAYERS:
            for place, name in enumerate(node.input):
                if name not in shared:
                    continue
                if name not in copied:
                    nodes.append(onnx.helper.make_node("Identity", [name], [f"{name}_of_layers"], f"{name}_of_layers"))
                    copied.add(name)
                node.input[place] = f"{name}_of_layers"
        nodes.append(node)
    ordered = [copy.deepcopy(node) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(ordered)
    return model
