"""Draws how scores lie, the paper's recipe against ours on the hard sets, from a result file of `opu reproduce mnist-robust`.

python -m reproduction.studies.score_histograms [--record results/mnist-robust-full-seed0.json] [--out docs/images/scores.png]
"""

import argparse
import json
from pathlib import Path

from reproduction.paper.histograms import draw_histograms

SHOWN = [
    ("the paper's recipe", "OPU-MCDP-MMD (paper-sgd)", "negative_log_precision"),
    ("ours", "OPU-MCDP (robust)", "novelty"),
]
HARD = ("omniglot_matched", "letters", "semeion_matched")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, default=Path("results/mnist-robust-full-seed0.json"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/scores.png"))
    options = parser.parse_args()
    draw_histograms(json.loads(options.record.read_text())["rows"], SHOWN, HARD, options.out)


if __name__ == "__main__":
    main()
