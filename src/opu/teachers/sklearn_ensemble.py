"""The members of a scikit-learn ensemble (forest, bagging, voting) as particles."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from opu.teachers.base import BaseTeacher, choose
from opu.teachers.outputs import Reading

# A tree that saw five rows cannot mean a probability of 0, whose logarithm would dominate the KL.
FLOOR = 1e-3


class SklearnEnsemble(BaseTeacher):
    """A fitted scikit-learn ensemble as a teacher: each member's class probabilities are one particle.

    Members of a forest or of bagging were fitted to resampled rows, which makes them a rough posterior, as in the Bayesian
    bootstrap. Boosted trees correct one another and mean nothing alone, so they are refused.

    Args:
        ensemble: Fitted classifier with exchangeable members in ``estimators_``.
        floor: Smallest probability that a member may predict.
    """

    def __init__(self, ensemble: Any, floor: float = FLOOR) -> None:
        members = getattr(ensemble, "estimators_", None)
        if members is None or not hasattr(ensemble, "classes_"):
            raise ValueError(f"the ensemble must be a fitted classifier; {type(ensemble).__name__} has no estimators_.")
        members = list(members)
        if isinstance(members[0], np.ndarray) or not hasattr(members[0], "predict_proba"):
            raise ValueError(
                f"the members of {type(ensemble).__name__} do not each give class probabilities, as particles must; "
                "take a forest, bagging, or voting over probabilistic classifiers."
            )
        if len(members) < 2:
            raise ValueError("an ensemble needs at least two members; got one.")
        self.members, self.floor = members, floor
        self.num_classes = len(ensemble.classes_)
        self.columns = getattr(ensemble, "estimators_features_", None)

    def __call__(self, x: Float[Tensor, "B F"], num_particles: int) -> Float[Tensor, "S B K"]:
        """Log-probabilities of a random subset of the members, or of all of them."""
        rows = x.detach().cpu().double().numpy()
        chosen = [int(i) for i in choose(len(self.members), num_particles)]
        probabilities = np.stack([self._probabilities(i, rows) for i in chosen])
        reading = Reading("probabilities", floor=self.floor)
        return reading.log_probabilities(torch.from_numpy(probabilities)).float().to(x.device)

    def _probabilities(self, index: int, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        member = self.members[index]
        if self.columns is not None:
            rows = rows[:, self.columns[index]]
        if hasattr(member, "tree_"):  # many times faster than predict_proba, which checks its inputs each time
            counts = member.tree_.predict(rows.astype(np.float32)).reshape(len(rows), -1)
            known = counts / counts.sum(-1, keepdims=True)
        else:
            known = member.predict_proba(rows)
        # Members are fitted to encoded labels; a member that saw few rows may not know every class.
        probabilities = np.zeros((len(rows), self.num_classes))
        probabilities[:, np.asarray(member.classes_, dtype=int)] = known
        return probabilities
