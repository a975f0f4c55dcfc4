"""A student that passes its most uncertain inputs on to its teacher: one pass for most, Monte Carlo for the hard ones."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from opu import measures
from opu.batches import Batch, finite_rows, take
from opu.checks import check_labels
from opu.choices import check_choice
from opu.distributions import Dirichlet, SimplexDistribution, fit_logistic_normal
from opu.distributions.pointwise import maximum_likelihood
from opu.evaluation import metrics
from opu.prediction import Prediction, as_arrays, joined, novelty_of, predict_batches
from opu.ranks import Slack
from opu.students.base import as_student
from opu.students.reading import batches_for
from opu.teachers import Teacher
from opu.timing import median_seconds

FEWEST_INPUTS = 10
_OF_LOGITS, _DIFFERENCES = measures.named("C", "D", "N"), measures.named("MI")


class Cascade:
    """Predicts with the student, and asks the teacher about the most uncertain fraction of in-distribution inputs.

    :meth:`calibrate` sets the threshold on held-out in-distribution inputs, so that the budget is kept on inputs like those,
    whatever the scale of the score and however many of them tie. Inputs of another kind may cost more, since the teacher is
    needed most there.

    Args:
        student: Predicts a distribution on the simplex.
        teacher: Gives ``num_particles`` particles for every uncertain input.
        budget: Fraction of in-distribution inputs that may go to the teacher.
        score: The measure of uncertainty by name, such as ``least_confidence``, or ``novelty`` if it is calibrated.
        num_particles: Number of particles per input that goes to the teacher.
    """

    def __init__(
        self,
        student: nn.Module,
        teacher: Teacher,
        budget: float | int = 0.05,
        *,
        score: str = "least_confidence",
        num_particles: int = 500,
    ) -> None:
        if not 0 <= budget <= 1:
            raise ValueError(f"the budget is a fraction of the inputs, from 0 to 1; got {budget}. Use 0.05 for 5 %.")
        if num_particles < 1:
            raise ValueError(f"num_particles must be at least 1; got {num_particles}.")
        check_choice("the score", score, tuple(measures.MEASURES))
        if score == "novelty" and novelty_of(student) is None:
            raise ValueError("the student's novelty is not calibrated; call opu.calibrate, or use another score.")
        self.student, self.teacher, self.budget = student, teacher, budget
        self.score, self.num_particles = score, num_particles
        self.threshold: float | None = None

    def calibrate(self, inputs: Any) -> "Cascade":
        """Set the threshold on held-out in-distribution inputs of any kind, some hundreds of them."""
        batches = batches_for(as_student(self.student), inputs)  # refuses inputs that are not finite
        scores = np.sort(predict_batches(self.student, batches).scores[self.score])
        if np.isnan(scores).any():
            raise ValueError("a threshold needs predictions that are numbers; the student gives NaN for some inputs.")
        if len(scores) < FEWEST_INPUTS:
            raise ValueError(
                f"a threshold needs at least {FEWEST_INPUTS} in-distribution inputs, better some hundreds; got {len(scores)}."
            )
        # A fresh input exceeds the k-th largest of n with probability k / (n + 1), however the scores are distributed.
        allowed = math.floor(self.budget * (len(scores) + 1))
        if allowed == 0 and self.budget > 0:
            raise ValueError(
                f"a budget of {self.budget:g} needs at least {math.ceil(1 / self.budget) - 1} in-distribution inputs to "
                f"calibrate on; got {len(scores)}. Give more, or a larger budget."
            )
        bounds = [math.inf, *scores[::-1].tolist(), -math.inf]
        self.threshold = bounds[allowed] + self._slack(bounds[allowed])
        return self

    def _slack(self, score: float) -> float:
        """What rounding may add to a score: inputs that tie with a calibration input do not exceed it."""
        if not math.isfinite(score):
            return 0.0
        dtype = next((w.dtype for w in self.student.parameters() if w.is_floating_point()), torch.float32)
        relative, absolute = Slack.RELATIVE.get(dtype, Slack.RELATIVE[torch.float32])
        # Precisions and densities are sums of logits, whose errors do not shrink with the score, and novelty follows them.
        if self.score in _OF_LOGITS:
            return 20 * absolute * (1 + abs(score))
        # Information is a difference of entropies, and has fewer digits than these.
        return (50 if self.score in _DIFFERENCES else 2) * relative * abs(score)

    @torch.no_grad()
    def __call__(self, inputs: Any) -> Prediction:
        """Predict inputs of any kind; ``by_teacher`` of the prediction says which model gave it.

        The teacher's rows have the average of its particles as probabilities, and the measures and the most likely
        distribution of its particles. Novelty and its p-value are the student's for all rows. Inputs with NaN or infinite
        values have no prediction, and are not passed on.
        """
        if self.threshold is None:
            raise ValueError("the cascade has no threshold yet; call calibrate(inputs) with held-out inputs.")
        batches = batches_for(as_student(self.student), inputs, finite=False)
        return joined([self._predict(batch) for batch in batches])

    def _predict(self, x: Batch) -> Prediction:
        assert self.threshold is not None
        ours = predict_batches(self.student, [x])
        # A prediction that is NaN counts as uncertain; about an input that is not finite the teacher knows no more.
        uncertain = ~(ours.scores[self.score] <= self.threshold) & finite_rows(x).cpu().numpy()
        rows: NDArray[np.int64] = uncertain.nonzero()[0]
        if len(rows):
            particles = self.teacher(take(x, torch.from_numpy(rows)), self.num_particles).cpu()
            ours.probabilities[rows] = measures.mean(particles).numpy()
            for name, values in as_arrays(measures.all_measures(particles)).items():
                ours.scores[name][rows] = values
            ours = replace(ours, distribution=_replaced(ours.distribution, torch.from_numpy(rows), particles))
        return replace(ours, by_teacher=uncertain)

    def report(self, x: Any, labels: Tensor) -> dict[str, Any]:
        """What the cascade does on labelled inputs: the fraction handed over, accuracy, and mean cost per input.

        Accuracy and NLL stand beside those of the student and of the teacher alone. Costs are seconds per input, measured
        here on this batch.
        """
        prediction = self(x)
        labels, _ = check_labels(torch.as_tensor(labels), len(prediction), prediction.probabilities.shape[-1])
        batches = list(batches_for(as_student(self.student), x))

        def teacher_alone() -> Tensor:
            return torch.cat([measures.mean(self.teacher(part, self.num_particles)) for part in batches])

        with torch.no_grad():
            probabilities = {
                "student": torch.from_numpy(self._student(x).probabilities),
                "cascade": torch.from_numpy(prediction.probabilities),
                "teacher": teacher_alone().cpu(),
            }
            calls = {"student": lambda: self._student(x), "cascade": lambda: self(x), "teacher": teacher_alone}
            seconds = {name: median_seconds(call, 3) / len(prediction) for name, call in calls.items()}
        quality = {
            name: {
                "accuracy": metrics.accuracy(p, labels.cpu()),
                "nll": metrics.negative_log_likelihood(p, labels.cpu()),
                "seconds_per_input": seconds[name],
            }
            for name, p in probabilities.items()
        }
        return {"budget": self.budget, "fraction": prediction.fraction, "score": self.score, **quality}

    def _student(self, inputs: Any) -> Prediction:
        return predict_batches(self.student, batches_for(as_student(self.student), inputs, finite=False))


def _replaced(q: SimplexDistribution | None, rows: Tensor, log_particles: Tensor) -> SimplexDistribution:
    """The distributions with those that fit particles best in some rows."""
    assert q is not None
    if isinstance(q, Dirichlet):
        return q.replaced(rows, maximum_likelihood(log_particles))
    return q.replaced(rows, fit_logistic_normal(log_particles, q.rank))
