"""One network for the whole Dirichlet, without separate mean and precision: BDK-Dir of the paper, and prior networks."""

from torch import Tensor, nn

from opu.distributions.dirichlet import Dirichlet
from opu.students import BaseStudent


class ConcentrationStudent(BaseStudent):
    """A classifier whose outputs are read as log-concentrations: ``alpha_k = e^{z_k}``.

    Args:
        net: A network from inputs to ``K`` numbers.
        highest: Outputs are clamped to this absolute value, so that ``e^z`` stays finite; training comes nowhere near it.
    """

    def __init__(self, net: nn.Module, highest: float = 15.0) -> None:
        super().__init__()
        self.net, self.highest = net, highest

    def forward(self, x: Tensor) -> Dirichlet:
        """One Dirichlet for each row of ``x``."""
        return Dirichlet.from_log_concentration(self.net(x).clamp(-self.highest, self.highest))
