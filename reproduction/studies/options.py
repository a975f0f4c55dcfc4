"""Options that all studies share."""

import argparse
from pathlib import Path


def study_options(description: str | None, file: str) -> argparse.ArgumentParser:
    """A parser with ``--out``, and with ``--record`` for the file in ``results/``.

    Args:
        description: The docstring of the study.
        file: Name of the result file.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs, results = Path("runs") / file, Path("results") / file
    parser.add_argument("--out", type=Path, default=runs, help=f"File for the result; {runs} by default.")
    help_record = f"Write to {results}, which the documents' tables are rendered from."
    parser.add_argument("--record", dest="out", action="store_const", const=results, help=help_record)
    return parser
