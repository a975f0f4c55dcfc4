"""How far inputs lie outside the range that eight bits were calibrated on, where a quantised network cannot see them."""

from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from opu.batches import Batch, tensors

SHARE = 0.1  # fraction of the false alarms that inputs outside the range may cause


class Ranges(nn.Module):
    """The smallest and the largest value of each part of the inputs that holds numbers.

    An int8 layer clips its inputs: one that is a hundred times too large looks to it like the largest of the calibration
    inputs. So the distance from the range, in lengths of the range, is evidence of its own.

    Args:
        calibration: In-distribution inputs, as the network takes them.
        places: The places of the parts that hold numbers, and no indices.
    """

    low: Tensor
    high: Tensor

    def __init__(self, calibration: Batch, places: Sequence[int]) -> None:
        super().__init__()
        self.places = tuple(places)
        smallest, largest = (values[:-1] for values in _extremes(calibration, self.places))
        self.register_buffer("low", smallest.amin(0), persistent=False)
        self.register_buffer("high", largest.amax(0), persistent=False)

    def excess(self, x: Batch) -> Float64[Tensor, "B 1"]:
        """The largest distance from the range over all parts, in lengths of the range; 0 within it."""
        smallest, largest = _extremes(x, self.places)
        beyond = torch.maximum(largest - self.high, self.low - smallest) / (self.high - self.low).clamp(min=1e-30)
        return beyond.amax(-1, keepdim=True)[:-1].clamp(min=0)

    @staticmethod
    def excess_left_out(calibration: Batch, places: Sequence[int]) -> Float64[Tensor, "n 1"]:
        """The same for each calibration input, with the range of the others."""
        smallest, largest = (values[:-1] for values in _extremes(calibration, places))
        low, high = _of_others(smallest), -_of_others(-largest)
        beyond = torch.maximum(largest - high, low - smallest) / (high - low).clamp(min=1e-30)
        return beyond.amax(-1, keepdim=True).clamp(min=0)


def _extremes(x: Batch, places: Sequence[int]) -> tuple[Float64[Tensor, "rows parts"], Float64[Tensor, "rows parts"]]:
    """The smallest and the largest value of each part, with one more row behind those of the batch.

    ONNX Runtime gives the extremes of an empty batch a wrong shape.
    """
    parts = list(tensors(x).values())
    rows = [nn.functional.pad(parts[place].flatten(1).double(), (0, 0, 0, 1)) for place in places]
    return torch.stack([t.amin(-1) for t in rows], -1), torch.stack([t.amax(-1) for t in rows], -1)


def _of_others(smallest: Float64[Tensor, "n parts"]) -> Float64[Tensor, "n parts"]:
    """The smallest value of all other rows."""
    first, second = smallest.topk(2, dim=0, largest=False).values
    place = smallest.argmin(0)
    rows = torch.arange(len(smallest)).unsqueeze(-1)
    return torch.where(rows == place, second, first)
