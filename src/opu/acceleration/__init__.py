"""Acceleration: a student's predictions by the fastest backend of this machine."""

from opu.acceleration.optimize import Optimized, optimize

__all__ = ["Optimized", "optimize"]
