"""A deep ensemble: a few independently trained networks, each one a particle."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from opu.batches import Batch, fit_to, scores
from opu.choices import Outputs
from opu.teachers.base import BaseTeacher, choose
from opu.teachers.modes import evaluating
from opu.teachers.outputs import Reading, as_logits


class Ensemble(BaseTeacher):
    """A list of classifiers, of any architectures, as a teacher.

    Args:
        members: The networks; they are not changed.
        outputs: Kind of their outputs.
        binary: Whether each gives one output per input, which belongs to class 1 of two, as sigmoid classifiers do.
    """

    def __init__(self, members: Sequence[nn.Module], *, outputs: Outputs = "logits", binary: bool = False) -> None:
        if len(members) < 2:
            raise ValueError(f"an ensemble needs at least two members; got {len(members)}.")
        self.members, self.outputs, self.binary = list(members), outputs, binary
        self._reading = Reading(outputs, binary)

    def __call__(self, x: Batch, num_particles: int) -> Float[Tensor, "S B K"]:
        """Log-probabilities of a random subset of the members, or of all of them."""
        particles = []
        for member in (self.members[i] for i in choose(len(self.members), num_particles)):
            with evaluating(member):
                outputs = scores(member, fit_to(x, member))
            particles.append(self._reading.rows(outputs.float(), type(member).__name__))
        return self._reading.log_probabilities(torch.stack(particles))

    def network(self) -> nn.Module:
        """The first member: averages of independently trained weights mean nothing."""
        return as_logits(self.members[0], self.outputs, self.binary)
