"""A student that hands the inputs it doubts most to its teacher: most answers in one pass, the hard ones by Monte Carlo."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from opu import measures
from opu.evaluation import metrics
from opu.checks import check_inputs, check_labels
from opu.distributions.dirichlet import Dirichlet
from opu.teachers import Teacher
from opu.timing import median_seconds

FEWEST_INPUTS = 10


@dataclass(frozen=True)
class CascadePrediction:
    """Class probabilities of a batch, and which rows the teacher answered."""

    probabilities: Float[Tensor, "B K"]
    by_teacher: Bool[Tensor, " B"]

    @property
    def fraction(self) -> float:
        """Share of the inputs that went to the teacher."""
        return float(self.by_teacher.double().mean())


class Cascade:
    """Prediction with the student and asks the teacher about the most doubtful fraction of ordinary inputs.

    The threshold is set by :meth:`calibrate` on held-out ordinary inputs, so that the budget is kept on inputs like those
    whatever the student's scores mean. Inputs of another kind may cost more: that is when the teacher is wanted most.

    Args:
        student: Prediction with a Dirichlet.
        teacher: Asked for ``num_particles`` particles of every doubtful input.
        budget: Share of ordinary inputs that may go to the teacher.
        score: The doubt: a measure of the student's, such as ``least_confidence``, or ``novelty`` where it is calibrated.
        num_particles: For each input that the teacher answers.
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
            raise ValueError(f"the budget is a share of the inputs, from 0 to 1; got {budget}. Use 0.05 for 5 %.")
        if num_particles < 1:
            raise ValueError(f"num_particles must be at least 1; got {num_particles}.")
        if score == "novelty":
            if getattr(student, "novelty", None) is None:
                raise ValueError("the student's novelty is not calibrated; call opu.calibrate, or take another score.")
        elif score not in measures.MEASURES:
            raise ValueError(f"the score is novelty or one of {', '.join(measures.MEASURES)}; got {score!r}.")
        self.student, self.teacher, self.budget = student, teacher, budget
        self.score, self.num_particles = score, num_particles
        self.threshold: float | None = None

    @torch.no_grad()
    def calibrate(self, inputs: Tensor) -> "Cascade":
        """Set the threshold on held-out ordinary inputs, some hundreds of them."""
        check_inputs(inputs)
        if len(inputs) < FEWEST_INPUTS:
            raise ValueError(
                f"a threshold needs at least {FEWEST_INPUTS} ordinary inputs, better some hundreds; got {len(inputs)}."
            )
        doubt = torch.cat([self._doubt(self._student(part)) for part in inputs.split(1024)]).double().sort().values
        # A fresh input exceeds the k-th largest of n with probability k / (n + 1), however the scores are distributed.
        allowed = math.floor(self.budget * (len(doubt) + 1))
        if allowed == 0 and self.budget > 0:
            raise ValueError(
                f"a budget of {self.budget:g} needs at least {math.ceil(1 / self.budget) - 1} ordinary inputs to calibrate "
                f"on; got {len(inputs)}. Give more, or a larger budget."
            )
        bounds = [math.inf, *doubt.flip(0).tolist(), -math.inf]
        self.threshold = bounds[allowed]
        return self

    @torch.no_grad()
    def __call__(self, x: Tensor) -> CascadePrediction:
        """Probabilities for a batch; the rows of the teacher's are its average over particles."""
        if self.threshold is None:
            raise ValueError("the cascade has no threshold yet; call calibrate(inputs) with held-out ordinary inputs.")
        q = self._student(x)
        doubtful = ~(self._doubt(q).double() <= self.threshold)  # a doubt that is no number is one
        probabilities = q.mean.clone()
        rows: Int64[Tensor, " R"] = doubtful.nonzero().squeeze(-1)
        if len(rows):
            answer = measures.mean(self.teacher(x[rows.to(x.device)], self.num_particles))
            probabilities[rows] = answer.to(probabilities)
        return CascadePrediction(probabilities, doubtful)

    def report(self, x: Tensor, labels: Tensor) -> dict[str, Any]:
        """What the cascade does on labelled inputs: the fraction handed over, accuracy, and mean cost per input.

        Accuracy and NLL stand beside those of the student and of the teacher alone. Costs are seconds per input, measured
        here on this batch; the cascade's is the student's for all and the teacher's for its rows.
        """
        check_inputs(x)
        answer = self(x)
        labels, _ = check_labels(torch.as_tensor(labels), len(x), answer.probabilities.shape[-1])
        with torch.no_grad():
            alone = {
                "student": self._student(x).mean,
                "cascade": answer.probabilities,
                "teacher": measures.mean(self.teacher(x, self.num_particles)),
            }
            run = {
                "student": lambda: self._student(x),
                "cascade": lambda: self(x),
                "teacher": lambda: measures.mean(self.teacher(x, self.num_particles)),
            }
            seconds = {name: median_seconds(function, 3) / len(x) for name, function in run.items()}
        quality = {
            name: {
                "accuracy": metrics.accuracy(p.cpu(), labels.cpu()),
                "nll": metrics.negative_log_likelihood(p.cpu(), labels.cpu()),
                "seconds_per_input": seconds[name],
            }
            for name, p in alone.items()
        }
        return {"budget": self.budget, "fraction": answer.fraction, "score": self.score, **quality}

    def _student(self, x: Tensor) -> Dirichlet:
        self.student.eval()
        q: Dirichlet = self.student(x.to(next(self.student.parameters()).device))
        return q

    def _doubt(self, q: Dirichlet) -> Float[Tensor, " B"]:
        if self.score == "novelty":
            novelty: Tensor = self.student.novelty(q)  # type: ignore[operator]
            return novelty
        return measures.MEASURES[self.score](q)
