"""The one door to a student that answers as fast as this machine can."""

from opu.acceleration.optimize import Optimized, optimize

__all__ = ["Optimized", "optimize"]
