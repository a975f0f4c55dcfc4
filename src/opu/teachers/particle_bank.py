"""Stored particles: an array of posterior samples, in memory or in a file of any size."""

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from opu.batches import Batch, as_batch, first_tensor, num_rows, tensors
from opu.checks import check_particle_shape, check_particles
from opu.choices import Outputs
from opu.teachers.array_files import as_array, open_array
from opu.teachers.base import BaseTeacher, choose
from opu.teachers.outputs import Reading, to_log_probabilities

_ROWS_AT_ONCE = 4096


class ParticleBank(BaseTeacher):
    """Stored posterior samples of class probabilities, as a teacher for the inputs they belong to.

    A PyMC, Stan or NumPyro user needs nothing else: draw the posterior predictive probabilities for some inputs, save
    them as ``(S, N, K)``, and distil. Files are memory-mapped, so a bank may be larger than memory.

    Args:
        particles: A tensor or array ``(S, N, K)``, or the path of a ``.npy``, ``.npz`` or ``.safetensors`` file.
        inputs: The ``N`` inputs in the same order: a tensor, an array, or a dict, tuple or dataclass of these; by default
            those that :func:`opu.distill` is given.
        outputs: Kind of the values.
        key: Name of the array in an ``.npz`` or ``.safetensors`` file that holds several.
        floor: Smallest probability; smaller ones are raised to it, since an exact 0 has no logarithm.
    """

    known_inputs_only = True

    def __init__(
        self,
        particles: Tensor | NDArray[Any] | str | Path,
        inputs: Batch | None = None,
        *,
        outputs: Outputs = "probabilities",
        key: str | None = None,
        floor: float = 1e-12,
    ) -> None:
        self.outputs, self.floor = outputs, floor
        self._array = open_array(Path(particles), key) if isinstance(particles, str | Path) else as_array(particles)
        self._check_all()
        self._row_of: dict[bytes, int] | None = None
        self._inputs_were_given = inputs is not None
        if inputs is not None:
            self._index([as_batch(inputs)])

    @property
    def knows_inputs(self) -> bool:
        """Whether it is known which inputs the particles belong to."""
        return self._row_of is not None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the particles, ``(S, N, K)``."""
        samples, rows, classes = self._array.shape
        return samples, rows, classes

    def bind(self, batches: Iterable[Batch]) -> "ParticleBank":
        """The same bank; if it was made without inputs, its particles now belong to these, in order."""
        if self._row_of is None:
            self._index(batches)
        return self

    def compared(self) -> dict[str, Any]:
        """What a resumed run must find again: the particles, and the inputs they belong to if those were given."""
        rows = self._row_of if self._inputs_were_given and self._row_of is not None else {}
        known = sorted(rows, key=rows.__getitem__)
        return {"particles": self._array, "inputs": b"".join(known), "outputs": self.outputs, "floor": self.floor}

    def __call__(self, x: Batch, num_particles: int) -> Float[Tensor, "S B K"]:
        """The stored particles of these inputs: all of them, or a random subset."""
        if self._row_of is None:
            raise ValueError("this bank does not know its inputs; give them: ParticleBank(particles, inputs).")
        rows = np.array([self._row_of.get(key, -1) for key in _keys(x)])
        unknown = int((rows == -1).sum())
        if unknown:
            raise ValueError(
                f"a bank holds particles for its own {self.shape[1]} inputs only; {unknown} of {num_rows(x)} inputs are "
                "others. Pass the inputs it was made for, unchanged, and augment=None."
            )
        samples = choose(self.shape[0], num_particles).numpy()
        values = _as_tensor(self._array[np.ix_(samples, rows)])
        return to_log_probabilities(values, self.outputs, self.floor).to(first_tensor(x).device)

    def _index(self, batches: Iterable[Batch]) -> None:
        row_of: dict[bytes, int] = {}
        count = 0
        for batch in batches:
            for offset, key in enumerate(_keys(batch)):
                row_of[key] = count + offset
            count += num_rows(batch)
        if count != self.shape[1]:
            raise ValueError(
                f"a bank needs one input for each column of particles; got {count} inputs for particles of shape "
                f"{self.shape}, whose axes are (samples, inputs, classes)."
            )
        self._row_of = row_of  # in one step: other threads may be asking

    def _check_all(self) -> None:
        check_particle_shape(self._array.shape)
        reading = Reading(self.outputs, floor=self.floor)
        for start in range(0, self._array.shape[1], _ROWS_AT_ONCE):
            part = _as_tensor(self._array[:, start : start + _ROWS_AT_ONCE])
            if not bool(torch.isfinite(part).all()) and self.outputs != "log_probabilities":
                raise ValueError(
                    "particles must be finite; got NaN or infinite values. Check the sampler that made them."
                )
            check_particles(reading.log_probabilities(part))


def _as_tensor(part: NDArray[Any]) -> Tensor:
    """Some particles, read from the file if they lie there, in a type that torch knows."""
    values = as_batch(np.array(part), "particles")
    assert isinstance(values, Tensor)
    return values if values.dtype == torch.float64 else values.float()


def _keys(batch: Batch) -> list[bytes]:
    """A digest of each input's content in float32, which does not change on the way to a device and back."""
    if isinstance(batch, Tensor) and batch.ndim < 2:
        raise ValueError(
            f"inputs must be a batch with one row for each column of particles; got shape {tuple(batch.shape)}."
        )
    digests = [blake2b(digest_size=16) for _ in range(num_rows(batch))]
    for _, part in sorted(tensors(batch).items()):
        kept = part.detach().cpu()
        # Integers may become floating-point numbers on the way, and both must look alike.
        numbers = (kept.float() if kept.is_floating_point() else kept).double()
        rows = numbers.reshape(len(kept), -1).contiguous().numpy()
        for digest, row in zip(digests, rows, strict=True):
            digest.update(row.tobytes())
    return [digest.digest() for digest in digests]
