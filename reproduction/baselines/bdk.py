"""Bayesian dark knowledge (Balan et al., 2015): one network learns the teacher's average probabilities, and no more."""

from torch import Tensor, nn

from opu.distributions.dirichlet import Dirichlet

# A categorical student says nothing of its own confidence: on the simplex it is a point, the sharpest Dirichlet there is.
_POINT = 20.0


class CategoricalStudent(nn.Module):
    """A classifier as a student: its probabilities, as a Dirichlet that sits in one point.

    Entropy and confidence of the mean are the measures that mean something; all others are those of a point.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Dirichlet:
        """One point on the simplex for each row of ``x``."""
        logits = self.net(x)
        return Dirichlet.from_logits(logits, logits.new_full((len(logits),), _POINT))
