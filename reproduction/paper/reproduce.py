"""Run a table: every row for every seed, each result kept when it is there, so that a stopped run goes on."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from opu import measures
from opu.devices import choose_device
from opu.distillation import Diverged
from opu.distillation.run_folder import make_folder
from opu.distributions.dirichlet import Dirichlet
from opu.distributions.pointwise import maximum_likelihood, minimum_mmd
from opu.environment import environment
from opu.evaluation.compare import TEACHER_MEASURES, assess, trivial_detection
from opu.files import plain, rounded, write_json
from opu.prediction import Prediction, predict_student
from opu.teachers import LangevinSettings, Teacher
from opu.terminal import say
from reproduction.agreement import agreement
from reproduction.paper import times
from reproduction.paper.domains import DOMAINS, Domain, held_out_classes, with_photographs
from reproduction.paper.histograms import count_scores
from reproduction.paper.models import Models, Scale, slug
from reproduction.paper.pointwise_sinkhorn import minimum_sinkhorn
from reproduction.paper.presets import PRESETS
from reproduction.paper.rows import HELD_OUT, ROBUST_TABLE, TABLES, Row, select
from reproduction.settings import keep_settings

# Fitting the best Dirichlet of each input costs most of all rows, so no more inputs of our own sets are fitted than these.
# The teacher's other measures are taken on all. The paper's sets are whole, since AUPR depends on their size.
MOST_POINTWISE = 2000
WHOLE = ("test", "omniglot", "semeion")
FULL = {"mnist": Scale(), "emnist": Scale(teacher_epochs=20, fraction_of_epochs=0.5)}
QUICK = {
    "mnist": Scale(
        "quick",
        teacher_epochs=20,
        langevin=LangevinSettings(
            first_step=2e-5, last_step=1e-5, batch_size=128, burn_in=2000, thinning=10, num_samples=100
        ),
        num_particles=60,
        hidden=(200, 200),
        epochs=5,
        step_particles=10,
        prior_network_epochs=2,
        vgg_channels=(8, 16),
        transport_steps=20,
        transport_points=16,
    ),
    "emnist": Scale("quick", teacher_epochs=12, num_particles=30, epochs=2, step_particles=8),
}
# Number of inputs for training, for testing, and in each OOD set.
QUICK_SIZES = {"mnist": (10_000, 1000, 300), "emnist": (6000, 600, 200)}


def reproduce(
    table: str,
    out: Path,
    *,
    seeds: list[int],
    rows: list[str] | None = None,
    device: str = "auto",
    quick: bool = False,
    console: Console | None = None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run the rows of a table for some seeds; return the results, which are also written to ``out``, one file per seed.

    The second value is how long the test set takes. It is measured once, and for the paper's tables alone: our variants of
    them have the same networks.

    Args:
        table: One of :data:`reproduction.paper.rows.TABLES`.
        out: Folder for results, models and logs; rows that are there already are not made again.
        seeds: Which seeds.
        rows: Only rows whose name contains one of these texts.
        device: ``cpu``, ``cuda`` or ``auto``.
        quick: A small version for two CPU cores.
        console: Where progress is printed.
    """
    console = console or Console()
    chosen = select(table, rows)
    where = choose_device(device)
    make_folder(out, resume=True)
    whole = table.removesuffix(HELD_OUT).removesuffix(ROBUST_TABLE)
    domain = with_photographs(DOMAINS[whole]()) if table.endswith(ROBUST_TABLE) else DOMAINS[whole]()
    if domain.name == "emnist-bymerge47":
        say(
            console,
            "EMNIST Balanced, on which the paper's numbers are, is not here: this runs on emnist-bymerge47, a fixed split of "
            "ByMerge's test part with the same classes. `opu data fetch emnist-balanced` gets the other.",
        )
    scale = (QUICK if quick else FULL)[whole]
    if quick:
        domain = domain.small(*QUICK_SIZES[whole])
    records = []
    for seed in dict.fromkeys(seeds):
        of_seed = held_out_classes(domain, seed) if table.endswith(HELD_OUT) else domain
        records.append(_one_seed(table, of_seed.to(where), scale, seed, chosen, out, where, console))
    if table != whole:  # the same networks as the whole table's, where they are timed
        return records, {}
    # Last, when nothing else runs.
    shown = [row["row"] for record in records for row in record["rows"].values()]
    wanted = {row[key] for row in shown for key in ("kind", "teacher")}
    seconds = times.measure(Models(domain.to(where), scale, 0, out, where), wanted)
    path = out / f"{table}-{scale.name}-times.json"
    if path.exists():  # what was not timed now stays as it was
        seconds["seconds"] = json.loads(path.read_text())["seconds"] | seconds["seconds"]
    write_json(path, seconds)
    return records, seconds


