"""Where a network has dropout, and one forward pass with its masks."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from opu.batches import repeat

# Dropout as functions, each with the name of the argument that switches it on.
_FUNCTIONS: dict[Callable[..., Any], str] = dict.fromkeys(
    (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout), "training"
)
for _name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"):
    _FUNCTIONS |= dict.fromkeys((getattr(torch, _name), getattr(torch, f"{_name}_")), "train")
_ALPHA = 1.7580993408473766  # minus the value of a dropped unit of AlphaDropout


def is_dropout(layer: nn.Module) -> bool:
    """Whether a module is dropout: a layer of torch at a rate above 0, or a module named so."""
    if isinstance(layer, _DropoutNd):
        return layer.p > 0
    name = type(layer).__name__.lower()
    return "dropout" in name or "droppath" in name or "stochasticdepth" in name


def holds_dropout(layer: nn.Module) -> bool:
    """Whether a module has others in it that are dropout."""
    return any(is_dropout(child) for child in layer.modules() if child is not layer)


def drops_inside(layer: nn.Module) -> bool:
    """Whether a layer of torch or an attention of any library drops units by its own training flag."""
    # A transformer layer in evaluation mode uses a fused kernel without dropout.
    inside = isinstance(layer, nn.MultiheadAttention | nn.RNNBase) and layer.dropout > 0
    # Attention of other libraries reads a rate, and calls a fused kernel that drops weights in training mode.
    if "attention" in type(layer).__name__.lower() and not isinstance(layer, nn.MultiheadAttention):
        rates = [value for name, value in vars(layer).items() if "dropout" in name and isinstance(value, float)]
        rates += [child.p for child in layer.children() if isinstance(child, _DropoutNd)]
        inside = max(rates, default=0.0) > 0
    return inside or isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer | nn.TransformerEncoder)


class SharedMasks:
    """The masks of some particles for all rows; those of the first chunk of rows serve for the others."""

    def __init__(self) -> None:
        self._drawn: list[tuple[Tensor, Tensor | None]] = []
        self._next = 0

    def rewind(self) -> None:
        """Begin again with the first dropout layer."""
        self._next = 0

    def take(self, layer: nn.Module, shape: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Scale and offset of the next layer that is called; the offset is None if it is 0."""
        if self._next == len(self._drawn):
            self._drawn.append(_affine_mask(layer, like.new_ones(shape)))
        scale, offset = self._drawn[self._next]
        self._next += 1
        if scale.shape != shape:
            raise ValueError(
                "consistent masks need activations of one shape for all rows; a dropout layer met "
                f"{tuple(scale.shape[1:])} and then {shape[1:]}. Use consistent=False."
            )
        return scale, offset


