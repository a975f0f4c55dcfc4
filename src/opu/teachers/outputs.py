"""From what a network gives, logits or probabilities of two or more classes or of one, to log-probabilities of classes."""

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from opu.batches import as_scores
from opu.choices import OUTPUTS, Outputs, check_choice
from opu.cuda_graph import being_captured

FLOOR = 1e-12
ENOUGH_ROWS, ENOUGH_REPEATED, ENOUGH_BINARY = 8, 64, 64
_TOLERANCE = 1e-2  # of a row's sum; half precision needs it
ONE_OUTPUT = (
    "a classifier must give a score for each of two or more classes; {} gives a single output per input. If that is the "
    "logit of class 1, as a sigmoid takes it, {}."
)
_SAY_BINARY = "say binary=True, or return the two logits 0 and z"


def to_log_probabilities(values: Tensor, outputs: Outputs, floor: float = FLOOR) -> Tensor:
    """Outputs of a network or values of an array as log-probabilities; what they are is not asked here.

    Args:
        values: Outputs with the classes on the last axis.
        outputs: Kind of the values.
        floor: Smallest probability; smaller ones are raised to it, since an exact 0 has no logarithm.
    """
    check_choice("outputs", outputs, OUTPUTS)
    if outputs == "probabilities":
        raised = (values if values.dtype == torch.float64 else values.float()).clamp(min=floor)
        return (raised / raised.sum(-1, keepdim=True)).log()
    if outputs == "log_probabilities":
        lowest = values.masked_fill(values == -torch.inf, 0.0).min().clamp(max=math.log(floor))
        values = torch.where(values == -torch.inf, lowest, values)
    return values.log_softmax(-1)  # leaves log-probabilities unchanged


class Reading:
    """How a teacher's outputs are read, and whether they are what they were announced as.

    A row of logits may lie on the simplex by chance, so rows are gathered over calls until it is clear what they are: the
    first row off the simplex shows that a second softmax is right, and nothing is asked from there on. Values that were
    announced as probabilities are checked in every call.

    Args:
        outputs: Kind of the outputs.
        binary: Whether there is one output per input, which belongs to class 1 of two.
        floor: Smallest probability.
        enough: Number of different rows that all lie on the simplex, from which on the outputs are refused.
    """

    def __init__(self, outputs: Outputs, binary: bool = False, floor: float = FLOOR, enough: int = ENOUGH_ROWS) -> None:
        check_choice("outputs", outputs, OUTPUTS)
        self.outputs, self.binary, self.floor, self.enough = outputs, binary, floor, enough
        self._known = False
        self._different: set[tuple[float, ...]] = set()
        self._count = 0

    def rows(self, values: Tensor, name: str = "the network") -> Tensor:
        """A network's outputs as one row per input: the scores of all classes, or the one of class 1."""
        if self.binary:
            return one_column(values)
        if values.ndim < 2 or (values.ndim == 2 and values.shape[1] == 1):
            raise ValueError(ONE_OUTPUT.format(name, _SAY_BINARY))
        if values.ndim > 2:
            raise ValueError(
                "the network must give one row of class scores per input; got outputs of shape "
                f"{tuple(values.shape)}, whose first axis is the batch."
            )
        return values

    def log_probabilities(self, values: Tensor) -> Tensor:
        """Log-probabilities of two or more classes; the values of all inputs have passed through :meth:`rows`."""
        self.check(values)
        if self.binary:
            return two_classes(values, self.outputs, self.floor)
        return to_log_probabilities(values, self.outputs, self.floor)

    def check(self, values: Tensor) -> None:
        """Refuse values that are not what they were announced as."""
        if being_captured(
            values
        ):  # no value may be read during the capture of a CUDA graph; earlier calls were checked
            return
        if self.outputs == "probabilities":
            _check_probabilities(values, self.binary)
        elif not self._known:
            self._known = self._look_at_binary(values) if self.binary else self._look_at(values)

    def _look_at(self, values: Tensor) -> bool:
        """Whether the outputs are known not to be probabilities."""
        rows = values.detach().flatten(0, -2)
        finite = rows.isfinite().all(-1)
        on = (rows >= 0).all(-1) & ((rows.double().sum(-1) - 1).abs() < _TOLERANCE)
        if bool((finite & ~on).any()):
            return True
        some = rows[finite]
        self._count += len(some)
        self._different.update(map(tuple, some[:1000].tolist()))
        # Values of hard votes or of stumps repeat; a constant network gives one row only, and that says nothing.
        found = len(self._different)
        if found >= self.enough or (found > 1 and self._count >= ENOUGH_REPEATED):
            raise ValueError(
                f"the teacher's outputs were announced as {self.outputs} but lie on the simplex, row by row; a second "
                'softmax would flatten them. Say outputs="probabilities", or remove the softmax.'
            )
        return False

    def _look_at_binary(self, values: Tensor) -> bool:
        if self.outputs == "log_probabilities":
            if float(values.max()) > 1e-4:
                raise ValueError(
                    "the logarithms of probabilities must not be positive; got outputs up to "
                    f'{float(values.max()):.3g}. If these are logits, say outputs="logits".'
                )
            return False
        if bool(((values < 0) | (values > 1)).any()):
            return True
        self._different.update(map(tuple, values.detach().flatten(0, -2)[:1000].tolist()))
        if len(self._different) < ENOUGH_BINARY:
            return False
        # Not refused: the logits of a network that is sure of nothing may all lie there.
        warnings.warn(
            "all outputs that were announced as logits of class 1 lie between 0 and 1; if the network ends in a sigmoid, say "
            'outputs="probabilities".',
            stacklevel=5,
        )
        return True


