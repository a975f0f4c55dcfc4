"""How close a student is to its teacher: noise, family and amortisation apart, and what to change.

``report(student, teacher, inputs)`` compares the two in every respect; ``gaps(q, log_particles)`` gives the distances alone.
"""

from opu.fidelity.gaps import Gaps, gaps
from opu.fidelity.report import Fidelity, report

__all__ = ["Fidelity", "Gaps", "gaps", "report"]
