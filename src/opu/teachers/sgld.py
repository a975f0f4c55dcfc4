r"""Stochastic gradient Langevin dynamics (Welling and Teh, 2011): posterior samples at the cost of training.

.. math:: \theta_{t+1} = \theta_t + \frac{\epsilon_t}{2}\Big(\nabla\log p(\theta_t)
          + \frac{N}{n}\sum_{i=1}^{n}\nabla\log p(y_i \mid x_i, \theta_t)\Big) + \eta_t,
          \qquad \eta_t \sim \mathcal{N}(0, \epsilon_t)

The paper writes the minibatch's sum without the factor ``N / n``, and ``2 epsilon`` for the noise of a full ``epsilon``.
Only with the factor is the target the posterior given all data, so it is included here.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from rich.progress import track
from torch import Tensor, nn

from opu.checks import check_at_least, check_positive
from opu.cuda_graph import captured
from opu.teachers.base import BaseTeacher
from opu.teachers.modes import changing, evaluating
from opu.teachers.outputs import Reading, as_logits, one_column
from opu.teachers.weight_samples import WeightSamples


@dataclass(frozen=True)
class LangevinSettings:
    r"""Settings of a chain, whose step size :math:`\epsilon_t = a (b + t)^{-\gamma}` falls from one given value to another.

    Attributes:
        first_step: Step size at the start.
        last_step: Step size at the end.
        decay: Exponent :math:`\gamma`; theory asks for more than 0.5 and at most 1.
        prior_precision: Precision of the Gaussian prior on every weight.
        batch_size: Number of rows per minibatch.
        burn_in: Number of steps before the first sample.
        thinning: Number of steps from one sample to the next.
        num_samples: Number of samples to keep.
    """

    first_step: float = 6e-6
    last_step: float = 2e-6
    decay: float = 0.55
    prior_precision: float = 100.0
    batch_size: int = 512
    burn_in: int = 10_000
    thinning: int = 50
    num_samples: int = 500

    def __post_init__(self) -> None:
        if not 0 < self.last_step <= self.first_step:
            raise ValueError(
                "step sizes of a chain must be positive and may not rise; got "
                f"first_step={self.first_step:g} and last_step={self.last_step:g}."
            )
        check_at_least(1, batch_size=self.batch_size, thinning=self.thinning, num_samples=self.num_samples)
        check_at_least(0, burn_in=self.burn_in)
        check_positive(prior_precision=self.prior_precision, decay=self.decay)

    @property
    def num_steps(self) -> int:
        """Number of steps of burn-in and sampling."""
        return self.burn_in + self.thinning * self.num_samples

    def step_size(self, step: int) -> float:
        """The step size at a step; after the last planned step it stays constant."""
        if self.first_step == self.last_step:
            return self.first_step
        # a and b solve two equations: a b^-decay is the first step size and a (b + T)^-decay the last.
        ratio = (self.first_step / self.last_step) ** (1 / self.decay)
        b = self.num_steps / (ratio - 1)
        return float(self.first_step * (1 + min(step, self.num_steps) / b) ** -self.decay)


LogLikelihood = Callable[[Tensor, Tensor], Tensor]


def categorical_log_likelihood(outputs: Float[Tensor, "B K"], labels: Int64[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Log-probability of each label under a classifier's logits."""
    return -nn.functional.cross_entropy(outputs, labels, reduction="none")


