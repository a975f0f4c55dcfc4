"""Sets of images, ready for a network: float32, ``(N, 1, 28, 28)``, in [-1, 1].

MNIST and EMNIST are white ink on black, so their background is -1. Omniglot and SEMEION serve as out-of-distribution
inputs, and their looks alone give them away: Omniglot is black on white, SEMEION's digits fill the frame. Each therefore
comes in two preparations, ``"as_released"`` and ``"matched"`` to the looks of MNIST; results should say which.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from numpy.typing import NDArray
from sklearn.datasets import load_sample_images
from torch import Tensor

from opu.checks import check_at_least
from opu.choices import check_choice
from reproduction.data import data_file, dataset, locate, verify
from reproduction.data.arrays import read_idx, read_omniglot, read_semeion
from reproduction.data.local import checked

if TYPE_CHECKING:
    Split = Literal["train", "test"]
    OmniglotPart = Literal["evaluation", "background"]
    Preparation = Literal["as_released", "matched"]
else:
    Split = OmniglotPart = Preparation = str
Value = TypeVar("Value")
SPLIT_SEED = 47  # for the split of ByMerge and the order of its letters
TEST_IMAGES_PER_CLASS = 400
FIRST_LETTER = 10  # EMNIST's labels 0 to 9 are digits
_SIDE = 28
_DIGIT_SIDE = 20  # MNIST's digits lie in a box of 20 x 20, in the middle of the frame
_CHUNK = 1024


@dataclass(frozen=True)
class ImageSet:
    """Images in [-1, 1] and the class of each one, a number."""

    name: str
    images: Float[Tensor, "N 1 28 28"]
    labels: Int64[Tensor, " N"]


def mnist(split: Split, folder: Path | None = None) -> ImageSet:
    """MNIST's ``"train"`` (60,000) or ``"test"`` (10,000) images."""
    part = _choose("split", split, {"train": "train", "test": "t10k"})
    paths = [checked(data_file(f"mnist/{part}-{kind}-ubyte.gz"), folder) for kind in ("images-idx3", "labels-idx1")]
    images, labels = _read_pair(*paths)
    return ImageSet("mnist", _scaled(images), labels)


def emnist_balanced(split: Split, folder: Path | None = None) -> ImageSet:
    """EMNIST Balanced's ``"train"`` (112,800) or ``"test"`` (18,800) images, upright; 47 classes.

    The files must be the complete official ones, by size and SHA-256; no other set takes their place.
    """
    part = _choose("split", split, {"train": "train", "test": "test"})
    files = [data_file(f"emnist/emnist-balanced-{part}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1")]
    if locate(files[0], folder) is None:
        _refuse_a_part(part, folder)
    images, labels = _read_pair(*(verify(file, folder) for file in files))
    return ImageSet("emnist-balanced", _scaled(_upright(images)), labels)


def emnist_bymerge47(split: Split, folder: Path | None = None) -> ImageSet:
    """A fixed ``"train"`` and ``"test"`` half of EMNIST ByMerge's test split, upright; 47 classes.

    It has the classes of EMNIST Balanced and a test half of its size, but it is **not** that split. One
    ``numpy.random.default_rng(47)`` shuffles the rows of each class, in the order of labels. The first 400 rows of each
    class are for testing (18,800 in all), the others for training (97,523; from 15 to about 6,000 per class). Both
    halves keep the order of the file.
    """
    half = _choose("split", split, {"train": 0, "test": 1})
    images, labels = _bymerge(folder)
    rows = split_rows(labels.numpy(), TEST_IMAGES_PER_CLASS)[half]
    return ImageSet("emnist-bymerge47", _scaled(_upright(images[rows])), labels[rows])


def emnist_letters(count: int | None = None, folder: Path | None = None) -> ImageSet:
    """The letters of EMNIST ByMerge's test split (labels 10 to 46), upright; out-of-distribution for MNIST's digits.

    Args:
        count: Number of letters, the first of a shuffle by ``numpy.random.default_rng(47)``; by default all 58,796.
        folder: Folder with the files; by default they are looked for and verified.
    """
    images, labels = _bymerge(folder)
    rows = np.flatnonzero(labels.numpy() >= FIRST_LETTER)
    if count is not None and not 1 <= count <= len(rows):
        raise ValueError(f"count must be between 1 and the number of letters, {len(rows)}; got {count}.")
    rows = np.random.default_rng(SPLIT_SEED).permutation(rows)[:count]
    return ImageSet("emnist-letters", _scaled(_upright(images[rows])), labels[rows])


def omniglot(
    part: OmniglotPart = "evaluation", preparation: Preparation = "as_released", folder: Path | None = None
) -> ImageSet:
    """Omniglot's ``"evaluation"`` (13,180) or ``"background"`` (19,280) drawings; labels number the characters from 0.

    The 105 x 105 binary drawings are resized by antialiased bilinear interpolation. ``"as_released"`` they are black
    strokes on white; ``"matched"`` they are inverted, white on black like MNIST.
    """
    name = _choose("part", part, {"evaluation": "omniglot-evaluation", "background": "omniglot-background"})
    ink = _choose("preparation", preparation, {"as_released": -1.0, "matched": 1.0})
    is_white, labels = read_omniglot(checked(dataset(name).files[0], folder))
    # The ink is resized, not the paper: its zeros stay exact, so the paper is all one colour.
    small = [_resized(torch.from_numpy(~chunk), _SIDE) for chunk in _chunks(is_white)]
    return ImageSet(f"{name}-{preparation}", (2 * torch.cat(small) - 1) * ink, torch.from_numpy(labels))


