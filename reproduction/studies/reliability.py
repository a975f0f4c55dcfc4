"""How often the library's promises are broken, by attacks on files, processes, threads, scores and numbers.

It needs the extras "onnx" and "tables". To attack an older version, put these files beside its sources and set PYTHONPATH
and OPU_COMMIT; ``results/study-reliability-before.json`` was made so, in parts, with --only.

python -m reproduction.studies.reliability [--record] [--only kills,ties]
"""

import warnings
from dataclasses import asdict

import torch

from opu.environment import environment
from opu.files import write_json
from reproduction.reliability import command_line, inputs, numbers, processes, resuming, scores
from reproduction.studies.options import study_options

ROOMS = (scores, inputs, resuming, processes, command_line, numbers)
ATTACKS = {attack.__name__: attack for room in ROOMS for attack in room.ATTACKS}


def main() -> None:
    """Run every attack, and write down cases and failures."""
    parser = study_options(__doc__, "study-reliability.json")
    parser.add_argument("--only", default="", help="Names of attacks, with commas between them; all by default.")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(ATTACKS)
    if unknown := [name for name in names if name not in ATTACKS]:
        parser.error(f"unknown attack {unknown[0]!r}; those that exist are {', '.join(ATTACKS)}.")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = []
    for name in names:
        torch.manual_seed(0)
        for outcome in ATTACKS[name]():
            print(f"{outcome.promise}: {outcome.broken} of {outcome.cases}", flush=True)
            found.append({"attack": name, **asdict(outcome)})
        write_json(options.out, {"outcomes": found, "environment": environment()})


if __name__ == "__main__":
    main()