def binary_log_likelihood(outputs: Tensor, labels: Int64[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Log-probability of each label, 0 or 1, under a classifier's one logit of class 1."""
    logits = one_column(outputs).squeeze(-1)
    return -nn.functional.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none")


def sgld(
    net: nn.Module,
    x: Tensor,
    labels: Tensor,
    settings: LangevinSettings | None = None,
    log_likelihood: LogLikelihood | None = None,
    progress: bool = False,
    *,
    binary: bool = False,
) -> WeightSamples:
    """Posterior samples of a network's weights given labelled data, as a teacher, with the arguments of :class:`Chain`."""
    chain = Chain(net, x, labels, settings, log_likelihood, binary=binary)
    stacked: dict[str, Tensor] = {}
    for number, sample in enumerate(chain.samples(progress)):
        for name, w in sample.items():
            if number == 0:
                stacked[name] = w.new_empty(chain.settings.num_samples, *w.shape)
            stacked[name][number] = w
    return WeightSamples(net, stacked, binary=binary)


class Chain(BaseTeacher):
    """A Langevin chain over a network's weights, also as an online teacher.

    ``chain(x, num_particles)`` takes ``thinning`` steps before each particle. A student that is trained at the same time
    always gets new samples, and none need be stored (Bayesian dark knowledge).

    Args:
        net: Network with the first weights; the chain works on a copy.
        x: All training inputs.
        labels: Classes of the training inputs.
        settings: Settings of the chain.
        log_likelihood: Function from outputs and labels to log-likelihoods; by default, that of a classifier.
        binary: Whether the network has one logit per input, of class 1 of two.
    """

    def __init__(
        self,
        net: nn.Module,
        x: Tensor,
        labels: Tensor,
        settings: LangevinSettings | None = None,
        log_likelihood: LogLikelihood | None = None,
        *,
        binary: bool = False,
    ) -> None:
        if len(x) != len(labels):
            raise ValueError(f"a chain needs one label for each input; got {len(x)} inputs and {len(labels)} labels.")
        self.net, self.x, self.labels = copy.deepcopy(net).eval(), x, labels
        self.settings = settings or LangevinSettings()
        self.log_likelihood = log_likelihood or (binary_log_likelihood if binary else categorical_log_likelihood)
        self.binary, self._reading = binary, Reading("logits", binary)
        self.step = 0
        self._weights = list(self.net.parameters())
        device = self._weights[0].device
        self._step_size = torch.zeros((), device=device)
        self._walk = captured(self._move, device)

    def walk(self, num_steps: int, progress: bool = False) -> None:
        """Take this number of steps."""
        size = min(self.settings.batch_size, len(self.x))
        with changing(self.net):  # one step at a time, also if several threads ask
            for _ in track(range(num_steps), "burn-in", transient=True) if progress else range(num_steps):
                self._step_size.fill_(self.settings.step_size(self.step))
                rows = torch.randint(len(self.x), (size,), device=self.x.device)
                self._walk(self.x[rows], self.labels[rows])
                self.step += 1

    def _move(self, x: Tensor, labels: Tensor) -> Tensor:
        with torch.enable_grad():
            fit = self.log_likelihood(self.net(x), labels).mean()
            slopes = torch.autograd.grad(fit, self._weights)
        with torch.no_grad():
            half, noise = self._step_size / 2, self._step_size.sqrt()
            for weight, slope in zip(self._weights, slopes, strict=True):
                drift = len(self.x) * slope - self.settings.prior_precision * weight
                weight.add_(half * drift + noise * torch.randn_like(weight))
        return fit.detach()

    def samples(self, progress: bool = False) -> Iterator[dict[str, Tensor]]:
        """Run the whole chain: yields the weights every ``thinning`` steps after burn-in."""
        self.walk(self.settings.burn_in, progress)
        for _ in track(range(self.settings.num_samples), "samples", disable=not progress, transient=True):
            self.walk(self.settings.thinning)
            if not all(bool(torch.isfinite(w).all()) for w in self._weights):
                raise ValueError(
                    f"the chain ran away before step {self.step}: its weights are no longer finite. Take a smaller "
                    f"first_step; it was {self.settings.first_step:g}."
                )
            yield {name: w.detach().clone() for name, w in self.net.state_dict().items()}

    def __call__(self, x: Tensor, num_particles: int) -> Float[Tensor, "S B K"]:
        """Log-probabilities under the next states of the chain, ``thinning`` steps apart."""
        check_at_least(1, num_particles=num_particles)
        particles = []
        with changing(self.net):
            for _ in range(num_particles):
                self.walk(self.settings.thinning)
                with evaluating(self.net):
                    particles.append(self._reading.rows(self.net(x).float(), type(self.net).__name__))
        return self._reading.log_probabilities(torch.stack(particles))

    def compared(self) -> dict[str, Any]:
        """What a resumed run must find again: data and settings, since the weights move with each particle."""
        return {"x": self.x, "labels": self.labels, "settings": repr(self.settings)}

    def network(self) -> nn.Module:
        """The network with the current weights of the chain."""
        return as_logits(self.net, "logits", self.binary)
