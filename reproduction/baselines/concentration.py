"""One network for the whole Dirichlet, mean and precision not taken apart: BDK-Dir of the paper, and prior networks."""

from torch import Tensor, nn

from opu.distributions.dirichlet import Dirichlet


class ConcentrationStudent(nn.Module):
    """A classifier whose outputs are read as log-concentrations: ``alpha_k = e^{z_k}``.

    Args:
        net: From inputs to ``K`` numbers.
        highest: Outputs are kept below this, since ``e^z`` must stay a number; in training none comes near it.
    """

    def __init__(self, net: nn.Module, highest: float = 15.0) -> None:
        super().__init__()
        self.net, self.highest = net, highest

    def forward(self, x: Tensor) -> Dirichlet:
        """One Dirichlet for each row of ``x``."""
        return Dirichlet.from_log_concentration(self.net(x).clamp(-self.highest, self.highest))
