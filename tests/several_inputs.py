"""Networks with several inputs, for the tests of several rooms."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Visit:
    """One input of two parts."""

    image: torch.Tensor
    table: torch.Tensor


class ImageAndTable(nn.Module):
    """Takes an image and a row of a table as two arguments."""

    def __init__(self):
        super().__init__()
        self.conv, self.table = nn.Conv2d(1, 3, 3), nn.Linear(4, 5)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(3 + 5, 3)

    def forward(self, image, table):
        seen = self.conv(image).relu().mean((2, 3))
        return self.last(self.drop(torch.cat([seen, self.table(table).relu()], -1)))


class OfDataclass(ImageAndTable):
    """Takes both as one dataclass."""

    def forward(self, visit: Visit):
        return super().forward(visit.image, visit.table)