def semeion(preparation: Preparation = "as_released", folder: Path | None = None) -> ImageSet:
    """SEMEION's 1,593 digits, ink +1 on -1.

    ``"as_released"``: the 16 x 16 pixels, which the digits fill, are stretched to the whole frame, bilinearly.
    ``"matched"``: they are resized to the 20 x 20 box in the middle of the frame that MNIST's digits lie in.
    """
    side = _choose("preparation", preparation, {"as_released": _SIDE, "matched": _DIGIT_SIDE})
    is_ink, labels = read_semeion(checked(dataset("semeion").files[0], folder))
    margin = (_SIDE - side) // 2
    images = F.pad(2 * _resized(torch.from_numpy(is_ink), side) - 1, (margin,) * 4, value=-1.0)
    return ImageSet(f"semeion-{preparation}", images, torch.from_numpy(labels))


def noise(count: int, seed: int) -> Float[Tensor, "N 1 28 28"]:
    """Images of independent pixels, uniform on [-1, 1]."""
    check_at_least(1, count=count)
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(count, 1, _SIDE, _SIDE, generator=generator) - 1


def shifted(images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C H W"]:
    """The images rolled by 8 pixels down and to the right; they wrap around at the border."""
    return torch.roll(images, (8, 8), (2, 3))


def photographs(count: int, seed: int) -> Float[Tensor, "N 1 28 28"]:
    """Grey squares of 56 x 56 pixels, cut at random from scikit-learn's two photographs and halved in size, in [-1, 1]."""
    check_at_least(1, count=count)
    source = np.random.default_rng(seed)
    whole = [torch.tensor(image / 127.5 - 1).float().mean(-1) for image in load_sample_images().images]
    squares = []
    for _ in range(count):
        photograph = whole[source.integers(len(whole))]
        top, left = (int(source.integers(side - 2 * _SIDE)) for side in photograph.shape)
        squares.append(photograph[top : top + 2 * _SIDE, left : left + 2 * _SIDE])
    return F.avg_pool2d(torch.stack(squares).unsqueeze(1), 2)


def split_rows(labels: NDArray[np.int64], per_class: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows for training and for testing of :func:`emnist_bymerge47`, each in ascending order."""
    source = np.random.default_rng(SPLIT_SEED)
    classes, counts = np.unique(labels, return_counts=True)
    if counts.min() <= per_class:
        raise ValueError(
            f"every class needs more than {per_class} images; class {classes[counts.argmin()]} has {counts.min()}. "
            "Compare the files with `opu data verify emnist-bymerge-test`."
        )
    chosen = [source.permutation(np.flatnonzero(labels == each))[:per_class] for each in classes]
    test = np.sort(np.concatenate(chosen))
    return np.setdiff1d(np.arange(len(labels)), test), test


def _bymerge(folder: Path | None) -> tuple[UInt8[Tensor, "N 28 28"], Int64[Tensor, " N"]]:
    images, labels, _ = dataset("emnist-bymerge-test").files
    return _read_pair(checked(images, folder), checked(labels, folder))


def _read_pair(images_path: Path, labels_path: Path) -> tuple[UInt8[Tensor, "N 28 28"], Int64[Tensor, " N"]]:
    images, labels = read_idx(images_path, num_axes=3), read_idx(labels_path, num_axes=1)
    if images.shape[1:] != (_SIDE, _SIDE) or len(images) != len(labels):
        raise ValueError(
            f"{images_path} must hold one image of 28 x 28 for each of the {len(labels):,} labels of {labels_path.name}; "
            f"got shape {images.shape}. Compare both with `opu data verify`."
        )
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


def _refuse_a_part(part: str, folder: Path | None) -> None:
    for file in dataset("emnist-balanced-part").files:
        path = locate(file, folder)
        if f"-{part}-" in file.path and path is not None:
            raise ValueError(
                f"EMNIST Balanced needs the whole official file of {part}ing images, and only a part of it is here, {path}. "
                "Get the whole with `opu data fetch emnist-balanced`; what can be run without it is emnist-bymerge47."
            )


def _choose(what: str, name: str, values: dict[str, Value]) -> Value:
    check_choice(what, name, list(values))
    return values[name]


def _chunks(drawings: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """Parts of the drawings: as floats, all of Omniglot's pixels take most of a gigabyte."""
    return [drawings[start : start + _CHUNK] for start in range(0, len(drawings), _CHUNK)]


def _resized(planes: Tensor, side: int) -> Float[Tensor, "N 1 side side"]:
    """Bilinear resizing, antialiased if it shrinks; rounding may not leave [0, 1]."""
    images = planes.unsqueeze(1).float()
    return F.interpolate(images, (side, side), mode="bilinear", antialias=True, align_corners=False).clamp(0, 1)


def _upright(images: Tensor) -> Tensor:
    """EMNIST is stored with rows and columns swapped."""
    return images.transpose(-2, -1)


def _scaled(images: UInt8[Tensor, "N 28 28"]) -> Float[Tensor, "N 1 28 28"]:
    return (images.float() / 127.5 - 1).unsqueeze(1).contiguous()
