"""Run tables 3 and 4: every data set, preset and seed in a process of its own; what is there is not made again."""

import json
import multiprocessing
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from threadpoolctl import threadpool_limits

from opu.devices import choose_device
from opu.distillation.run_folder import make_folder
from opu.environment import environment
from opu.evaluation.compare import trivial_detection
from opu.files import plain, rounded, write_json
from opu.terminal import say
from reproduction.tabular import models
from reproduction.tabular.setups import SETUPS, Prepared, Setup, prepare
from reproduction.tabular.students import plans

TEACHER = {"blr": "PG", "gp": "SGPMC"}
RUN: dict[str, Callable[[Setup, Prepared], dict[str, Any]]] = {"blr": models.run_blr, "gp": models.run_gp}


def reproduce_tabular(
    table: str,
    out: Path,
    *,
    seeds: list[int],
    rows: list[str] | None = None,
    quick: bool = False,
    device: str = "auto",
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Run a table for some seeds; return the records, which are also written to ``out``, one file per seed.

    Args:
        table: ``blr`` or ``gp``.
        out: Folder for results; what is there already is not made again.
        seeds: Which seeds.
        rows: Only data sets and presets whose name contains one of these texts, such as ``pima`` or ``standardised``.
        quick: Pima only.
        device: Where Gaussian processes are sampled; logistic regression is sampled on the CPU.
        console: Where progress is printed.
    """
    console = console or Console()
    where = torch.device("cpu") if table == "blr" else choose_device(device)
    chosen = _select(table, rows, quick)
    folder = out / f"{table}-parts"
    make_folder(folder, resume=True)
    todo = [
        (setup, seed) for setup in chosen for seed in dict.fromkeys(seeds) if not _there(folder, table, setup, seed)
    ]
    # Long ones first, so that no core waits at the end.
    todo.sort(key=lambda each: each[0].data != "spambase")
    for number, (setup, seed, seconds) in enumerate(_all(table, todo, folder, where), 1):
        say(console, f"{number} of {len(todo)}: {setup.name}, seed {seed} ({seconds:.0f} s)")
    return [_record(table, folder, seed, out) for seed in dict.fromkeys(seeds)]


def _all(
    table: str, todo: list[tuple[Setup, int]], folder: Path, where: torch.device
) -> Iterator[tuple[Setup, int, float]]:
    """Every part as it is done, one process with one thread for each core."""
    workers = min(len(todo), os.cpu_count() or 1)
    if workers <= 1:
        for setup, seed in todo:
            yield setup, seed, _one(table, setup, seed, folder, where)
        return
    with worker_pool(workers) as pool:
        running = {pool.submit(_one, table, setup, seed, folder, where): (setup, seed) for setup, seed in todo}
        for done in as_completed(running):
            yield *running[done], done.result()


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """Processes with one thread each, which end when this process does, however it ends."""
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _prepare_worker)


def _prepare_worker() -> None:
    # Two processes with two threads each starve one another; numpy's threads are not torch's.
    threadpool_limits(1)
    torch.set_num_threads(1)
    # A worker whose parent is killed would wait for work for ever.
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _one(table: str, setup: Setup, seed: int, folder: Path, where: torch.device) -> float:
    began = time.perf_counter()
    torch.manual_seed(seed)
    data = prepare(setup, seed).to(where)
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always")
        result = RUN[table](setup, data)
    result |= {
        "setup": asdict(setup),
        "seed": seed,
        "num_test": len(data.test),
        "trivial": trivial_detection(data.test, data.ood, data.x),
        "warnings": sorted({str(each.message) for each in noticed if each.category is UserWarning}),
        "environment": environment(),
    }
    write_json(_path(folder, setup, seed), rounded(result))
    return time.perf_counter() - began


def _select(table: str, wanted: list[str] | None, quick: bool) -> list[Setup]:
    setups = [setup for setup in SETUPS[table] if not quick or setup.data == "pima"]
    if not wanted:
        return setups
    for text in wanted:
        if not any(text.lower() in setup.name for setup in setups):
            names = ", ".join(setup.name for setup in setups)
            raise ValueError(
                f"no part of {table} has {text!r} in its name; the parts, each with all its rows, are {names}."
            )
    return [setup for setup in setups if any(text.lower() in setup.name for text in wanted)]


def _there(folder: Path, table: str, setup: Setup, seed: int) -> bool:
    """Whether a part was made before; one of other settings must not be mixed with new ones."""
    path = _path(folder, setup, seed)
    if not path.exists():
        return False
    old = json.loads(path.read_text())
    wanted = {f"OPU-{TEACHER[table]}{added}": asdict(plan) for added, plan in plans(table, setup).items()}
    made = {name: old["rows"].get(name, {}).get("plan") for name in wanted}
    if (old["setup"], made) != (plain(rounded(asdict(setup))), plain(rounded(wanted))):
        raise ValueError(f"{path} was made with other settings; choose another --out, or delete that file.")
    return True


def _path(folder: Path, setup: Setup, seed: int) -> Path:
    return folder / f"{setup.data}-{setup.preset}-seed{seed}.json"


def _record(table: str, folder: Path, seed: int, out: Path) -> dict[str, Any]:
    paths = {setup.name: _path(folder, setup, seed) for setup in SETUPS[table]}
    parts = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    record = {"table": table, "seed": seed, "parts": parts}
    write_json(out / f"{table}-seed{seed}.json", record)
    return record
