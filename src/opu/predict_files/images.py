"""Images in files, brought to the size, channels and scale of a student's inputs."""

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from opu.checks import first_line, optional
from opu.predict_files.source import Part, Source, shape_of
from opu.students import Student

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
# By contents too: a file of PostScript that is called .png would be handed to another program.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
MOST_PIXELS = 2**27  # of one image, which take half a gigabyte as they are and as much again while they are converted
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_SCALES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))


@dataclass(frozen=True)
class Pixels:
    """How pixels become numbers: black and white first, then standardised.

    Attributes:
        low: What black becomes.
        high: What white becomes.
        mean: Is subtracted afterwards: one number, or one for each channel.
        std: Divides the difference: one number, or one for each channel.
    """

    low: float | int = 0.0
    high: float | int = 1.0
    mean: tuple[float | int, ...] = (0.0,)
    std: tuple[float | int, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.low, self.high, *self.mean, *self.std))):
            raise ValueError("--scale, --mean and --std take finite numbers; got others.")
        if self.low == self.high:
            raise ValueError(f"--scale takes two different numbers, such as 0,1 or -1,1; got {self.low:g} twice.")
        if min(self.std) <= 0:
            raise ValueError(f"--std takes positive numbers; got {min(self.std):g}.")

    def __call__(self, image: Float[np.ndarray, "H W C"]) -> Float[np.ndarray, "H W C"]:
        """Numbers of an image whose pixels lie in [0, 1]."""
        mean, std = (np.array(numbers, dtype=np.float32) for numbers in (self.mean, self.std))
        return np.asarray((self.low + (self.high - self.low) * image - mean) / std, dtype=np.float32)

    def ends(self) -> tuple[float, float]:
        """The least and the largest number that a pixel can become."""
        found = (np.array([[self.low], [self.high]]) - np.array(self.mean)) / np.array(self.std)
        return float(found.min()), float(found.max())

    def check(self, channels: int) -> None:
        """Refuse numbers for another count of channels."""
        for name, numbers in (("--mean", self.mean), ("--std", self.std)):
            if len(numbers) not in (1, channels):
                raise ValueError(
                    f"{name} takes one number, or one for each channel; this student's images have {channels}, got "
                    f"{len(numbers)} numbers."
                )


@dataclass(frozen=True)
class Layout:
    """Where height, width and channels are in an input.

    Attributes:
        shape: Shape of one input.
        height: Rows of pixels.
        width: Pixels in a row.
        channels: 1 for grey, 3 for RGB, 4 for RGBA.
        channels_first: Whether channels come before height and width.
    """

    shape: tuple[int, ...]
    height: int
    width: int
    channels: int = 1
    channels_first: bool = False

    def arrange(self, image: NDArray[Any]) -> NDArray[Any]:
        """An image of shape (height, width, channels) as an input."""
        return (image.transpose(2, 0, 1) if self.channels_first else image).reshape(self.shape)


def layout_of(shape: tuple[int, ...] | None, size: tuple[int, int] | None = None) -> Layout:
    """Read the shape of an input as that of an image.

    Args:
        shape: ``(C, H, W)``, ``(H, W, C)``, ``(H, W)``, or ``(F,)`` for the pixels of a grey image, row by row.
        size: Height and width of an image; tells the sides where the shape is flat.
    """
    if shape is None:
        raise ValueError(
            "it is not known what this student's inputs look like, so images cannot be brought to their size; give them as a "
            ".npy array, prepared as for training."
        )
    if len(shape) == 3 and shape[0] in _MODES:
        return Layout(shape, shape[1], shape[2], shape[0], channels_first=True)
    if len(shape) == 3 and shape[2] in _MODES:
        return Layout(shape, *shape)
    if len(shape) == 2:
        return Layout(shape, *shape)
    if len(shape) == 1:
        side = math.isqrt(shape[0])
        if size is not None and size[0] * size[1] == shape[0]:
            return Layout(shape, *size)
        if side * side == shape[0]:
            return Layout(shape, side, side)
    raise ValueError(
        f"this student takes inputs of shape {shape}, which is not that of an image; give them as a .npy array, prepared as "
        "for training."
    )


