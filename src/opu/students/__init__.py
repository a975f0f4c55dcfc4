"""Networks that answer with a Dirichlet."""

from opu.students.compressed import binary_mlp, prune
from opu.students.base import BaseStudent, as_student
from opu.students.links import Sigmoid, Exp, Link, Softsign, Softplus
from opu.students.networks import from_backbone, lenet, mlp
from opu.students.store import load
from opu.students.student import Student

__all__ = [
    "BaseStudent",
    "Sigmoid",
    "Exp",
    "Link",
    "Softsign",
    "Softplus",
    "Student",
    "as_student",
    "binary_mlp",
    "from_backbone",
    "lenet",
    "load",
    "mlp",
    "prune",
]
