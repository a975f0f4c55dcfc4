"""A network as data: a list of PyTorch operators as json, which runs without the network's class.

A program names operators from the list below, numbers and weights, and nothing that is read is compiled or evaluated.
:mod:`opu.students.tracing` makes programs.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from opu.batches import Batch, first_tensor, tensors
from opu.checks import first_line
from opu.json_text import shown
from opu.students.budget import META, Budget

# Operators of the aten library that a program may call, also in place. None touches files or memory beyond its arguments.
_OPERATORS = frozenset(
    """
    linear bilinear matmul mm bmm mv dot vdot addmm baddbmm einsum embedding conv1d conv2d conv3d _weight_norm
    conv_transpose1d conv_transpose2d conv_transpose3d batch_norm layer_norm group_norm instance_norm rms_norm lstm
    gru rnn_tanh rnn_relu scaled_dot_product_attention dropout feature_dropout alpha_dropout max_pool1d max_pool2d
    max_pool3d max_pool2d_with_indices grid_sampler affine_grid_generator avg_pool1d avg_pool2d avg_pool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    upsample_nearest1d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d pixel_shuffle pixel_unshuffle
    channel_shuffle unfold im2col col2im pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d
    replication_pad2d relu relu6 leaky_relu elu selu celu gelu silu mish sigmoid log_sigmoid tanh softplus hardtanh
    hardsigmoid hardswish hardshrink softshrink threshold prelu rrelu glu softmax log_softmax exp exp2 expm1 log
    log2 log10 log1p sqrt rsqrt square pow abs sign neg reciprocal sin cos tan asin acos atan sinh cosh erf floor
    ceil round trunc clamp clamp_min clamp_max clip nan_to_num add sub rsub mul div true_divide floor_divide
    remainder fmod addcmul addcdiv lerp maximum minimum fmax fmin atan2 hypot sum mean var std var_mean std_mean
    prod amax amin max min argmax argmin logsumexp cumsum cumprod norm linalg_norm linalg_vector_norm cdist
    pairwise_distance cosine_similarity eq ne lt le gt ge isnan isinf isfinite logical_and logical_or logical_not
    logical_xor bitwise_and bitwise_or bitwise_not any all where masked_fill gather scatter index index_select
    index_put take_along_dim select slice narrow split split_with_sizes chunk unbind tril triu roll flip rot90 sort
    argsort topk one_hot view view_as reshape flatten unflatten squeeze unsqueeze expand expand_as repeat
    repeat_interleave tile transpose permute movedim t swapaxes cat concat stack hstack vstack diagonal broadcast_to
    meshgrid to type_as _to_copy clone contiguous alias detach lift_fresh_copy copy fill zero zeros ones full arange
    linspace eye scalar_tensor zeros_like ones_like full_like new_zeros new_ones new_full sym_size sym_numel fft_fft
    fft_rfft fft_rfft2 fft_fft2 real imag view_as_real view_as_complex feature_alpha_dropout upsample_linear1d
    upsample_nearest3d upsample_trilinear3d outer tensordot mT numpy_T __and__ __or__ __xor__ special_expit median
    quantile addmv
    """.split()  # noqa: SIM905
)
_ARITHMETIC = {
    name: getattr(operator, name) for name in ("getitem", "add", "sub", "mul", "truediv", "floordiv", "mod", "neg")
}
KINDS: dict[str, type] = {"dtype": torch.dtype, "memory_format": torch.memory_format, "layout": torch.layout}
# Looked up here: asking torch for a name from a file could import a module.
_CONSTANTS = {kind: {n: v for n, v in vars(torch).items() if isinstance(v, type_)} for kind, type_ in KINDS.items()}
MOST_STEPS = 50_000
_DEEPEST_NAME = 50


@dataclass(frozen=True)
class _Value:
    """A value by name: ``input`` or ``input:<name>``, ``device``, ``weight:<name>``, or the result of an earlier step."""

    name: str


class Program(nn.Module):
    """A network that runs the steps of a program.

    Args:
        program: What :func:`opu.students.tracing.to_program` returned, perhaps by way of a file.
        weights: All tensors that it names.
    """

    def __init__(self, program: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        try:
            _check_lengths(program)
            buffers = set(program["buffers"])
            for name in program["weights"]:
                _register(self, name, weights[name], trained=name not in buffers)
            self._weights = [str(name) for name in program["weights"]]
            # Names of the parts of an input that has several, in a dict, a tuple or a dataclass.
            self.input_names = [str(name) for name in program["inputs"]] if "inputs" in program else None
            self._steps = [_decode_step(entry) for entry in program["steps"]]
            self._output = str(program["output"])
            self._last_uses = self._find_last_uses()
        except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            message = f"the graph of this network cannot be read ({first_line(error)[:200]}); use another copy."
            raise ValueError(message) from error

    def forward(self, x: Batch) -> Tensor:
        """What the network returned."""
        values = self._named(x) | {"device": first_tensor(x).device} | self._named_weights()
        for (name, function, args, kwargs), spent in zip(self._steps, self._last_uses, strict=True):
            values[name] = function(*_resolve(args, values), **_resolve(kwargs, values))
            for each in spent:  # so that activations are freed as early as in the network's own forward()
                values.pop(each, None)
        output: Tensor = values[self._output]
        return output

    @torch.no_grad()
    def dry_run(self, x: Batch, budget: Budget) -> Tensor:
        """What the network would return, without memory and without numbers: all tensors are on the device ``meta``.

        Args:
            x: Inputs on that device.
            budget: Refuses what would take too much memory.
        """
        weights = {name: w if w.dtype == torch.bool else w.to(META) for name, w in self._named_weights().items()}
        values = self._named(x) | {"device": META} | weights
        for (name, function, args, kwargs), spent in zip(self._steps, self._last_uses, strict=True):
            values[name] = budget.run(name, function, _resolve(args, values), _resolve(kwargs, values))
            for each in spent:
                values.pop(each, None)
                budget.free(each)
        output: Tensor = values[self._output]
        return output.to(META)

    def _named_weights(self) -> dict[str, Tensor]:
        values = {}
        for name in self._weights:
            path, _, last = name.rpartition(".")
            values[f"weight:{name}"] = getattr(self.get_submodule(path), last)
        return values

    def _named(self, x: Batch) -> dict[str, Any]:
        if self.input_names is None:
            return {"input": x}
        given = {self.input_names[0]: x} if isinstance(x, Tensor) else tensors(x)
        missing = [name for name in self.input_names if name not in given]
        if missing:
            raise ValueError(
                f"this student's inputs have the parts {', '.join(self.input_names)}; {', '.join(missing)} is missing, and "
                f"{', '.join(given)} was given."
            )
        return {f"input:{name}": given[name] for name in self.input_names}

    def _find_last_uses(self) -> list[set[str]]:
        """For each step, the values that no later one needs; every value must be made before it is used."""
        made = {"device", *(f"input:{name}" for name in self.input_names or [])}
        made |= {"input"} if self.input_names is None else set()
        made |= {*(f"weight:{name}" for name in self._weights)}
        uses = []
        for name, _, args, kwargs in self._steps:
            uses.append(_names([args, kwargs]))
            if not uses[-1] <= made:
                raise ValueError(f"step {name!r} needs a value that no earlier step makes")
            made.add(name)
        if self._output not in made:
            raise ValueError(f"no step makes the output {self._output!r}")
        later, spent = {self._output}, []
        for used in reversed(uses):
            spent.append(used - later)
            later |= used
        return spent[::-1]


def _check_lengths(program: Mapping[str, Any]) -> None:
    """Refuse what would take long to build, or could not be walked through."""
    if len(program["steps"]) > MOST_STEPS:
        raise ValueError(f"it has {len(program['steps']):,} steps, and at most {MOST_STEPS:,} are read")
    if len(set(program["weights"])) < len(program["weights"]):
        raise ValueError("it names a weight twice")
    deep = [name for name in program["weights"] if name.count(".") > _DEEPEST_NAME]
    if deep:
        raise ValueError(f"the name of a weight, {shown(deep[0])}, has more than {_DEEPEST_NAME} parts")


@cache
def target_of(name: str) -> Callable[..., Any]:
    """The operator of this name; any that is not on the list is refused."""
    library, _, path = name.partition(".")
    if library == "operator" and path in _ARITHMETIC:
        function: Callable[..., Any] = _ARITHMETIC[path]
        return function
    packet, _, overload = path.partition(".")
    if library != "aten" or _OPERATORS.isdisjoint({packet, packet.removesuffix("_")}):
        raise ValueError(f"it calls {name!r}, which is not one of the operators that networks use")
    operators = getattr(torch.ops.aten, packet)
    if overload not in operators.overloads() or "out" in overload.split("_"):
        raise ValueError(f"it calls {name!r}, which PyTorch {torch.__version__} does not have")
    found: Callable[..., Any] = getattr(operators, overload)
    return found


def _decode_step(entry: Mapping[str, Any]) -> tuple[str, Callable[..., Any], list[Any], dict[str, Any]]:
    name, call, args = str(entry["name"]), str(entry["call"]), _decode(entry["args"])
    function = target_of(call)
    if call.startswith("operator."):
        if not all(isinstance(each, _Value | int | float) for each in args):
            raise TypeError("arithmetic takes numbers")
        function = function if call == "operator.getitem" else partial(_calculate, function)
    return name, function, args, {str(key): _decode(value) for key, value in entry["kwargs"].items()}


def _calculate(function: Callable[..., Any], *args: Any) -> Any:
    """Arithmetic with sizes: not with lists, which it would repeat, nor with integers that grow without end."""
    if any(isinstance(each, list | tuple) for each in args):
        raise TypeError("arithmetic takes numbers, and got a list of values")
    result = function(*args)
    if isinstance(result, int) and not -(2**63) <= result < 2**63:
        raise OverflowError("arithmetic with sizes leaves 64 bits")
    return result


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, name),) = value.items()
    if kind == "value":
        return _Value(str(name))
    if name not in _CONSTANTS[kind]:
        raise TypeError(f"{shown(name)} is no {kind}")
    return _CONSTANTS[kind][name]


def _resolve(argument: Any, values: Mapping[str, Any]) -> Any:
    """The argument with values in place of their names."""
    if isinstance(argument, _Value):
        return values[argument.name]
    if isinstance(argument, dict):
        return {key: _resolve(each, values) for key, each in argument.items()}
    return [_resolve(each, values) for each in argument] if isinstance(argument, list) else argument


def _names(argument: Any) -> set[str]:
    """The names of all values in an argument."""
    parts = argument.values() if isinstance(argument, dict) else argument if isinstance(argument, list) else []
    return {argument.name} if isinstance(argument, _Value) else {name for each in parts for name in _names(each)}


def _register(root: nn.Module, name: str, tensor: Tensor, *, trained: bool) -> None:
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    if trained:
        learns = tensor.is_floating_point() or tensor.is_complex()
        root.register_parameter(last, nn.Parameter(tensor, requires_grad=learns))
    else:
        root.register_buffer(last, tensor)
