"""How long one seed of all MNIST rows takes, alone on a machine: the whole of `opu reproduce mnist`, row by row.

python -m benchmarks.one_seed [--device cuda] [--out results/mnist-one-seed.json]
"""

import argparse
import tempfile
import time
from pathlib import Path

from opu.environment import environment
from opu.experiments.reproduce import reproduce
from opu.files import write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/mnist-one-seed.json"))
    options = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        (record,), _ = reproduce("mnist", Path(folder), seeds=[0], device=options.device)
    seconds = time.perf_counter() - began
    rows = {name: row["seconds"] for name, row in record["rows"].items()}
    write_json(options.out, {"seconds": round(seconds, 1), "rows": rows, "environment": environment()})


if __name__ == "__main__":
    main()