def _check_probabilities(values: Tensor, binary: bool) -> None:
    low, high = float(values.min()), float(values.max())
    if binary:
        if not (low >= -1e-4 and high <= 1 + 1e-4):
            raise ValueError(
                f"probabilities must lie between 0 and 1; got values in {low:.3g} .. {high:.3g}. If these are logits, say "
                'outputs="logits".'
            )
        return
    sums = values.double().sum(-1)
    least, most = float(sums.min()), float(sums.max())
    if not (low >= -1e-4 and high <= 1 + 1e-4 and least >= 1 - _TOLERANCE and most <= 1 + _TOLERANCE):
        raise ValueError(
            f"particles must lie on the simplex; got values in {low:.3g} .. {high:.3g} and rows that sum to "
            f'{least:.3g} .. {most:.3g}. If these are logits, say outputs="logits".'
        )


def one_column(values: Tensor) -> Tensor:
    """One output per input as a column; networks give ``(B, 1)``, ``(B,)``, or a number for a batch of one."""
    if values.ndim > 2 or (values.ndim == 2 and values.shape[1] != 1):
        raise ValueError(
            f"binary=True needs a network with a single output per input; got outputs of shape {tuple(values.shape)}. For "
            "one score per class leave it out."
        )
    return values.reshape(-1, 1)


def two_classes(values: Tensor, outputs: Outputs, floor: float = FLOOR) -> Tensor:
    r"""Log-probabilities of class 0 and class 1 from one value of class 1, ``(..., 1)``.

    A logit gives :math:`\log\sigma(-z)` and :math:`\log\sigma(z)`, which lose nothing however large it is.
    """
    if outputs == "logits":
        return nn.functional.logsigmoid(torch.cat([-values, values], -1))
    values = values if values.dtype == torch.float64 else values.float()
    if outputs == "probabilities":
        p = values.clamp(0.0, 1.0)
        both = torch.cat([torch.log1p(-p), p.log()], -1)
    else:
        log_p = values.clamp(max=0.0)
        # log(1 - p) loses digits in one of two ways, by whether p is near 1 or near 0.
        near_one = log_p > -math.log(2.0)
        others = torch.where(near_one, (-torch.expm1(log_p)).log(), torch.log1p(-log_p.exp()))
        both = torch.cat([others, log_p], -1)
    return both.clamp(min=math.log(floor)).log_softmax(-1)


class Log(nn.Module):
    """The logarithm of probabilities; an exact 0 is raised to 1e-12."""

    def forward(self, probabilities: Any) -> Tensor:
        """Log-probabilities."""
        return as_scores(probabilities).clamp(min=FLOOR).log()


class TwoClasses(nn.Module):
    """Logits of two classes from one output per input, which belongs to class 1.

    Args:
        outputs: Kind of that output.
    """

    def __init__(self, outputs: Outputs) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, output: Any) -> Tensor:
        """The logits 0 and z, or log-probabilities."""
        column = one_column(as_scores(output))
        if self.outputs == "logits":
            return torch.cat([torch.zeros_like(column), column], -1)
        return two_classes(column, self.outputs)


def as_logits(net: nn.Module, outputs: Outputs, binary: bool = False) -> nn.Module:
    """A network whose softmax is the class probabilities; log-probabilities are logits already."""
    inner: nn.Module = getattr(net, "_orig_mod", net)  # torch.compile wraps the network
    if binary:
        return nn.Sequential(inner, TwoClasses(outputs))
    return nn.Sequential(inner, Log()) if outputs == "probabilities" else net
