"""Scores for strangers that could be novelty: which measures enter, with which share of the false alarms."""

import math

import numpy as np
import torch
from torch import Tensor

from opu import measures
from opu.distributions.dirichlet import Dirichlet
from opu.novelty import Novelty

SHARES = (0.01, 0.03, 0.1, 0.3, 0.5)


def candidates(q: Dirichlet, ordinary: Dirichlet) -> dict[str, np.ndarray]:
    """The student's measures and N as it is, with its p-values; and, where asked for, what N could be."""
    novelty = Novelty.fit(ordinary)
    plain = {name: measure(q) for name, measure in MEASURES.items()}
    scores = {**plain, "N": novelty(q), "p_value": novelty.p_value(q)}
    return {name: score.double().cpu().numpy() for name, score in scores.items()}


def _louder(first: Tensor, second: Tensor, share: float) -> Tensor:
    return torch.maximum(first + math.log(1 - share), second + math.log(share))


def _negative_mean_log_concentration(q: Dirichlet) -> Tensor:
    return -q.log_concentration().mean(-1)


MEASURES = {
    "E": measures.predictive_entropy,
    "P": measures.least_confidence,
    "MI": measures.mutual_information,
    "C": measures.negative_log_precision,
    "mean log alpha": _negative_mean_log_concentration,
}