def _one_seed(
    table: str,
    domain: Domain,
    scale: Scale,
    seed: int,
    rows: list[Row],
    out: Path,
    device: torch.device,
    console: Console,
) -> dict[str, Any]:
    folder = out / f"{table}-{scale.name}-seed{seed}"
    models = Models(domain, scale, seed, folder, device, progress=console.is_terminal)
    sizes = {"name": domain.name, "inputs": len(domain.x), "test": len(domain.test)}
    presets = {name: asdict(preset) for name, preset in PRESETS.items()}
    keep_settings(folder / "settings.json", {"scale": asdict(scale), "presets": presets, "domain": sizes})
    for number, row in enumerate((row.for_classes(domain.num_classes) for row in rows), 1):
        path = folder / f"{slug(row.name)}.json"
        if path.exists():
            _refuse_other_row(path, row)
            continue
        began = time.perf_counter()
        try:
            result = _run_row(row, models, in_detail=table.endswith(ROBUST_TABLE))
        except Diverged as error:
            say(console, f"seed {seed}, row {number} of {len(rows)}: {row.name} has no result: {error}")
            continue
        result |= {"seconds": round(time.perf_counter() - began, 1), "commit": environment()["commit"]}
        write_json(path, result)
        say(console, f"seed {seed}, row {number} of {len(rows)}: {row.name} ({result['seconds']:.0f} s)")
    record = {
        "table": table,
        "domain": domain.name,
        "scale": plain(asdict(scale)),
        "seed": seed,
        "rows": _results(table, folder),
        "trivial": _three_decimals(trivial_detection(domain.test, domain.ood, domain.held_out)),
        "environment": environment(),
    }
    write_json(out / f"{table}-{scale.name}-seed{seed}.json", record)
    return record


def _results(table: str, folder: Path) -> dict[str, Any]:
    """All rows that were ever finished in a folder, in the order of the table."""
    paths = {row.name: folder / f"{slug(row.name)}.json" for row in TABLES[table]}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def _refuse_other_row(path: Path, row: Row) -> None:
    if json.loads(path.read_text())["row"] != asdict(row):
        raise ValueError(f"{path} holds the same row with other settings; choose another --out, or delete that file.")


def _run_row(row: Row, models: Models, in_detail: bool = False) -> dict[str, Any]:
    """What a row reaches; in detail also how our student follows its teacher, and how its scores are spread."""
    domain = models.domain
    sets = {"test": domain.test, **domain.ood}
    if row.kind == "pointwise":
        teacher = models.teacher(row.teacher)
        if row.preset:  # the particles as that preset sees them
            teacher = models.scale.preset(row.preset).seen(teacher, row.divergence)
        torch.manual_seed(2000 + models.seed)
        fit = _fit(row.divergence, models.scale)
        predictions = _pointwise(teacher, sets, fit, models.scale.num_particles)
    else:
        student = models.make(row)
        predictions = {name: predict_student(student, x) for name, x in sets.items()}
    wanted = _MEASURES.get(row.kind, measures.named("E", "P", "C", "D", "MI", "N"))
    inside, *outside = (predictions[name].only(wanted) for name in sets)
    result = assess(inside, domain.test_labels, dict(zip(domain.ood, outside, strict=True)))
    detail = {}
    if in_detail and row.kind == "opu":
        result["histograms"] = count_scores(inside, dict(zip(domain.ood, outside, strict=True)))
        followed = agreement(models.teacher(row.teacher), student, domain.test, models.scale.num_particles)
        detail["agreement"] = rounded(followed)
    found: dict[str, Any] = _three_decimals(result) | detail
    preset = {"preset": asdict(models.scale.preset(row.preset))} if row.preset else {}
    return found | {"row": asdict(row)} | preset


# A categorical student has no precision, and a fit to the teacher's particles has no novelty.
_FITTED = measures.named("D", "C")
_MEASURES = {
    "pointwise": (*TEACHER_MEASURES, *_FITTED),
    "bdk": measures.named("E", "P"),
    "bdk_online": measures.named("E", "P"),
}


Fit = Callable[[Tensor], Dirichlet]


def _fit(divergence: str, scale: Scale) -> Fit:
    if divergence == "emd":
        return partial(minimum_sinkhorn, num_steps=scale.transport_steps, num_points=scale.transport_points)
    return maximum_likelihood if divergence == "kl" else minimum_mmd


@torch.no_grad()
def _pointwise(teacher: Teacher, sets: dict[str, Tensor], fit: Fit, num_particles: int) -> dict[str, Prediction]:
    """The teacher's own measures, and differential entropy and precision of the best Dirichlets of some inputs."""
    parts, scores = [], []
    wanted = torch.cat([torch.arange(len(x)) < (len(x) if n in WHOLE else MOST_POINTWISE) for n, x in sets.items()])
    # All sets one after another: a GPU takes hardly longer for ten thousand inputs than for one thousand.
    x = torch.cat(list(sets.values()))
    size = 10_000 if x.is_cuda else 500
    for part, fitted in zip(x.split(size), wanted.to(x.device).split(size), strict=True):
        log_particles = teacher(part, num_particles)
        table = torch.full((len(_MEASURES["pointwise"]), len(part)), torch.nan, dtype=torch.float64, device=x.device)
        table[:3] = torch.stack([measures.MEASURES[name](log_particles) for name in TEACHER_MEASURES])
        if bool(fitted.any()):
            best = fit(log_particles[:, fitted])
            table[3:, fitted] = torch.stack([measures.MEASURES[name](best) for name in _FITTED]).double()
        parts.append(measures.mean(log_particles).cpu())
        scores.append(table.cpu())
    sizes = [len(each) for each in sets.values()]
    pieces = zip(*(each.split(sizes, -1) for each in (torch.cat(scores, 1), wanted)), strict=True)
    tables = [[*table[:3].numpy(), *table[3:, fitted].numpy()] for table, fitted in pieces]
    found = zip(sets, torch.cat(parts).split(sizes), tables, strict=True)
    return {
        name: Prediction(p.numpy(), dict(zip(_MEASURES["pointwise"], table, strict=True))) for name, p, table in found
    }


def _three_decimals(value: Any) -> Any:
    """Nested dicts with three decimals, as many as the published result files have."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: _three_decimals(each) for key, each in value.items()}
    return value
