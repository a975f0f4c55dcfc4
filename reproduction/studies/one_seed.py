"""How long one seed of all MNIST rows takes, alone on a machine: the whole of `opu reproduce mnist`, row by row.

python -m reproduction.studies.one_seed [--device cuda] [--seed 5] [--rows TEXT ...] [--record]
"""

import tempfile
import time
from pathlib import Path

from opu.environment import environment
from opu.files import write_json
from reproduction.paper.reproduce import reproduce
from reproduction.studies.options import study_options


def main() -> None:
    """Run the table in a folder that is thrown away, and keep the times."""
    parser = study_options(__doc__, "mnist-one-seed.json")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--rows", nargs="+", help="Only rows whose name contains one of these texts.")
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
