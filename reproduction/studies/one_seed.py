"""How long one seed of all MNIST rows takes, alone on a machine: the whole of `opu reproduce mnist`, row by row.

python -m reproduction.studies.one_seed [--device cuda] [--seed 5] [--rows TEXT ...] [--out results/mnist-one-seed.json]
"""

import argparse
import tempfile
import time
from pathlib import Path

from opu.environment import environment
from opu.files import write_json
from reproduction.paper.reproduce import reproduce


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument(
        "--rows", nargs="+", help="Only rows with one of these texts in their name, such as added ones."
    )
    parser.add_argument("--out", type=Path, default=Path("results/mnist-one-seed.json"))
    options = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        (record,), _ = reproduce("mnist", Path(folder), seeds=[options.seed], rows=options.rows, device=options.device)
    seconds = time.perf_counter() - began
    rows = {name: row["seconds"] for name, row in record["rows"].items()}
    write_json(
        options.out, {"seed": options.seed, "seconds": round(seconds, 1), "rows": rows, "environment": environment()}
    )


if __name__ == "__main__":
    main()
