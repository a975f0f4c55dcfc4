"""Metrics of detection and calibration, and bootstrap intervals for them.

All scores grow with uncertainty. The positive class of a detection is what should be detected: errors, or
out-of-distribution inputs. Rates are in percent.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from sklearn import metrics as sk
from torch import Tensor

Array = NDArray[Any]


def detection(scores: ArrayLike, positive: ArrayLike) -> dict[str, float]:
    """AUROC, AUPR and the false-positive rate at a true-positive rate of 95 %, all in percent."""
    scores, positive = _checked(scores, positive)
    return {
        "auroc": auroc(scores, positive),
        "aupr": 100 * float(sk.average_precision_score(positive, scores)),
        "fpr95": 100 * fpr_at_tpr(scores, positive),
    }


def detection_or_none(scores: Array, positive: Array) -> dict[str, float] | None:
    """The same, or None if there is nothing to tell apart or a score is not finite."""
    possible = positive.any() and not positive.all() and np.isfinite(scores).all()
    return detection(scores, positive) if possible else None


def auroc(scores: ArrayLike, positive: ArrayLike) -> float:
    """Probability that a positive scores above a negative, in percent; a tie counts half."""
    scores, positive = _checked(scores, positive)
    return 100 * float(sk.roc_auc_score(positive, scores))


def fpr_at_tpr(scores: ArrayLike, positive: ArrayLike, tpr: float = 0.95) -> float:
    """Fraction of negatives flagged at the first threshold that flags a fraction ``tpr`` of the positives."""
    scores, positive = _checked(scores, positive)
    false_rate, true_rate, _ = sk.roc_curve(positive, scores, drop_intermediate=False)
    return float(false_rate[np.argmax(true_rate >= tpr)])


def aurc(scores: ArrayLike, errors: ArrayLike) -> float:
    """Area under the risk-coverage curve, in percent: the error rate among accepted inputs, averaged over all coverages.

    Inputs are accepted in the order of their scores; inputs with equal scores are accepted together, at their mean risk.
    """
    scores, errors = np.asarray(scores, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    order = np.argsort(scores, kind="stable")
    scores, errors = scores[order], errors[order]
    _, group = np.unique(scores, return_inverse=True)
    errors = (np.bincount(group, errors) / np.bincount(group))[group]
    return 100 * float(np.mean(np.cumsum(errors) / np.arange(1, len(errors) + 1)))


def accuracy(probabilities: Float[Tensor, "B K"], labels: Tensor) -> float:
    """Fraction of inputs whose most probable class is right, in percent."""
    return 100 * float((probabilities.argmax(-1) == labels).double().mean())


def base_rate(labels: Tensor) -> float:
    """Fraction of the inputs that the commonest class has, in percent: the accuracy of always predicting it."""
    return 100 * float(labels.bincount().max() / len(labels))


def balanced_accuracy(probabilities: Float[Tensor, "B K"], labels: Tensor) -> float:
    """The accuracy within each class, averaged over the classes that have inputs, in percent; guessing has 100 / K."""
    right = (probabilities.argmax(-1) == labels).double()
    return 100 * float(torch.stack([right[labels == each].mean() for each in labels.unique()]).mean())


def class_auroc(probabilities: Float[Tensor, "B K"], labels: Tensor) -> float:
    """AUROC of the probabilities, in percent: of class 1 if there are two, else the mean over each class against the rest."""
    classes = [1] if probabilities.shape[-1] == 2 else labels.unique().tolist()
    return float(np.mean([auroc(probabilities[:, each].numpy(), (labels == each).numpy()) for each in classes]))


def negative_log_likelihood(probabilities: Float[Tensor, "B K"], labels: Tensor) -> float:
    """Mean of minus the log-probability of the right class, in nats; a probability below 1e-12 counts as 1e-12."""
    right = probabilities.double().gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return float(-right.clamp(min=1e-12).log().mean())


def brier_score(probabilities: Float[Tensor, "B K"], labels: Tensor) -> float:
    """Mean squared distance between the probabilities and the right class as a corner of the simplex."""
    corners = torch.nn.functional.one_hot(labels, probabilities.shape[-1])
    return float((probabilities.double() - corners).square().sum(-1).mean())


def calibration_error(probabilities: Float[Tensor, "B K"], labels: Tensor, num_bins: int = 15) -> float:
    """ECE, in percent: mean gap between confidence and accuracy over bins of equal width, weighted by their size."""
    confidence, right, bins = _binned(probabilities, labels, num_bins)
    gap = torch.zeros(num_bins, dtype=torch.float64, device=bins.device).index_add(0, bins, right - confidence)
    return 100 * float(gap.abs().sum() / len(labels))


def reliability(probabilities: Float[Tensor, "B K"], labels: Tensor, num_bins: int = 10) -> list[list[float | int]]:
    """Mean confidence, accuracy and count of each bin of a reliability diagram that is not empty."""
    confidence, right, bins = _binned(probabilities, labels, num_bins)
    inside = [bins == number for number in bins.unique()]
    return [[float(confidence[rows].mean()), float(right[rows].mean()), int(rows.sum())] for rows in inside]


def _binned(probabilities: Tensor, labels: Tensor, num_bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """The confidence of each input, whether it is right (0 or 1), and its bin of equal width."""
    confidence, predicted = probabilities.double().max(-1)
    return confidence, (predicted == labels).double(), (confidence * num_bins).long().clamp(max=num_bins - 1)


def bootstrap_interval(
    metric: Callable[..., float],
    *arrays: ArrayLike,
    level: float = 0.95,
    num_resamples: int = 500,
    seed: int = 0,
    strata: ArrayLike | None = None,
) -> tuple[float, float]:
    """Percentile interval of a metric over resampled inputs.

    Args:
        metric: Function of the arrays, which are resampled together along their first axis.
        arrays: Arguments of the metric, for instance scores and which of them are positive.
        level: Level of the interval.
        num_resamples: Number of resamples.
        seed: Seed of the resampling.
        strata: Group of each input. Resampling stays within groups, so that both classes of a detection keep their sizes.
    """
    columns = [np.asarray(a) for a in arrays]
    groups = np.zeros(len(columns[0])) if strata is None else np.asarray(strata)
    members = [np.flatnonzero(groups == value) for value in np.unique(groups)]
    source = np.random.default_rng(seed)
    values = []
    for _ in range(num_resamples):
        rows = np.concatenate([source.choice(m, len(m)) for m in members])
        values.append(metric(*(column[rows] for column in columns)))
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _checked(scores: ArrayLike, positive: ArrayLike) -> tuple[Array, Array]:
    scores, positive = np.asarray(scores, dtype=np.float64), np.asarray(positive).astype(bool)
    if scores.shape != positive.shape or scores.ndim != 1:
        raise ValueError(
            f"scores and labels must be two lists of one length; got shapes {scores.shape} and {positive.shape}."
        )
    if not np.isfinite(scores).all():
        raise ValueError(f"scores must be finite to be ranked; got {int((~np.isfinite(scores)).sum())} that are not.")
    if positive.all() or not positive.any():
        kind = "positives" if positive.all() else "negatives"
        raise ValueError(f"a detection needs both positives and negatives; got {len(positive)} {kind} only.")
    return scores, positive
