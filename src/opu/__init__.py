"""One-Pass Uncertainty: any Bayesian classifier becomes a network that gives its whole uncertainty in one pass.

A teacher turns inputs into particles on the simplex, a student predicts one Dirichlet for each input, an objective says how
far the two are apart, and :func:`distill` ties the three. Measures turn predictions into scores.

Everything is imported at first use, so that ``import opu`` costs nothing and ``opu.export`` or ``opu.sklearn`` need no
import of their own.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from opu._version import __version__

if TYPE_CHECKING:
    from opu import (
        acceleration,
        augment,
        demo,
        distillation,
        distributions,
        evaluation,
        export,
        fidelity,
        inputs,
        measures,
        novelty,
        objectives,
        plotting,
        predict_files,
        prediction,
        sklearn,
        students,
        teachers,
    )
    from opu.acceleration.optimize import optimize
    from opu.cascade import Cascade
    from opu.distillation import Recipe, calibrate, distill
    from opu.distributions import (
        Dirichlet,
        LogisticNormal,
        fit_logistic_normal,
        kernels,
        kl_divergence,
        maximum_likelihood,
        minimum_mmd,
    )
    from opu.novelty import Novelty
    from opu.students import load

__all__ = [
    "Cascade",
    "Dirichlet",
    "LogisticNormal",
    "Novelty",
    "Recipe",
    "__version__",
    "acceleration",
    "augment",
    "calibrate",
    "demo",
    "distill",
    "distillation",
    "distributions",
    "evaluation",
    "export",
    "fidelity",
    "fit_logistic_normal",
    "inputs",
    "kernels",
    "kl_divergence",
    "load",
    "maximum_likelihood",
    "measures",
    "minimum_mmd",
    "novelty",
    "objectives",
    "optimize",
    "plotting",
    "predict_files",
    "prediction",
    "sklearn",
    "students",
    "teachers",
]

# Where the names live that are not modules of this package.
_HOMES = {
    "Cascade": "cascade",
    "Dirichlet": "distributions",
    "LogisticNormal": "distributions",
    "Novelty": "novelty",
    "Recipe": "distillation",
    "calibrate": "distillation",
    "distill": "distillation",
    "fit_logistic_normal": "distributions",
    "kernels": "distributions",
    "kl_divergence": "distributions",
    "load": "students",
    "maximum_likelihood": "distributions",
    "minimum_mmd": "distributions",
    "optimize": "acceleration",
}

if not TYPE_CHECKING:  # or a type checker would accept any name

    def __getattr__(name: str) -> object:
        """Import a module of the library, or a name out of its module, at first use (PEP 562)."""
        if name in _HOMES:
            globals()[name] = getattr(import_module(f"opu.{_HOMES[name]}"), name)
            return globals()[name]
        if not name.startswith("_"):
            try:
                return import_module(f"opu.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"opu.{name}":  # a package that the module needs
                    raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
