"""The loop that fits a student to a teacher, and what belongs to it: recipe, run state, run folder, diagnosis."""

from opu.distillation.calibration import calibrate
from opu.distillation.diagnosis import Diverged
from opu.distillation.loop import distill
from opu.distillation.recipe import Recipe
from opu.distillation.result import Distillation
from opu.distillation.watching import Epoch

__all__ = ["Distillation", "Diverged", "Epoch", "Recipe", "calibrate", "distill"]
