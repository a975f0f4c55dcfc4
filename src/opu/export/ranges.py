"""How far inputs lie outside the range that eight bits were calibrated on, where a quantised network cannot see them."""

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from opu.batches import Batch, tensors

SHARE = 0.1  # fraction of the false alarms that inputs outside the range may cause


class Ranges(nn.Module):
    """The smallest and the largest value of each part of the inputs that holds floating-point numbers.

    An int8 layer clips its inputs: one that is a hundred times too large looks to it like the largest of the calibration
    inputs. So the distance from the range, in lengths of the range, is evidence of its own.

    Args:
        calibration: In-distribution inputs, as the network takes them.
    """

    low: Tensor
    high: Tensor

    def __init__(self, calibration: Batch) -> None:
        super().__init__()
        smallest, largest = _extremes(calibration)
        self.register_buffer("low", smallest.amin(0), persistent=False)
        self.register_buffer("high", largest.amax(0), persistent=False)

    def excess(self, x: Batch) -> Float64[Tensor, "B 1"]:
        """The largest distance from the range over all parts, in lengths of the range; 0 within it."""
        smallest, largest = _extremes(x)
        beyond = torch.maximum(largest - self.high, self.low - smallest) / (self.high - self.low).clamp(min=1e-30)
        return beyond.amax(-1, keepdim=True).clamp(min=0)

    @staticmethod
    def excess_left_out(calibration: Batch) -> Float64[Tensor, "n 1"]:
        """The same for each calibration input, with the range of the others."""
        smallest, largest = _extremes(calibration)
        low, high = _of_others(smallest), -_of_others(-largest)
        beyond = torch.maximum(largest - high, low - smallest) / (high - low).clamp(min=1e-30)
        return beyond.amax(-1, keepdim=True).clamp(min=0)


def has_ranges(x: Batch) -> bool:
    """Whether some part of the inputs holds floating-point numbers."""
    return any(t.is_floating_point() for t in tensors(x).values())


def _extremes(x: Batch) -> tuple[Float64[Tensor, "B parts"], Float64[Tensor, "B parts"]]:
    # One more row, since ONNX Runtime gives the extremes of an empty batch a wrong shape.
    rows = [nn.functional.pad(t.flatten(1), (0, 0, 0, 1)) for t in tensors(x).values() if t.is_floating_point()]
    smallest, largest = torch.stack([t.amin(-1) for t in rows], -1), torch.stack([t.amax(-1) for t in rows], -1)
    return smallest[:-1].double(), largest[:-1].double()


def _of_others(smallest: Float64[Tensor, "n parts"]) -> Float64[Tensor, "n parts"]:
    """The smallest value of all other rows."""
    first, second = smallest.topk(2, dim=0, largest=False).values
    place = smallest.argmin(0)
    rows = torch.arange(len(smallest)).unsqueeze(-1)
    return torch.where(rows == place, second, first)
