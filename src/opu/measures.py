"""Measures of uncertainty. All of them grow with it.

Each takes a student's answer, a :class:`~opu.distributions.dirichlet.Dirichlet`, or a teacher's, log-probabilities ``(S, B, K)``. For
particles, C and D are those of the most likely Dirichlet for each input, as in the paper's teacher baselines.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from opu.distributions.dirichlet import Dirichlet
from opu.distributions.pointwise import maximum_likelihood

Answer = Dirichlet | Float[Tensor, "S B K"]


def mean(answer: Answer) -> Float[Tensor, "B K"]:
    """The predictive distribution: class probabilities."""
    if isinstance(answer, Dirichlet):
        return answer.mean
    return _log_mean(answer).exp().to(_dtype(answer))


def predictive_entropy(answer: Answer) -> Float[Tensor, " B"]:
    """E: entropy of the predictive distribution."""
    entropy: Tensor = torch.special.entr(_log_mean(answer).double().exp()).sum(-1)
    return entropy.to(_dtype(answer))


def least_confidence(answer: Answer) -> Float[Tensor, " B"]:
    """P: one minus the largest class probability.

    Taken as the sum of the others, so that predictions of 1 - 1e-9 and 1 - 1e-12 do not tie in float32.
    """
    probabilities = _log_mean(answer).double().exp()
    largest = probabilities.argmax(-1, keepdim=True)
    return probabilities.scatter(-1, largest, 0.0).sum(-1).to(_dtype(answer))


def negative_log_precision(answer: Answer) -> Float[Tensor, " B"]:
    """C: minus the log of the Dirichlet's precision."""
    return -_dirichlet(answer).log_precision


def differential_entropy(answer: Answer) -> Float[Tensor, " B"]:
    """D: differential entropy of the Dirichlet. It dives where the precision per class is below 1."""
    return _dirichlet(answer).entropy()


def expected_entropy(answer: Answer) -> Float[Tensor, " B"]:
    """Mean entropy of the induced distribution's members: doubt that more training would not remove."""
    if isinstance(answer, Dirichlet):
        return answer.expected_entropy()
    entropies: Tensor = torch.special.entr(answer.double().exp()).sum(-1)
    return entropies.mean(0).to(_dtype(answer))


def mutual_information(answer: Answer) -> Float[Tensor, " B"]:
    """MI: predictive entropy less expected entropy, the doubt that lies in the model."""
    if isinstance(answer, Dirichlet):
        return answer.mutual_information()
    difference = predictive_entropy(answer.double()) - expected_entropy(answer.double())
    return difference.clamp(min=0).to(_dtype(answer))


MEASURES: dict[str, Callable[[Answer], Tensor]] = {
    "predictive_entropy": predictive_entropy,
    "least_confidence": least_confidence,
    "negative_log_precision": negative_log_precision,
    "differential_entropy": differential_entropy,
    "mutual_information": mutual_information,
    "expected_entropy": expected_entropy,
}


@torch.no_grad()
def all_measures(answer: Answer) -> dict[str, Float[Tensor, " B"]]:
    """Every measure by name; for particles the Dirichlet is fitted once."""
    if isinstance(answer, Dirichlet):
        return {name: measure(answer) for name, measure in MEASURES.items()}
    fitted = maximum_likelihood(answer)
    of_the_fit = (negative_log_precision, differential_entropy)
    return {name: m(fitted) if m in of_the_fit else m(answer) for name, m in MEASURES.items()}


def _log_mean(answer: Answer) -> Tensor:
    if isinstance(answer, Dirichlet):
        return answer.log_mean
    return answer.double().logsumexp(0).log_softmax(-1)


def _dirichlet(answer: Answer) -> Dirichlet:
    return answer if isinstance(answer, Dirichlet) else maximum_likelihood(answer)


def _dtype(answer: Answer) -> torch.dtype:
    return answer.mean.dtype if isinstance(answer, Dirichlet) else answer.dtype
