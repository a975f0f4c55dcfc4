"""How students are distilled: our reading of the paper, settings after its authors' scripts, and what we recommend."""

from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from opu import Recipe
from opu.distributions.kernels import RBF, Kernel, Polynomial
from opu.objectives import CriticEMD, ForwardKL, Objective, SampledMMD, Sinkhorn, parse
from opu.teachers import Teacher


@dataclass(frozen=True)
class Preset:
    """A recipe, and what a recipe does not hold: the student's link, and how particles and divergences are treated.

    Attributes:
        recipe: How the student is distilled; the objective comes from the row.
        link: From the precision network's output to the log-precision.
        fitted_inputs: Number of held-out inputs at which the link's bounds are fitted to the teacher's particles.
        particle_floor: Probabilities of the particles are kept this far from 0 and 1; for KL, which needs their tails, a
            tenth as far.
        kernel: The kernel of MMD: ``paper`` (an RBF plus polynomials) or ``authors``.
        transport: What stands for the earth mover's distance: ``critic`` or ``sinkhorn``.
        transport_particles: Number of particles per input and step for transport, which costs far more.
        transport_epochs: Passes over the inputs for transport.
        transport_rate: Learning rate for transport, if it is another.
    """

    recipe: Recipe
    link: str
    fitted_inputs: int = 0
    particle_floor: float = 0.0
    kernel: str = "paper"
    transport: str = "critic"
    transport_particles: int = 32
    transport_epochs: int = 5
    transport_rate: float | None = None

    @property
    def epochs(self) -> int:
        """Passes over the inputs, which every preset fixes."""
        assert self.recipe.epochs is not None
        return self.recipe.epochs

    def changed(self, **settings: Any) -> "Preset":
        """The preset with other settings of its recipe."""
        return replace(self, recipe=replace(self.recipe, **settings))

    def quick(self, epochs: int, num_particles: int) -> "Preset":
        """A small version."""
        small = self.changed(epochs=epochs, num_particles=num_particles)
        return replace(small, transport_particles=4, transport_epochs=1)

    def seen(self, teacher: Teacher, divergence: str) -> Teacher:
        """The teacher with its particles as this preset sees them."""
        if not self.particle_floor:
            return teacher
        return Clamped(teacher, self.particle_floor / 10 if divergence == "kl" else self.particle_floor)

    def recipe_for(self, divergence: str, teacher: str) -> Recipe:
        """The recipe for a divergence: its objective, and for transport its own particles, epochs and learning rate."""
        recipe = replace(self.recipe, objective=self.objective(divergence, teacher))
        if divergence != "emd":
            return recipe
        rate = recipe.learning_rate if self.transport_rate is None else self.transport_rate
        return replace(recipe, num_particles=self.transport_particles, epochs=self.transport_epochs, learning_rate=rate)

    def objective(self, divergence: str, teacher: str) -> Objective:
        """The divergence as this preset means it; the authors' kernel differs by teacher."""
        if divergence == "kl":
            return ForwardKL()
        if divergence == "emd":
            return Sinkhorn(blur=0.05, max_last_steps=10) if self.transport == "sinkhorn" else CriticEMD()
        if divergence == "mmd":
            return SampledMMD(_authors_kernel(teacher) if self.kernel == "authors" else None)
        return parse(divergence)


# A student is given the teacher's weights before it is distilled, so the recipes do not do it again.
_PLAIN = Recipe(augment=None, batch_size=256, start_from_teacher=False)
_PAPER = Preset(replace(_PLAIN, epochs=20, schedule="constant", updates="alternating"), link="exp")
_ROBUST = Preset(replace(_PLAIN, epochs=40, augment="auto"), link="softsign", fitted_inputs=500)
PRESETS = {
    "paper": _PAPER,
    # The same with gradient descent, since the optimiser decides how the precision grows off the data. The averaged weights
    # of our chain are a poor start (87 %), and the critic's gradients are small: transport needs a larger rate to come back
    # from there in its few epochs. Chosen on held-out training digits.
    "paper-sgd": replace(_PAPER.changed(optimizer="sgd", learning_rate=1e-2), transport_rate=1e-1),
    "authors": Preset(
        replace(_PLAIN, epochs=30, optimizer="sgd", learning_rate=1e-2, schedule="steps"),
        link="softplus",
        particle_floor=1e-4,
        kernel="authors",
        transport="sinkhorn",
    ),
    "robust": _ROBUST,
    # What ``reproduction/studies/bdk.py`` chose on held-out digits for BDK on MNIST.
    "bdk-mcdp": _ROBUST.changed(learning_rate=3e-3),
    "bdk-sgld": _ROBUST.changed(epochs=80),
}


def _authors_kernel(teacher: str) -> Kernel:
    # exp(-1e5 d^2) is a Gaussian of bandwidth 1 / sqrt(2e5): it sees only particles that nearly coincide.
    narrow = RBF((2e5**-0.5,))
    if teacher == "mc_dropout":
        return narrow + 0.5 * Polynomial(3) + 0.5 * Polynomial(4)
    return narrow + 1e-2 * Polynomial(3, 0.0) + 1e-3 * Polynomial(4, 0.0)


@dataclass(frozen=True)
class Clamped:
    """A teacher whose particles are kept away from the corners of the simplex, after the authors' scripts."""

    teacher: Teacher
    floor: float

    def __call__(self, x: Tensor, num_particles: int) -> Float[Tensor, "S B K"]:
        """The teacher's particles, with probabilities kept this far from 0 and 1, on the simplex again."""
        return self.teacher(x, num_particles).exp().clamp(self.floor, 1 - self.floor).log().log_softmax(-1)
