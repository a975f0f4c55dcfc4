"""Any function that returns posterior samples of class probabilities."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from opu.batches import Batch, first_tensor, num_rows
from opu.checks import check_at_least, check_particle_shape, check_particles
from opu.choices import Outputs
from opu.teachers.base import BaseTeacher, as_tensor
from opu.teachers.outputs import Reading


class Function(BaseTeacher):
    """Any callable ``f(x, num_particles)`` as a teacher; it may return a tensor or a numpy array ``(S, B, K)``.

    Several threads may call it if the callable allows that itself.

    Args:
        function: The callable.
        outputs: Kind of its outputs.
    """

    def __init__(self, function: Callable[[Any, int], Any], *, outputs: Outputs = "log_probabilities") -> None:
        self.function, self.outputs = function, outputs
        self._reading = Reading(outputs)

    def __call__(self, x: Batch, num_particles: int) -> Float[Tensor, "S B K"]:
        """The function's checked particles, as log-probabilities."""
        check_at_least(1, num_particles=num_particles)
        with torch.no_grad():
            values = as_tensor(self.function(x, num_particles))
        check_particle_shape(tuple(values.shape), num_rows=num_rows(x))
        if self.outputs == "log_probabilities":
            check_particles(values)
        log_particles = self._reading.log_probabilities(values)
        check_particles(log_particles)
        return log_particles.to(first_tensor(x).device)
