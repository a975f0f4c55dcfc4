"""Options that all benchmarks share: sizes, and the file for the numbers.

A benchmark writes under ``runs/``. Only ``--record`` writes to ``results/``, from which the documents' tables are made.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opu.environment import environment
from opu.files import write_json

RESULTS = Path(__file__).parents[1] / "results"


def parse(
    name: str, description: str | None, arguments: Sequence[str] | None, **sizes: int
) -> tuple[dict[str, int], Path]:
    """Read the command line of ``python -m benchmarks.<name>``.

    Args:
        name: Name of the benchmark.
        description: Text above the help.
        arguments: Words of the command line; those of this process by default.
        sizes: Whole numbers by name, with their defaults. Each is an option.

    Returns:
        The sizes, and the file for the numbers.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for size, default in sizes.items():
        parser.add_argument(f"--{size.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--out", type=Path, help=f"file for the numbers (default: runs/bench-{name}.json)")
    parser.add_argument("--record", action="store_true", help=f"write the numbers to results/bench-{name}.json")
    found = vars(parser.parse_args(arguments))
    return {size: found[size] for size in sizes}, destination(name, found["out"], found["record"])


def destination(name: str, out: Path | None, record: bool) -> Path:
    """The file for a benchmark's numbers: ``out`` if given, otherwise under ``runs``, or in ``results`` to record them."""
    if out is not None and record:
        raise ValueError(f"give --out or --record, not both; got --out {out}. --record writes to results/.")
    return out or (RESULTS if record else Path("runs")) / f"bench-{name}.json"


def write(out: Path, result: dict[str, Any]) -> None:
    """Write the numbers together with machine and versions, and say where."""
    write_json(out, {**result, "environment": environment()})
    print(f"Written to {out}.")
