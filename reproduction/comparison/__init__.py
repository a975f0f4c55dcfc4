"""What a user would pick instead of a student, on the same network and data, side by side in one run."""

from reproduction.comparison.methods import METHODS, Fitted, Method
from reproduction.comparison.run import run_comparison

__all__ = ["METHODS", "Fitted", "Method", "run_comparison"]
