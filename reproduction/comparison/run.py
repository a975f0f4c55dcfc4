"""``opu compare``: every method on MNIST. Each result is kept when it is there, so that a stopped run goes on."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from opu.checks import optional
from opu.devices import choose_device
from opu.distillation.run_folder import make_folder
from opu.environment import environment
from opu.evaluation.compare import assess, trivial_detection
from opu.files import rounded, write_json
from opu.objectives import default
from opu.prediction import Prediction, as_arrays
from opu.terminal import say
from opu.timing import median_seconds
from reproduction.comparison.methods import METHODS, Fitted, Method
from reproduction.paper.domains import Domain, mnist, with_photographs
from reproduction.paper.models import Models, slug
from reproduction.paper.presets import PRESETS
from reproduction.paper.reproduce import FULL, QUICK, QUICK_SIZES
from reproduction.settings import keep_settings

BATCH_SIZE = 2000


def run_comparison(
    out: Path,
    *,
    seeds: list[int],
    rows: list[str] | None = None,
    device: str = "auto",
    quick: bool = False,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Fit and evaluate the methods for some seeds; return the records, which are also written to ``out``.

    Args:
        out: Folder for results; what is there already is not made again.
        seeds: Which seeds.
        rows: Only methods whose name contains one of these texts.
        device: ``cpu``, ``cuda`` or ``auto``.
        quick: A small version for two CPU cores.
        console: Where progress is printed.
    """
    console = console or Console()
    methods, where = _select(rows), choose_device(device)
    if any("Laplace" in method.name for method in methods):
        optional("laplace", "a last-layer Laplace approximation", "laplace")  # before the work
    make_folder(out, resume=True)
    domain = with_photographs(mnist())
    if quick:
        domain = domain.small(*QUICK_SIZES["mnist"])
    return [_one_seed(domain.to(where), seed, methods, out, where, quick, console) for seed in dict.fromkeys(seeds)]


def _one_seed(
    domain: Domain, seed: int, methods: list[Method], out: Path, device: torch.device, quick: bool, console: Console
) -> dict[str, Any]:
    scale = (QUICK if quick else FULL)["mnist"]
    name = f"comparison-{scale.name}-seed{seed}"
    folder = out / name
    make_folder(folder, resume=True)
    presets = {name: asdict(PRESETS[name]) for name in ("robust", "bdk-mcdp")}
    settings = {"recipe": default(domain.num_classes), "scale": asdict(scale), "presets": presets}
    keep_settings(folder / "settings.json", settings)
    models = Models(domain, scale, seed, folder, device, progress=console.is_terminal)
    for number, method in enumerate(methods, 1):
        path = folder / f"{slug(method.name)}.json"
        if path.exists():
            continue
        began = time.perf_counter()
        scores = {"error_score": method.error_score, "ood_score": method.ood_score}
        write_json(path, {**_evaluate(method, models), "name": method.name, **scores})
        say(console, f"seed {seed}, {number} of {len(methods)}: {method.name} ({time.perf_counter() - began:.0f} s)")
    paths = [folder / f"{slug(method.name)}.json" for method in METHODS]
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


def _evaluate(method: Method, models: Models) -> dict[str, Any]:
    fitted, domain = method.fit(models), models.domain
    inside, *outside = (_predict(fitted, x) for x in (domain.test, *domain.ood.values()))
    result = assess(inside, domain.test_labels, dict(zip(domain.ood, outside, strict=True)))
    seconds = median_seconds(lambda: _predict(fitted, domain.test), 3)
    costs = {"test_seconds": float(f"{seconds:.3g}"), "num_parameters": fitted.num_parameters}
    found: dict[str, Any] = rounded({**result, **costs})
    return found


@torch.no_grad()
def _predict(fitted: Fitted, x: Tensor) -> Prediction:
    torch.manual_seed(0)  # some methods draw samples, and a run that goes on must see the same
    parts = [fitted.predict(part) for part in x.split(BATCH_SIZE)]
    probabilities = torch.cat([p for p, _ in parts]).cpu().numpy()
    # All scores are kept, though the table shows those that were fixed in advance.
    return Prediction(probabilities, as_arrays({name: torch.cat([s[name] for _, s in parts]) for name in parts[0][1]}))


def _select(wanted: list[str] | None) -> list[Method]:
    for text in wanted or []:
        if not any(text.lower() in method.name.lower() for method in METHODS):
            names = "; ".join(method.name for method in METHODS)
            raise ValueError(f"no method has {text!r} in its name; they are {names}.")
    return [m for m in METHODS if not wanted or any(text.lower() in m.name.lower() for text in wanted)]
