"""Why a loss stopped being a number."""

import math

import torch
from torch import Tensor, nn

from opu.objectives import Objective


class Diverged(RuntimeError):
    """The loss or its gradient is no longer finite; the last checkpoint is from before that."""


def explain(step: int, loss: float, objective: Objective, x: Tensor, log_particles: Tensor, student: nn.Module) -> str:
    """One sentence with the step, the objective and the likely cause."""
    what = "its gradient" if math.isfinite(loss) else "the loss"
    return (
        f"at step {step}, {what} of {objective!r} is not finite (loss {loss:g}): {_cause(x, log_particles, student)}. The "
        "weights from before this step are in the last checkpoint, if the run has a folder."
    )


@torch.no_grad()
def _cause(x: Tensor, log_particles: Tensor, student: nn.Module) -> str:
    if not bool(torch.isfinite(x).all()):
        return "the inputs of this batch hold NaN or infinite values, perhaps from the broadening"
    if bool(torch.isnan(log_particles).any()):
        return "the teacher gave NaN particles; check it on these inputs"
    if bool(torch.isinf(log_particles).any()):
        return (
            "the teacher gave a probability of exactly 0, which has no logarithm; use log_softmax, or raise it a little"
        )
    if not all(bool(torch.isfinite(p).all()) for p in student.parameters()):
        return "the student's weights are no longer finite; lower the learning rate"
    log_precision = student(x).log_precision
    low, high = float(log_precision.min()), float(log_precision.max())
    if not -30 < low <= high < 30:
        return f"the log-precision ran away to {low:.3g} .. {high:.3g}; use the bounded link or a lower learning rate"
    return "the objective overflowed; lower the learning rate or the objective's weights"
