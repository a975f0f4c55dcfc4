"""Nine classes of digits and four out-of-distribution sets, all of which ship with scikit-learn."""

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor

HELD_OUT_CLASS = 9
CLASSES = tuple(f"digit {digit}" for digit in range(HELD_OUT_CLASS))


@dataclass(frozen=True)
class Digits:
    """Images of 8 x 8 pixels in [-1, 1] for training, calibration and testing, and out-of-distribution sets by name."""

    train: Tensor
    train_labels: Tensor
    calibration: Tensor
    test: Tensor
    test_labels: Tensor
    ood: dict[str, Tensor]


def load(seed: int) -> Digits:
    """The digits 0 to 8, half of them for training, a fifth for calibration and the rest for testing."""
    source = np.random.default_rng(seed)
    bunch = load_digits()
    images = torch.tensor(bunch.images / 8 - 1, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(bunch.target)
    inside = np.flatnonzero(bunch.target != HELD_OUT_CLASS)
    source.shuffle(inside)
    first, second = int(0.5 * len(inside)), int(0.7 * len(inside))
    train, calibration, test = (torch.from_numpy(part) for part in np.split(inside, [first, second]))
    ood = {"held_out_class": images[labels == HELD_OUT_CLASS], "inverted": -images[test]}
    if find_spec("PIL"):  # which scikit-learn needs to read them; the extra "plot" brings it
        ood["photographs"] = _photograph_patches(len(test), source)
    ood["noise"] = torch.from_numpy(source.uniform(-1, 1, (len(test), 1, 8, 8)).astype(np.float32))
    return Digits(images[train], labels[train], images[calibration], images[test], labels[test], ood)


def _photograph_patches(count: int, source: np.random.Generator) -> Tensor:
    """Grey patches of 8 x 8 pixels: random squares of 32 x 32 pixels of two photographs, averaged."""
    photographs = [torch.tensor(image / 127.5 - 1).float().mean(-1) for image in load_sample_images().images]
    patches = []
    for _ in range(count):
        photograph = photographs[source.integers(len(photographs))]
        top, left = (int(source.integers(side - 32)) for side in photograph.shape)
        patches.append(photograph[top : top + 32, left : left + 32])
    return torch.nn.functional.avg_pool2d(torch.stack(patches).unsqueeze(1), 4)