class MaskedPass(TorchFunctionMode):
    """A forward pass for several particles: layers drop units by hooks, functions by this mode, which is the thread's own.

    Attributes:
        found_function: Whether dropout was called as a function.
        without_batch: Whether dropout met a tensor without the batch, such as weights: it would get one mask for all.

    Args:
        layers: Dropout layers.
        inner: Layers that drop units by their own training flag.
        rows: Number of inputs.
        count: Number of particles.
        late: Whether the first dropout layer repeats the batch; otherwise it was repeated at the input.
        shared: Masks for all rows; None if each row has its own.
        trial: Whether to draw nothing: the pass only shows where dropout is.
    """

    def __init__(
        self,
        layers: list[nn.Module],
        inner: list[nn.Module],
        *,
        rows: int,
        count: int,
        late: bool,
        shared: SharedMasks | None,
        trial: bool,
    ) -> None:
        super().__init__()
        self.layers, self.dropping_inside = layers, inner
        self.rows, self.count, self.late, self.shared, self.trial = rows, count, late, shared, trial
        self.found_function = self.without_batch = False
        self._depth = 0  # above 0 within a dropout layer

    @contextmanager
    def run(self) -> Iterator["MaskedPass"]:
        """Switch dropout on; a trial leaves it off."""
        with ExitStack() as stack:
            for layer in [*self.dropping_inside, *self.layers]:
                stack.callback(setattr, layer, "training", layer.training)
            for layer in self.dropping_inside:
                layer.training = not self.trial
            for layer in self.layers:
                layer.training = not self.trial and self.shared is None
                stack.callback(layer.register_forward_pre_hook(self._before).remove)
                stack.callback(layer.register_forward_hook(self._after).remove)
            stack.enter_context(self)
            yield self

    def _before(self, _layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        self._depth += 1
        if not inputs or self.shared is not None:
            return None
        z, *rest = inputs
        if not self.late:
            self._look_for_batch(z)
        elif len(z) != self.rows * self.count:
            self._must_be_batch(z)
            return (repeat(z, self.count), *rest)
        return None

    def _after(self, layer: nn.Module, _inputs: tuple[Any, ...], z: Tensor) -> Tensor | None:
        found = None if self.shared is None else self._shared_mask(layer, z, self.shared)
        self._depth -= 1
        return found

    def _shared_mask(self, layer: nn.Module, z: Tensor, shared: SharedMasks) -> Tensor:
        """One mask per particle for all rows, after a layer that is switched off."""
        if len(z) == self.rows * self.count:
            z = z.view(self.count, self.rows, *z.shape[1:])
        elif self.late:
            self._must_be_batch(z)
            z = z.unsqueeze(0).expand(self.count, *z.shape)
        else:
            raise ValueError(
                "consistent masks need dropout on tensors whose first axis is the batch; "
                f"{type(layer).__name__} met one of length {len(z)} for a batch of {self.rows * self.count}. Use "
                "consistent=False."
            )
        if self.trial:
            return z.flatten(0, 1)
        scale, offset = shared.take(layer, (self.count, *z.shape[2:]), z)
        masked = z * scale.unsqueeze(1)
        return (masked if offset is None else masked + offset.unsqueeze(1)).flatten(0, 1)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Switch functions on that follow the mode of their network; shared masks of a layer are drawn after it."""
        kwargs = kwargs or {}
        if func in _FUNCTIONS and not (self._depth > 0 and (self.trial or self.shared is not None)):
            args, kwargs = self._switched_on(_FUNCTIONS[func], list(args), dict(kwargs))
        return func(*args, **kwargs)

    def _switched_on(self, switch: str, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        rate = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
        if rate == 0:
            return args, kwargs
        if self._depth == 0:
            self._meet_function(args[0] if args else kwargs["input"])
        if len(args) > 2:
            args[2] = not self.trial
        else:
            kwargs[switch] = not self.trial
        return args, kwargs

    def _meet_function(self, z: Tensor) -> None:
        """Take note of dropout outside of layers."""
        self.found_function = True
        if self.shared is not None:
            raise ValueError(
                "consistent masks need dropout in layers of its own; got dropout that is called as a function inside "
                "forward(). Use consistent=False, or make it a layer (torch.nn.Dropout)."
            )
        if self.late:  # here it is not clear which axis is the batch
            raise RuntimeError("dropout is called as a function; the batch has to be repeated at the input")
        self._look_for_batch(z)

    def _look_for_batch(self, z: Tensor) -> None:
        if self.count > 1 and self.rows * self.count not in z.shape:
            self.without_batch = True

    def _must_be_batch(self, z: Tensor) -> None:
        if len(z) != self.rows:
            raise RuntimeError(f"a dropout layer met a first axis of {len(z)}, not the batch of {self.rows}")


def _affine_mask(layer: nn.Module, ones: Tensor) -> tuple[Tensor, Tensor | None]:
    """Scale and offset of a dropout layer, ``z * scale + offset`` with a random mask."""
    layer.training = True
    at_one, linear = layer.forward(ones), True
    if not isinstance(layer, _DropoutNd):  # of a user's own class
        linear = not bool(layer.forward(torch.zeros_like(ones)).any())
    layer.training = False
    if isinstance(layer, nn.AlphaDropout | nn.FeatureAlphaDropout):
        # The layer gives a z + b where a unit is kept, and b - alpha a where it is dropped, with b = alpha a p.
        a = ((_ALPHA**2 * layer.p + 1) * (1 - layer.p)) ** -0.5
        kept = (at_one > 0).to(at_one)
        return a * kept, _ALPHA * a * (kept - 1 + layer.p)
    if not linear:
        raise ValueError(
            f"consistent masks need dropout that scales its input; {type(layer).__name__} adds something to it. Use "
            "consistent=False."
        )
    return at_one, None
