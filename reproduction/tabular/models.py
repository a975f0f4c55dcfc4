"""The rows of tables 3 and 4: a teacher, a baseline, and the teacher's students, on one prepared data set."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from opu import measures
from opu.distillation import Diverged
from opu.evaluation.compare import TEACHER_MEASURES, assess
from opu.prediction import predict_student, predict_teacher
from opu.teachers import GibbsSettings, SGPMCSettings, SVGPSettings, Teacher, polya_gamma, sgpmc, svgp
from opu.timing import median_seconds
from reproduction.agreement import agreement
from reproduction.baselines import compact_approximation
from reproduction.tabular.setups import Prepared, Setup
from reproduction.tabular.students import StudentPlan, distil, plans

NUM_SAMPLES = 500
POOL = 5000
NUM_CHAINS = 2
STUDENT_MEASURES = (*TEACHER_MEASURES, *measures.named("C", "N"))


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
    for added, plan in plans("blr", setup).items():
        rows[f"OPU-PG{added}"] = _of_student(plan, teacher, data)
    mixing = {what: asdict(found) for what, found in pool.diagnostics.items()}
    return {"rows": rows, "mixing": mixing, "settings": asdict(settings)}


def spaced(pool: int, number: int, chains: int) -> Int64[Tensor, " number"]:
    """Places in a pool, in which chains take turns, of evenly spaced draws of every chain."""
    return torch.arange(pool).view(-1, chains)[:: pool // number].flatten()


def run_gp(setup: Setup, data: Prepared) -> dict[str, Any]:
    """SGPMC, SVGP and SGPMC's students."""
    settings = SGPMCSettings(num_samples=NUM_SAMPLES)
    teacher, seconds = _timed(lambda: sgpmc(data.x, data.labels, settings))
    variational, variational_seconds = _timed(lambda: svgp(data.x, data.labels))
    trained = {"training": training(variational.elbo, variational.converged), "fit_seconds": variational_seconds}
    rows = {
        "SGPMC": _of_teacher(teacher, data) | {"fit_seconds": seconds},
        "SVGP": _of_teacher(variational, data) | trained,
    }
    for added, plan in plans("gp", setup).items():
        rows[f"OPU-SGPMC{added}"] = _of_student(plan, teacher, data)
    return {"rows": rows, "mixing": asdict(teacher.mixing), "settings": asdict(settings)}


def training(elbo: Float[Tensor, " T"], converged: bool) -> dict[str, Any]:
    """How the evidence bound per row rose, and whether it had converged when training ended.

    A step sees a batch, whose bound is noisy; training compares averages over windows of steps, and those are kept.
    """
    windows = [float(part.mean()) for part in elbo.split(SVGPSettings().window)]
    return {"elbo": [round(bound, 5) for bound in windows], "steps": len(elbo), "converged": converged}


def _of_teacher(teacher: Teacher, data: Prepared) -> dict[str, Any]:
    inside, *outside = (
        predict_teacher(teacher, x, NUM_SAMPLES).only(TEACHER_MEASURES) for x in (data.test, *data.ood.values())
    )
    result = assess(inside, data.test_labels, dict(zip(data.ood, outside, strict=True)))
    return result | {"predict_seconds": _seconds(lambda: measures.mean(teacher(data.test, NUM_SAMPLES)).cpu())}


def _of_student(plan: StudentPlan, teacher: Teacher, data: Prepared) -> dict[str, Any]:
    try:
        student, seconds = _timed(lambda: distil(plan, teacher, data))
    except Diverged as error:  # as the exp link may; the row then says so and has no numbers
        return {"diverged": str(error), "plan": asdict(plan)}
    inside, *outside = (predict_student(student, x).only(STUDENT_MEASURES) for x in (data.test, *data.ood.values()))
    result = assess(inside, data.test_labels, dict(zip(data.ood, outside, strict=True)))
    timed = {"fit_seconds": seconds, "predict_seconds": _seconds(lambda: student(data.test).mean.cpu())}
    return result | timed | {"plan": asdict(plan), "agreement": agreement(teacher, student, data.test, NUM_SAMPLES)}


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return function(), round(time.perf_counter() - began, 2)


def _seconds(function: Callable[[], Any]) -> float:
    with torch.no_grad():
        return float(f"{median_seconds(function, 5):.3g}")