class Images(Source):
    """Images in files, one input each. An image of more than 134 million pixels is not read, and has a note.

    Args:
        paths: Their files.
        names: What they are called in the output.
        student: Says what its inputs look like.
        pixels: How pixels become numbers; by default 0 to 1, or whole numbers up to 255 for a student that takes these.
    """

    def __init__(self, paths: Sequence[Path], names: Sequence[str], student: Student, pixels: Pixels | None) -> None:
        optional("PIL", "reading images", "plot")
        self.pillow: Any = optional("PIL.Image", "reading images", "plot")
        self.paths, self.names = paths, names
        kind = getattr(torch, str((student.inputs or {}).get("type", "float32")))
        self.whole = None if kind.is_floating_point else kind
        self.pixels = pixels or (Pixels() if self.whole is None else Pixels(0.0, 255.0))
        self.layout = layout_of(shape_of(student), self._first_size())
        self.pixels.check(self.layout.channels)
        self.resized: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.paths)

    def parts(self, size: int) -> Iterator[Part]:
        """Images as they come; a file that cannot be read has a note."""
        self.resized = []
        for start in range(0, len(self), size):
            notes, found = [], []
            for path in self.paths[start : start + size]:
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # Pillow's, on metadata and size
                        found.append(self.read(path))
                    notes.append("")
                except Exception as error:  # Pillow raises all kinds of errors for a broken file
                    notes.append(f"cannot be read: {_reason(error, path)}")
            batch = torch.from_numpy(np.stack(found)) if found else None
            batch = batch if batch is None or self.whole is None else batch.round().to(self.whole)
            yield Part(list(self.names[start : start + size]), notes, batch)

    def read(self, path: Path) -> NDArray[np.float32]:
        """One image as an input; its size is checked before its pixels are read."""
        with self._open(path) as image:
            size = (image.height, image.width)
            if math.prod(size) > MOST_PIXELS:
                raise ValueError(
                    f"it has {image.width} x {image.height} pixels, more than {MOST_PIXELS // 10**6} million; make it smaller"
                )
            values = self._values(image)
        if size != (self.layout.height, self.layout.width):
            self.resized.append(size)
        return self.layout.arrange(self.pixels(values))

    def remarks(self, low: float, high: float) -> Iterator[str]:
        """Another range than that of the run's own inputs, and how images are read for flat inputs."""
        ours = self.pixels.ends()
        width = max(high - low, ours[1] - ours[0])
        if max(abs(low - ours[0]), abs(high - ours[1])) > 0.25 * width:
            yield (
                f"The inputs of the run lie between {low:.3g} and {high:.3g}, pixels here between {ours[0]:.3g} and "
                f"{ours[1]:.3g}; {_remedy(low, high)}."
            )

    def summary(self) -> Iterator[str]:
        """How many images were resized, and from what."""
        to = f"{self.layout.width} x {self.layout.height}"
        if self.resized:
            sizes = sorted(set(self.resized))
            (first, last) = (f"{width} x {height}" for height, width in (sizes[0], sizes[-1]))
            of = first if len(sizes) == 1 else f"{len(sizes)} sizes ({first} to {last})"
            yield f"Resized {len(self.resized)} of {len(self)} images from {of} to {to} pixels, the student's size."
        if len(self.layout.shape) == 1:
            yield f"The student takes {self.layout.shape[0]} numbers; they are the pixels of {to} grey images, row by row."

    def misfit(self) -> str:
        """The shape that images were given."""
        return f"images were brought to the shape {self.layout.shape}"

    @property
    def advice(self) -> str:
        """The options that change pixels."""
        return "Scale or preprocessing may differ from training; see --scale, --mean and --std."

    def _first_size(self) -> tuple[int, int] | None:
        """Height and width of the first image that can be opened."""
        for path in self.paths:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    with self._open(path) as image:
                        return image.height, image.width
            except Exception:  # it will have its note
                continue
        return None

    def _open(self, path: Path) -> Any:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise ValueError("it is not a regular file")
        self.pillow.init()  # all that it was built with; WebP may be missing
        return self.pillow.open(path, formats=[each for each in _FORMATS if each in self.pillow.OPEN])

    def _values(self, image: Any) -> NDArray[np.float32]:
        """Pixels in [0, 1], of shape (height, width, channels), in the student's size."""
        mode, side = _MODES[self.layout.channels], (self.layout.width, self.layout.height)
        if image.mode == "F":
            raise ValueError("its pixels are floating-point numbers of unknown scale; give it as a .npy array")
        if image.mode == "I" and image.format != "PNG":  # a PNG has 16 bits at most, whatever Pillow makes of it
            raise ValueError("its pixels are 32-bit integers of unknown scale; give it as a .npy array")
        if image.mode.startswith("I"):  # 16 bits, which Pillow would cut to 8 without scaling
            grey = self.pillow.fromarray(np.asarray(image, dtype=np.float32) / 65535)
            grey = grey if grey.size == side else grey.resize(side, self.pillow.Resampling.BILINEAR)
            values = np.asarray(grey, dtype=np.float32)[..., None]
            return values if self.layout.channels == 1 else np.repeat(values, self.layout.channels, -1)
        image = image.convert(mode)
        image = image if image.size == side else image.resize(side, self.pillow.Resampling.BILINEAR)
        return np.asarray(image, dtype=np.float32).reshape(side[1], side[0], -1) / np.float32(255)


def find_images(source: Path) -> tuple[list[Path], list[str], int]:
    """The images in a folder and below it, sorted, their names in the output, and the number of other files.

    Args:
        source: A folder, or one image. Hidden files and folders are left out.
    """
    if source.is_file():
        return [source], [_printable(source.name)], 0
    found, others = [], 0
    for folder, below, files in os.walk(source):
        below[:] = [name for name in below if not name.startswith(".")]
        for name in files:
            if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."):
                found.append(Path(folder) / name)
            elif not name.startswith("."):
                others += 1
    if not found:
        raise ValueError(f"there is no image in {source}; images end in {', '.join(each[1:] for each in SUFFIXES)}.")
    found.sort(key=lambda path: path.relative_to(source).as_posix())
    return found, [_printable(path.relative_to(source).as_posix()) for path in found], others


def _remedy(low: float, high: float) -> str:
    """The options that bring pixels to a range."""
    for scale in _SCALES:
        width = scale[1] - scale[0]
        if max(abs(low - scale[0]), abs(high - scale[1])) < 0.15 * width:
            return f"if they were scaled so for training, give --scale={scale[0]:g},{scale[1]:g}"
    if low < 0:
        return "if they were standardised for training, give --mean and --std"
    return f"if pixels were scaled so for training, give --scale={low:g},{high:g}"


def _reason(error: Exception, path: Path) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if type(error).__name__ == "UnidentifiedImageError":
        return "it is not an image that Pillow knows"
    return first_line(error).replace(str(path), path.name)


def _printable(name: str) -> str:
    """A name without bytes that no text file can hold."""
    return name.encode("utf-8", "backslashreplace").decode()
