"""How close a student is to its teacher: noise, family and amortisation apart, and what to change.

``report(student, teacher, inputs)`` compares the two in every respect; ``gaps(q, log_particles)`` gives the distances alone,
and ``compare_families(log_particles)`` says which family of distributions fits a teacher's particles.
"""

from opu.fidelity.families import FamilyComparison, FamilyFit, compare_families
from opu.fidelity.gaps import Gaps, gaps
from opu.fidelity.report import Fidelity, report

__all__ = ["FamilyComparison", "FamilyFit", "Fidelity", "Gaps", "compare_families", "gaps", "report"]
