"""How the tables' prior networks are trained: with labels, and with OOD inputs from a factor model of the training inputs."""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from reproduction.baselines import ConcentrationStudent, FactorNoise, prior_network_loss
from reproduction.paper import classifiers


@dataclass(frozen=True)
class PriorNetworkSettings:
    """Settings of a prior network.

    Attributes:
        precision: Precision of the target Dirichlets at labels.
        smoothing: Probability that a target leaves to each of the other classes.
        cross_entropy: Weight of the labels' cross-entropy as a further term.
        learning_rate: Adam's learning rate at the start of a cosine schedule.
        epochs: Passes over the inputs.
    """

    precision: float = 1000.0
    smoothing: float = 0.01
    cross_entropy: float = 100.0
    learning_rate: float = 1e-3
    epochs: int = 12


_SHARP = PriorNetworkSettings()
# By kind of row. ``reproduction/studies/prior_network.py`` chose them on held-out digits: the most accurate one, and the one
# that finds its errors best. A deeper network needs smaller steps not to collapse.
SETTINGS = {
    "dpn_vgg": replace(_SHARP, learning_rate=3e-4),
    "dpn_vgg_errors": replace(_SHARP, learning_rate=3e-4, cross_entropy=0.0),
    "dpn_mlp": _SHARP,
    "dpn_mlp_errors": replace(_SHARP, cross_entropy=10.0),
}


def train_prior_network(
    net: nn.Module, x: Tensor, labels: Tensor, settings: PriorNetworkSettings, progress: bool = False
) -> ConcentrationStudent:
    """A network whose outputs are read as log-concentrations, trained as a prior network."""
    student, noise = ConcentrationStudent(net), FactorNoise.fit(x)

    def loss(rows: Tensor, their_labels: Tensor) -> Tensor:
        return prior_network_loss(
            student(rows),
            their_labels,
            student(noise.like(rows)),
            settings.precision,
            settings.smoothing,
            settings.cross_entropy,
        )

    classifiers.train(
        student, x, labels, loss, epochs=settings.epochs, learning_rate=settings.learning_rate, progress=progress
    )
    return student
