"""What a user would pick instead of a student, on the same network and data, side by side in one run."""

from opu.experiments.rivals.methods import RIVALS, Fitted, Rival
from opu.experiments.rivals.run import run_rivals

__all__ = ["RIVALS", "Fitted", "Rival", "run_rivals"]
