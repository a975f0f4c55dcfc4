"""The loop that fits a student to a teacher, and what belongs to it: recipe, run state, run folder, diagnosis."""

from opu.distillation.diagnosis import Diverged
from opu.distillation.loop import calibrate, distill
from opu.distillation.state import Distillation

__all__ = ["Distillation", "Diverged", "calibrate", "distill"]
