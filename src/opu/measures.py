"""Measures of uncertainty. All of them grow with it, and all are entries of one registry, :data:`MEASURES`.

Each takes a student's prediction, a :class:`~opu.distributions.dirichlet.Dirichlet`, or a teacher's particles,
log-probabilities ``(S, B, K)``. For particles, C and D are those of the most likely Dirichlet for each input, as in the
paper's teacher baselines.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from opu.distributions import SimplexDistribution
from opu.distributions.pointwise import maximum_likelihood
from opu.distributions.simplex import divergence, entropy, normalised
from opu.novelty import Novelty

Source = SimplexDistribution | Float[Tensor, "S B K"]


def mean(source: Source) -> Float[Tensor, "B K"]:
    """The predictive distribution: class probabilities."""
    if isinstance(source, SimplexDistribution):
        return source.mean
    return _log_mean(source).exp().to(_dtype(source))


def predictive_entropy(source: Source) -> Float[Tensor, " B"]:
    """E, total uncertainty: the entropy of the predictive distribution."""
    return entropy(_log_mean(source)).to(_dtype(source))


def least_confidence(source: Source) -> Float[Tensor, " B"]:
    """P: one minus the largest class probability.

    It is computed as the sum of the other probabilities, so that predictions of 1 - 1e-9 and 1 - 1e-12 do not tie in float32.
    """
    probabilities = _log_mean(source).exp()
    largest = probabilities.argmax(-1, keepdim=True)
    return probabilities.scatter(-1, largest, 0.0).sum(-1).to(_dtype(source))


def negative_log_precision(source: Source) -> Float[Tensor, " B"]:
    """C: minus the logarithm of the Dirichlet's precision."""
    return -_fitted(source).log_precision


def differential_entropy(source: Source) -> Float[Tensor, " B"]:
    """D: the differential entropy of the Dirichlet. It falls without bound where the precision per class is below 1."""
    return _fitted(source).entropy()


def expected_entropy(source: Source) -> Float[Tensor, " B"]:
    """EE, aleatoric uncertainty: the mean entropy of the class probabilities drawn from the distribution."""
    if isinstance(source, SimplexDistribution):
        return source.expected_entropy()
    return entropy(normalised(source)).mean(0).to(_dtype(source))


def mutual_information(source: Source) -> Float[Tensor, " B"]:
    """MI, epistemic uncertainty: predictive entropy minus expected entropy.

    For particles it is computed as their mean KL from the predictive distribution, since two nearly equal entropies would
    leave rounding of 1e-16, which is more than the information of particles that agree to eight digits.
    """
    if isinstance(source, SimplexDistribution):
        return source.mutual_information()
    particles = normalised(source)
    return divergence(particles, _log_mean(particles).unsqueeze(0)).mean(0).to(_dtype(source))


@dataclass(frozen=True)
class Measure:
    """One entry of the registry.

    Attributes:
        symbol: The letter in tables and in the paper.
        name: The name in code, files and exported outputs.
        function: From a Dirichlet or particles to one value per input; None for novelty, which a calibrated
            :class:`~opu.novelty.Novelty` computes.
        question: ``error`` (may this prediction be wrong?) or ``novelty`` (is this input unlike the data?).
        fitted: Whether particles are first summarised by the most likely Dirichlet.
    """

    symbol: str
    name: str
    function: Callable[[Source], Tensor] | None
    question: Literal["error", "novelty"]
    fitted: bool = False

    def __call__(self, source: Source, novelty: Novelty | None = None) -> Float[Tensor, " B"]:
        """One value per input; ``novelty`` is needed by the measure of that name alone."""
        if self.function is not None:
            return self.function(source)
        if novelty is None or not isinstance(source, SimplexDistribution):
            raise ValueError("novelty needs a student's prediction and its calibrated score; call opu.calibrate first.")
        score: Tensor = novelty(source)
        return score


_ENTRIES = (
    Measure("E", "predictive_entropy", predictive_entropy, "error"),
    Measure("P", "least_confidence", least_confidence, "error"),
    Measure("C", "negative_log_precision", negative_log_precision, "novelty", fitted=True),
    Measure("D", "differential_entropy", differential_entropy, "novelty", fitted=True),
    Measure("MI", "mutual_information", mutual_information, "novelty"),
    Measure("EE", "expected_entropy", expected_entropy, "error"),
    Measure("N", "novelty", None, "novelty"),
)
MEASURES: dict[str, Measure] = {measure.name: measure for measure in _ENTRIES}
SYMBOLS: dict[str, str] = {measure.name: measure.symbol for measure in _ENTRIES}


def named(*symbols: str) -> tuple[str, ...]:
    """The names of measures by their symbols: ``named("E", "MI")``."""
    by_symbol = {measure.symbol: measure.name for measure in _ENTRIES}
    return tuple(by_symbol[symbol] for symbol in symbols)


@torch.no_grad()
def all_measures(source: Source, novelty: Novelty | None = None) -> dict[str, Float[Tensor, " B"]]:
    """Every measure by name, novelty included where its calibrated score is given; particles are fitted once."""
    fitted = source if isinstance(source, SimplexDistribution) else maximum_likelihood(source)
    known = [measure for measure in _ENTRIES if measure.function is not None or novelty is not None]
    return {measure.name: measure(fitted if measure.fitted else source, novelty) for measure in known}


def _log_mean(source: Source) -> Tensor:
    """Logarithms of the predictive distribution, normalised in float64 so that one near certainty keeps its digits."""
    return normalised(source.log_mean if isinstance(source, SimplexDistribution) else source.double().logsumexp(0))


def _fitted(source: Source) -> SimplexDistribution:
    return source if isinstance(source, SimplexDistribution) else maximum_likelihood(source)


def _dtype(source: Source) -> torch.dtype:
    return source.mean.dtype if isinstance(source, SimplexDistribution) else source.dtype
