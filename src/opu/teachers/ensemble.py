"""A deep ensemble: a few independently trained networks, each one a particle."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from opu.batches import Batch, fit_to, scores
from opu.choices import Outputs
from opu.teachers.base import BaseTeacher, as_logits, choose, evaluating, to_log_probabilities


class Ensemble(BaseTeacher):
    """A list of classifiers, of any architectures, as a teacher.

    Args:
        members: The networks; they are not changed.
        outputs: Kind of their outputs.
    """

    def __init__(self, members: Sequence[nn.Module], *, outputs: Outputs = "logits") -> None:
        if len(members) < 2:
            raise ValueError(f"an ensemble needs at least two members; got {len(members)}.")
        self.members, self.outputs = list(members), outputs

    def __call__(self, x: Batch, num_particles: int) -> Float[Tensor, "S B K"]:
        """Log-probabilities of a random subset of the members, or of all of them."""
        particles = []
        for member in (self.members[i] for i in choose(len(self.members), num_particles)):
            with evaluating(member):
                outputs = scores(member, fit_to(x, member))
            particles.append(to_log_probabilities(outputs.float(), self.outputs))
        return torch.stack(particles)

    def network(self) -> nn.Module:
        """The first member: averages of independently trained weights mean nothing."""
        return as_logits(self.members[0], self.outputs)
