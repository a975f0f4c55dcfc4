"""`opu run rivals`: every rival on MNIST, each result kept when it is there, so that a stopped run goes on."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from opu.distillation.run_folder import make_folder
from opu.environment import environment
from opu.evaluation.compare import assess, trivial_detection
from opu.files import plain, rounded, write_json
from opu.objectives import default
from opu.prediction import Prediction
from opu.timing import median_seconds
from reproduction.comparison import laplace
from reproduction.comparison.methods import METHODS, Fitted, Method
from reproduction.paper.domains import Domain, mnist, with_photographs
from reproduction.paper.models import Models, Scale, slug
from reproduction.paper.presets import PRESETS
from reproduction.paper.reproduce import FULL, QUICK, QUICK_SIZES, chosen_device

ROWS_AT_ONCE = 2000


def run_comparison(
    out: Path,
    *,
    seeds: list[int],
    rows: list[str] | None = None,
    device: str = "auto",
    quick: bool = False,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Fit and judge the rivals for some seeds; the records, which also lie in ``out`` as one file per seed.

    Args:
        out: Folder for results; what is there already is not made again.
        seeds: Which seeds.
        rows: Only rivals with one of these texts in their name.
        device: ``cpu``, ``cuda`` or ``auto``.
        quick: A small version for two CPU cores.
        console: Where to say how far it is.
    """
    console = console or Console()
    chosen, where = _select(rows), chosen_device(device)
    if any("Laplace" in rival.name for rival in chosen):
        laplace.required()  # before the work
    make_folder(out, resume=True)
    domain = with_photographs(mnist())
    if quick:
        domain = domain.small(*QUICK_SIZES["mnist"])
    return [_one_seed(domain.to(where), seed, chosen, out, where, quick, console) for seed in dict.fromkeys(seeds)]


def _one_seed(
    domain: Domain, seed: int, rivals: list[Method], out: Path, device: torch.device, quick: bool, console: Console
) -> dict[str, Any]:
    scale = (QUICK if quick else FULL)["mnist"]
    name = f"rivals-{scale.name}-seed{seed}"
    folder = out / name
    make_folder(folder, resume=True)
    _refuse_other_settings(folder, scale)
    models = Models(domain, scale, seed, folder, device, progress=console.is_terminal)
    for number, rival in enumerate(rivals, 1):
        path = folder / f"{slug(rival.name)}.json"
        if path.exists():
            continue
        began = time.perf_counter()
        result = _judge(rival, models)
        write_json(path, {**result, "name": rival.name, "errors": rival.errors, "strangers": rival.strangers})
        console.print(f"seed {seed}, {number} of {len(rivals)}: {rival.name} ({time.perf_counter() - began:.0f} s)")
    paths = [folder / f"{slug(rival.name)}.json" for rival in METHODS]
    record = {
        "seed": seed,
        "domain": domain.name,
        "scale": scale.name,
        "recipe": default(domain.num_classes),
        "rows": [json.loads(path.read_text()) for path in paths if path.exists()],
        "trivial": rounded(trivial_detection(domain.test, domain.ood, domain.held_out)),
        "environment": environment(),
    }
    write_json(out / f"{name}.json", record)
    return record


def _judge(rival: Method, models: Models) -> dict[str, Any]:
    fitted, domain = rival.fit(models), models.domain
    inside, *outside = (_answers(fitted, x) for x in (domain.test, *domain.ood.values()))
    result = assess(inside, domain.test_labels, dict(zip(domain.ood, outside, strict=True)))
    seconds = median_seconds(lambda: _answers(fitted, domain.test), 3)
    costs = {"test_seconds": float(f"{seconds:.3g}"), "num_parameters": fitted.num_parameters}
    answer: dict[str, Any] = rounded({**result, **costs})
    return answer


@torch.no_grad()
def _answers(fitted: Fitted, x: Tensor) -> Prediction:
    torch.manual_seed(0)  # of those that draw samples, so that a run that goes on sees the same
    parts = [fitted.answer(part) for part in x.split(ROWS_AT_ONCE)]
    probabilities = torch.cat([p for p, _ in parts]).cpu()
    # All of them, though the table shows those that were fixed.
    scores = {name: torch.cat([s[name] for _, s in parts]).double().cpu().numpy() for name in parts[0][1]}
    return Prediction(probabilities, scores)


def _select(wanted: list[str] | None) -> list[Method]:
    for text in wanted or []:
        if not any(text.lower() in rival.name.lower() for rival in METHODS):
            names = "; ".join(rival.name for rival in METHODS)
            raise ValueError(f"no rival has {text!r} in its name; they are {names}.")
    return [r for r in METHODS if not wanted or any(text.lower() in r.name.lower() for text in wanted)]


def _refuse_other_settings(folder: Path, scale: Scale) -> None:
    presets = {name: asdict(PRESETS[name]) for name in ("robust", "bdk-mcdp")}
    settings = plain({"recipe": default(10), "scale": asdict(scale), "presets": presets})
    path = folder / "settings.json"
    if path.exists() and json.loads(path.read_text()) != settings:
        raise ValueError(f"{folder} holds rivals of other settings; choose another --out, or delete that folder.")
    write_json(path, settings)
