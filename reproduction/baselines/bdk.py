"""Bayesian dark knowledge (Balan et al., 2015): one network learns the teacher's average probabilities, and no more."""

from torch import Tensor, nn

from opu.distributions.dirichlet import Dirichlet
from opu.students import BaseStudent

# A categorical student has no precision of its own: on the simplex it is a point, so it gets a very sharp Dirichlet.
_POINT = 20.0


class CategoricalStudent(BaseStudent):
    """A classifier as a student: its probabilities, as a Dirichlet that is nearly a point.

    Entropy and confidence of the mean are the measures that mean something; all others are those of a point.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Dirichlet:
        """One point on the simplex for each row of ``x``."""
        logits = self.net(x)
        return Dirichlet.from_logits(logits, logits.new_full((len(logits),), _POINT))
