"""A student as an ONNX model, checked against PyTorch."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from opu.batches import Batch, as_batch, num_rows, repeat, tensors
from opu.checks import first_line
from opu.export.drift import Predict
from opu.export.outputs import StudentWithMeasures, Witnesses

OPSETS = range(18, 24)  # from the first that the exporter writes to the last that ONNX Runtime was seen to run
INPUT = "inputs"
# Both networks run in float32, and small differences of logits grow in the measures.
TOLERANCE = 1e-3


def required() -> None:
    """Refuse to begin without the packages of ONNX."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f'ONNX needs more packages ({error.name} is missing): pip install "one-pass-uncertainty[onnx]".'
        ) from None


def input_names(example: Batch) -> list[str]:
    """Names of a file's inputs: ``inputs``, or the keys, fields or numbered places of several."""
    if isinstance(example, Tensor):
        return [INPUT]
    return [f"{INPUT}_{name}" if name[0].isdigit() else name for name in tensors(example)]


def feeds(x: Batch) -> dict[str, NDArray[Any]]:
    """A batch as arrays by the names of a file's inputs."""
    batch = as_batch(x)
    return dict(zip(input_names(batch), (t.numpy() for t in tensors(batch).values()), strict=True))


def axes_of(parts: Sequence[Tensor]) -> list[tuple[dict[int, Any], ...]]:
    """Which axes may vary, in the order of what to try: rows and lengths of token sequences, or rows alone."""
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", min=2)
    rows = tuple({0: batch} for _ in parts)
    tokens = [not t.is_floating_point() and t.ndim == 2 for t in parts]
    both = tuple({0: batch, 1: length} if token else {0: batch} for token in tokens)
    return [both, rows] if any(tokens) else [rows]


def to_onnx(
    network: StudentWithMeasures | Witnesses, example: Batch, metadata: dict[str, str], opset: int = OPSETS[0]
) -> Any:
    """An ONNX model that takes any number of inputs at a time.

    Args:
        network: The student with its measures.
        example: A few inputs as they will come.
        metadata: Texts by name that are kept in the file.
        opset: Version of ONNX's operators.
    """
    required()
    if opset not in OPSETS:
        raise ValueError(
            f"files are written with opset {OPSETS[0]} to {OPSETS[-1]} of ONNX; got {opset}. Leave it out for {OPSETS[0]}, "
            "which every current runtime reads."
        )
    if num_rows(example) < 2:  # a batch of one would be taken for a constant
        example = repeat(example, 2)
    model = _exported(network, example, opset)
    if not model.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
        raise ValueError(
            "the student's network takes the number of inputs for a constant, so its file would take "
            f"{num_rows(example)} at a time only; where it says len(x), write x.shape[0]."
        )
    _strip(model)
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    return model


def _exported(network: StudentWithMeasures | Witnesses, example: Batch, opset: int) -> Any:
    parts = tuple(tensors(example).values())
    *first, last = axes_of(parts)
    for axes in (*first, last):
        try:
            with quiet():
                model = _program(network, example, axes, opset, optimize=True)
                # The exporter's optimiser can lose a value, for example where two networks clamp the same inputs.
                return model if _is_whole(model) else _program(network, example, axes, opset, optimize=False)
        except torch.onnx.OnnxExporterError as error:
            if axes is last:
                raise ValueError(refusal(error)) from error
    raise AssertionError("the last attempt returns or raises")


def _program(
    network: StudentWithMeasures | Witnesses,
    example: Batch,
    axes: tuple[dict[int, Any], ...],
    opset: int,
    optimize: bool,
) -> Any:
    program = torch.onnx.export(
        network,
        tuple(tensors(example).values()),
        dynamo=True,
        dynamic_shapes=(axes,),
        input_names=input_names(example),
        output_names=list(network.names),
        opset_version=opset,
        optimize=optimize,
        verbose=False,
    )
    assert program is not None
    return program.model_proto


def _is_whole(model: Any) -> bool:
    """Whether every value that the graph reads is there."""
    import onnx

    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError:
        return False
    return True


def _strip(model: Any) -> None:
    """Drop the exporter's notes: they hold paths of this machine, and shapes that mislead ONNX Runtime's quantiser."""
    del model.graph.value_info[:]
    del model.metadata_props[:]
    model.producer_name, model.doc_string = "opu", ""
    for holder in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del holder.metadata_props[:]
        holder.doc_string = ""


def refusal(error: Exception) -> str:
    """One line on a network that cannot be exported."""
    first = first_line(error.__cause__ or error)
    return f"the student's network cannot be exported ({first[:200]}); use layers that torch.export knows."


def runner(model: Any, num_threads: int = 0) -> Predict:
    """The model in ONNX Runtime on the CPU: from inputs to all outputs by name."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of a type of the runtime's own
        raise ValueError(refusal(error)) from error
    names = [each.name for each in session.get_outputs()]
    return lambda x: dict(zip(names, session.run(None, feeds(x)), strict=True))


def differences(predict: Predict, x: Batch, expected: Mapping[str, Tensor]) -> dict[str, float]:
    """The largest relative difference of each output from what is expected; more than rounding explains is refused.

    For novelty it is the median: where two calibration inputs nearly tie, rounding decides between two ranks.

    Args:
        predict: From inputs to outputs by name.
        x: Inputs as they will come, not rounded.
        expected: What the library predicts for them, by name of the output.
    """
    theirs, found = predict(x), {}
    for name, value in expected.items():
        off = (torch.from_numpy(theirs[name]) - value).abs() / value.abs().clamp(min=1)
        found[name] = float(off.median() if name.startswith("novelty") else off.max())
        if not found[name] < TOLERANCE:
            raise RuntimeError(
                f"the exported {name} differs from PyTorch's by {found[name]:.2g}, more than rounding explains; nothing was "
                "written. Please report this with the architecture."
            )
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's and the quantiser's remarks about packages and steps that nobody asked for."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
