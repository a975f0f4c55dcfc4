"""The one room that draws pictures, with matplotlib and mpltern (the extra ``plot``).

Every panel names its axes and has a legend; classes have their names.
"""

from opu.plotting.calibration import draw_calibration, draw_reliability
from opu.plotting.canvas import INK, STUDENT, TEACHER, describe, figure, finish, legend, missing
from opu.plotting.fidelity import draw_fidelity
from opu.plotting.scores import draw_histograms, draw_roc
from opu.plotting.simplex import draw_inputs, draw_interval, draw_simplex

__all__ = [
    "INK",
    "STUDENT",
    "TEACHER",
    "describe",
    "draw_calibration",
    "draw_fidelity",
    "draw_histograms",
    "draw_inputs",
    "draw_interval",
    "draw_reliability",
    "draw_roc",
    "draw_simplex",
    "figure",
    "finish",
    "legend",
    "missing",
]
