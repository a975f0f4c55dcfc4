"""Why a loss is no longer finite, and whether the precision still tells inputs apart."""

import math

import torch
from torch import Tensor, nn

from opu.batches import Batch, tensors
from opu.objectives import Objective
from opu.students.links import BoundedLink


class Diverged(RuntimeError):
    """The loss or its gradient is no longer finite; the last checkpoint is from before that."""


def explain(step: int, loss: float, objective: Objective, x: Batch, log_particles: Tensor, student: nn.Module) -> str:
    """One sentence with the step, the objective and the likely cause."""
    what = "its gradient" if math.isfinite(loss) else "the loss"
    return (
        f"at step {step}, {what} of {objective!r} is not finite (loss {loss:g}): {_cause(x, log_particles, student)}. The "
        "weights from before this step are in the last checkpoint, if the run has a folder."
    )


@torch.no_grad()
def _cause(x: Batch, log_particles: Tensor, student: nn.Module) -> str:
    if not all(bool(torch.isfinite(t).all()) for t in tensors(x).values()):
        return "the inputs of this batch hold NaN or infinite values, perhaps from the augmentation"
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
        return f"the log-precision ran away to {low:.3g} .. {high:.3g}; use a bounded link or a lower learning rate"
    return "the objective overflowed; lower the learning rate or the objective's weights"


# Fraction of the inputs whose precision must be at one bound for a warning.
_NEARLY_ALL = 0.9


def stuck(link: object, log_precision: Tensor) -> str | None:
    """A warning, with what to do, if the precision of nearly all held-out inputs is at one bound of the link."""
    if not isinstance(link, BoundedLink):
        return None
    share = (log_precision - link.low) / (link.high - link.low)
    upper = "Before distilling, call student.fit_bounds(teacher, x), or give KL more weight in the objective."
    lower = "Before distilling, call student.fit_bounds(teacher, x), or use clipped_kl and a lower learning rate."
    for bound, value, near, advice in (
        ("lower", link.low, share < link.edge, lower),
        ("upper", link.high, share > 1 - link.edge, upper),
    ):
        stuck_there = float(near.float().mean())
        if stuck_there >= _NEARLY_ALL:
            return (
                f"the log-precision of {stuck_there:.0%} of the held-out inputs is at the {bound} bound of the student's "
                f"link, {value:g}: it tells them apart no more. {advice}"
            )
    return None
