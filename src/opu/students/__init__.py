"""Networks that predict a Dirichlet."""

from opu.students.base import BaseStudent, as_student
from opu.students.compressed import binary_mlp, prune
from opu.students.from_teacher import from_teacher
from opu.students.links import Exp, Link, Sigmoid, Softplus, Softsign
from opu.students.networks import from_backbone, lenet, mlp
from opu.students.store import load
from opu.students.student import Student

__all__ = [
    "BaseStudent",
    "Exp",
    "Link",
    "Sigmoid",
    "Softplus",
    "Softsign",
    "Student",
    "as_student",
    "binary_mlp",
    "from_backbone",
    "from_teacher",
    "lenet",
    "load",
    "mlp",
    "prune",
]
