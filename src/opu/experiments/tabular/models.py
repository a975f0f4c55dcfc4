"""The rows of tables 3 and 4: a teacher, its rival, and its student, on one prepared data set."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

import opu
from opu import measures
from opu.baselines import compact_approximation
from opu.evaluate import Answers, assess, student_answers, teacher_answers
from opu.experiments.tabular.setups import Prepared, Setup
from opu.students.links import bounds_for
from opu.teachers import GibbsSettings, SGPMCSettings, Teacher, polya_gamma, sgpmc, svgp
from opu.timing import median_seconds

NUM_SAMPLES = 500
POOL = 5000
HIDDEN = (64, 64)
TEACHER_MEASURES = ("predictive_entropy", "least_confidence", "mutual_information")
STUDENT_MEASURES = (*TEACHER_MEASURES, "negative_log_precision", "novelty")


def run_blr(setup: Setup, data: Prepared) -> dict[str, Any]:
    """Polya-Gamma, CompactApprox and the student."""
    settings = GibbsSettings(
        prior_variance=setup.prior_variance,
        intercept=setup.intercept,
        # The paper's samples are not thinned, as far as it says; ours are.
        thinning=1 if setup.preset == "paper" else 5,
        num_samples=POOL,
        num_chains=2,
    )
    pool, seconds = _timed(lambda: polya_gamma(data.x, data.labels, settings))
    teacher = pool.take(torch.randperm(POOL)[:NUM_SAMPLES].sort().values)
    compact, search_seconds = _timed(lambda: compact_approximation(pool, data.x))
    rows = {
        "PG": _of_teacher(teacher, data) | {"fit_seconds": seconds},
        "CA-PG": _of_teacher(compact, data) | {"fit_seconds": seconds + search_seconds},
        "OPU-PG": _of_student(setup, teacher, data),
    }
    mixing = {what: asdict(found) for what, found in pool.diagnostics.items()}
    return {"rows": rows, "mixing": mixing, "settings": asdict(settings)}


def run_gp(setup: Setup, data: Prepared) -> dict[str, Any]:
    """SGPMC, SVGP and SGPMC's student."""
    settings = SGPMCSettings(num_samples=NUM_SAMPLES)
    teacher, seconds = _timed(lambda: sgpmc(data.x, data.labels, settings))
    rival, rival_seconds = _timed(lambda: svgp(data.x, data.labels))
    rows = {
        "SGPMC": _of_teacher(teacher, data) | {"fit_seconds": seconds},
        "SVGP": _of_teacher(rival, data) | {"fit_seconds": rival_seconds},
        "OPU-SGPMC": _of_student(setup, teacher, data),
    }
    return {"rows": rows, "mixing": asdict(teacher.mixing), "settings": asdict(settings)}


def _of_teacher(teacher: Teacher, data: Prepared) -> dict[str, Any]:
    inside, *outside = (
        _only(TEACHER_MEASURES, teacher_answers(teacher, x, NUM_SAMPLES)) for x in (data.test, *data.foreign.values())
    )
    result = assess(inside, data.test_labels, dict(zip(data.foreign, outside, strict=True)))
    return result | {"predict_seconds": _seconds(lambda: measures.mean(teacher(data.test, NUM_SAMPLES)))}


def _of_student(setup: Setup, teacher: Teacher, data: Prepared) -> dict[str, Any]:
    student, seconds = _timed(lambda: distil(setup, teacher, data))
    inside, *outside = (
        _only(STUDENT_MEASURES, student_answers(student, x)) for x in (data.test, *data.foreign.values())
    )
    result = assess(inside, data.test_labels, dict(zip(data.foreign, outside, strict=True)))
    return result | {"fit_seconds": seconds, "predict_seconds": _seconds(lambda: student(data.test).mean)}


def distil(setup: Setup, teacher: Teacher, data: Prepared) -> nn.Module:
    """A student by the paper's recipe or by ours. The paper says nothing of its network here; this one is ours."""
    num_features = data.x.shape[1]
    if setup.preset == "paper":
        student = opu.students.mlp(num_features, 2, HIDDEN, link="exp")
        opu.distill(
            teacher,
            student,
            data.x,
            objective="kl",
            num_particles=64,
            broaden=None,
            epochs=100,
            batch_size=64,
            schedule="constant",
            updates="alternating",
            held_out=data.held_out,
            progress=False,
        )
        return student
    fitted = opu.maximum_likelihood(teacher(data.x[:500], 200)).log_precision
    student = opu.students.mlp(num_features, 2, HIDDEN, link=bounds_for(fitted))
    student.start_precision_at(float(fitted.median()))
    opu.distill(teacher, student, data.x, batch_size=128, num_particles=64, held_out=data.held_out, progress=False)
    return student


def _only(wanted: tuple[str, ...], answers: Answers) -> Answers:
    return Answers(answers.probabilities, {m: s for m, s in answers.scores.items() if m in wanted})


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return function(), round(time.perf_counter() - began, 2)


def _seconds(function: Callable[[], Any]) -> float:
    with torch.no_grad():
        return float(f"{median_seconds(function, 5):.3g}")
