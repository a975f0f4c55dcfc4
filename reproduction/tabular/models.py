"""The rows of tables 3 and 4: a teacher, its rival, and its students, on one prepared data set."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from opu import measures
from reproduction.baselines import compact_approximation
from opu.distillation.diagnosis import Diverged
from opu.evaluation.compare import TEACHER_MEASURES, assess
from opu.prediction import Prediction, predict_student, predict_teacher
from reproduction.tabular.setups import Prepared, Setup
from reproduction.tabular.students import Recipe, distil, recipes
from opu.teachers import GibbsSettings, SGPMCSettings, SVGPSettings, Teacher, polya_gamma, sgpmc, svgp
from opu.timing import median_seconds

NUM_SAMPLES = 500
POOL = 5000
NUM_CHAINS = 2
STUDENT_MEASURES = (*TEACHER_MEASURES, "negative_log_precision", "novelty")


def run_blr(setup: Setup, data: Prepared) -> dict[str, Any]:
    """Polya-Gamma, CompactApprox and the students."""
    settings = GibbsSettings(
        prior_variance=setup.prior_variance,
        intercept=setup.intercept,
        # The paper's samples are not thinned, as far as it says; ours are.
        thinning=1 if setup.preset == "paper" else 2,
        num_samples=POOL,
        num_chains=NUM_CHAINS,
    )
    pool, seconds = _timed(lambda: polya_gamma(data.x, data.labels, settings))
    teacher = pool.take(spaced(POOL, NUM_SAMPLES, NUM_CHAINS))
    compact, search_seconds = _timed(lambda: compact_approximation(pool, data.x))
    rows = {
        "PG": _of_teacher(teacher, data) | {"fit_seconds": seconds},
        "CA-PG": _of_teacher(compact, data) | {"fit_seconds": seconds + search_seconds},
    }
    for added, recipe in recipes("blr", setup).items():
        rows[f"OPU-PG{added}"] = _of_student(recipe, teacher, data)
    mixing = {what: asdict(found) for what, found in pool.diagnostics.items()}
    return {"rows": rows, "mixing": mixing, "settings": asdict(settings)}


def spaced(pool: int, number: int, chains: int) -> Int64[Tensor, " number"]:
    """Places in a pool, in which chains take turns, of evenly spaced draws of every chain."""
    return torch.arange(pool).view(-1, chains)[:: pool // number].flatten()


def run_gp(setup: Setup, data: Prepared) -> dict[str, Any]:
    """SGPMC, SVGP and SGPMC's students."""
    settings = SGPMCSettings(num_samples=NUM_SAMPLES)
    teacher, seconds = _timed(lambda: sgpmc(data.x, data.labels, settings))
    rival, rival_seconds = _timed(lambda: svgp(data.x, data.labels))
    rows = {
        "SGPMC": _of_teacher(teacher, data) | {"fit_seconds": seconds},
        "SVGP": _of_teacher(rival, data)
        | {"fit_seconds": rival_seconds, "training": training(rival.elbo, rival.converged)},
    }
    for added, recipe in recipes("gp", setup).items():
        rows[f"OPU-SGPMC{added}"] = _of_student(recipe, teacher, data)
    return {"rows": rows, "mixing": asdict(teacher.mixing), "settings": asdict(settings)}


def training(elbo: Float[Tensor, " T"], converged: bool) -> dict[str, Any]:
    """How the bound for each row rose, and whether it had stood still when training ended.

    A step sees a batch, whose bound is noisy; training compares averages over windows of steps, and those are kept.
    """
    windows = [float(part.mean()) for part in elbo.split(SVGPSettings().window)]
    return {"elbo": [round(bound, 5) for bound in windows], "steps": len(elbo), "converged": converged}


def _of_teacher(teacher: Teacher, data: Prepared) -> dict[str, Any]:
    inside, *outside = (
        _only(TEACHER_MEASURES, predict_teacher(teacher, x, NUM_SAMPLES)) for x in (data.test, *data.ood.values())
    )
    result = assess(inside, data.test_labels, dict(zip(data.ood, outside, strict=True)))
    return result | {"predict_seconds": _seconds(lambda: measures.mean(teacher(data.test, NUM_SAMPLES)).cpu())}


def _of_student(recipe: Recipe, teacher: Teacher, data: Prepared) -> dict[str, Any]:
    try:
        student, seconds = _timed(lambda: distil(recipe, teacher, data))
    except Diverged as error:  # as the exp link may; a row without numbers says so
        return {"diverged": str(error), "recipe": asdict(recipe)}
    inside, *outside = (
        _only(STUDENT_MEASURES, predict_student(student, x)) for x in (data.test, *data.ood.values())
    )
    result = assess(inside, data.test_labels, dict(zip(data.ood, outside, strict=True)))
    timed = {"fit_seconds": seconds, "predict_seconds": _seconds(lambda: student(data.test).mean.cpu())}
    return result | timed | {"recipe": asdict(recipe)}


def _only(wanted: tuple[str, ...], answers: Prediction) -> Prediction:
    return Prediction(answers.probabilities, {m: s for m, s in answers.scores.items() if m in wanted})


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return function(), round(time.perf_counter() - began, 2)


def _seconds(function: Callable[[], Any]) -> float:
    with torch.no_grad():
        return float(f"{median_seconds(function, 5):.3g}")
