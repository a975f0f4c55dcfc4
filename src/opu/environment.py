"""Where a result comes from: commit, hardware and versions, for every metrics file."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from opu._version import __version__

_PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "safetensors")


def environment() -> dict[str, Any]:
    """What a reader needs to know to repeat a run."""
    return {
        "opu": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.system(),
        "cpu": _cpu(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "versions": {name: metadata.version(name) for name in _PACKAGES},
    }


def _commit() -> str | None:
    """The commit of a source checkout, marked where files differ from it; None for an installed package.

    ``$OPU_COMMIT`` names it for a copy of the sources that was sent elsewhere without its history, or with an older one.
    """
    if named := os.environ.get("OPU_COMMIT"):
        return named
    here = Path(__file__).parent
    try:
        commit = _git(here, "rev-parse", "HEAD")
        return commit + ("-modified" if _git(here, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
