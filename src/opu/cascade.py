"""A student that passes its most uncertain inputs on to its teacher: one pass for most, Monte Carlo for the hard ones."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from opu import measures
from opu.checks import check_inputs, check_labels
from opu.choices import check_choice
from opu.devices import device_of
from opu.distributions.dirichlet import Dirichlet
from opu.evaluation import metrics
from opu.prediction import Prediction, as_arrays, novelty_of
from opu.teachers import Teacher
from opu.timing import median_seconds

FEWEST_INPUTS = 10


class Cascade:
    """Predicts with the student, and asks the teacher about the most uncertain fraction of in-distribution inputs.

    :meth:`calibrate` sets the threshold on held-out in-distribution inputs, so that the budget is kept on inputs like those
    whatever the scale of the score. Inputs of another kind may cost more, since the teacher is needed most there.

    Args:
        student: Predicts a Dirichlet.
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

    @torch.no_grad()
    def calibrate(self, inputs: Tensor) -> "Cascade":
        """Set the threshold on held-out in-distribution inputs, some hundreds of them."""
        check_inputs(inputs)
        if len(inputs) < FEWEST_INPUTS:
            raise ValueError(
                f"a threshold needs at least {FEWEST_INPUTS} in-distribution inputs, better some hundreds; got {len(inputs)}."
            )
        scores = torch.cat([self._score(self._student(part)) for part in inputs.split(1024)]).double().sort().values
        # A fresh input exceeds the k-th largest of n with probability k / (n + 1), however the scores are distributed.
        allowed = math.floor(self.budget * (len(scores) + 1))
        if allowed == 0 and self.budget > 0:
            raise ValueError(
                f"a budget of {self.budget:g} needs at least {math.ceil(1 / self.budget) - 1} in-distribution inputs to "
                f"calibrate on; got {len(inputs)}. Give more, or a larger budget."
            )
        bounds = [math.inf, *scores.flip(0).tolist(), -math.inf]
        self.threshold = bounds[allowed]
        return self

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Prediction:
        """Predict a batch. Probabilities of the teacher's rows are the average over its particles."""
        if self.threshold is None:
            raise ValueError("the cascade has no threshold yet; call calibrate(inputs) with held-out inputs.")
        q = self._student(x)
        score = self._score(q).double()
        uncertain = ~(score <= self.threshold)  # NaN counts as uncertain
        probabilities = q.mean.clone()
        rows: Int64[Tensor, " R"] = uncertain.nonzero().squeeze(-1)
        if len(rows):
            asked = measures.mean(self.teacher(x[rows.to(x.device)], self.num_particles))
            probabilities[rows] = asked.to(probabilities)
        return Prediction(probabilities, as_arrays({self.score: score}), by_teacher=uncertain)

    def report(self, x: Tensor, labels: Tensor) -> dict[str, Any]:
        """What the cascade does on labelled inputs: the fraction handed over, accuracy, and mean cost per input.

        Accuracy and NLL stand beside those of the student and of the teacher alone. Costs are seconds per input, measured
        here on this batch.
        """
        check_inputs(x)
        prediction = self(x)
        labels, _ = check_labels(torch.as_tensor(labels), len(x), prediction.probabilities.shape[-1])

        def teacher_alone() -> Tensor:
            return measures.mean(self.teacher(x, self.num_particles))

        with torch.no_grad():
            probabilities = {
                "student": self._student(x).mean,
                "cascade": prediction.probabilities,
                "teacher": teacher_alone(),
            }
            calls = {"student": lambda: self._student(x), "cascade": lambda: self(x), "teacher": teacher_alone}
            seconds = {name: median_seconds(call, 3) / len(x) for name, call in calls.items()}
        quality = {
            name: {
                "accuracy": metrics.accuracy(p.cpu(), labels.cpu()),
                "nll": metrics.negative_log_likelihood(p.cpu(), labels.cpu()),
                "seconds_per_input": seconds[name],
            }
            for name, p in probabilities.items()
        }
        return {"budget": self.budget, "fraction": prediction.fraction, "score": self.score, **quality}

    def _student(self, x: Tensor) -> Dirichlet:
        self.student.eval()
        q: Dirichlet = self.student(x.to(device_of(self.student)))
        return q

    def _score(self, q: Dirichlet) -> Float[Tensor, " B"]:
        return measures.MEASURES[self.score](q, novelty_of(self.student))
