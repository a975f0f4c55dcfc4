"""The loop that fits a student to a teacher, and what belongs to it: recipe, run state, run folder, diagnosis."""

from opu.distillation.calibration import calibrate
from opu.distillation.diagnosis import Diverged
from opu.distillation.loop import distill
from opu.distillation.recipe import Recipe
from opu.distillation.result import Distillation

__all__ = ["Distillation", "Diverged", "Recipe", "calibrate", "distill"]
