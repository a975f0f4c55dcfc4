"""The tables of experiments: the demo, the paper's tables, and the comparison with other methods."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opu.evaluation.compare import TEACHER_MEASURES
from opu.measures import named
from opu.tables import markdown_table
from reproduction.cells import mean_and_range, number_of
from reproduction.comparison.summary import comparison_table
from reproduction.paper import summary as paper
from reproduction.paper.rows import MNIST
from reproduction.results import read, read_one
from reproduction.tabular import summary as tabular

Record = dict[str, Any]
Part = Callable[[list[Record]], tuple[list[str], list[list[str]]]]
# The short tables hold the divergence that the paper recommends, our own recipe, and the baselines.
_SHORT = (
    *("MCDP-MMD", "OPU-MCDP-MMD (paper)", "OPU-MCDP-MMD (paper-sgd)", "OPU-MCDP (robust)"),
    *("SGLD-MMD", "OPU-SGLD-MMD (paper)", "OPU-SGLD-MMD (paper-sgd)", "OPU-SGLD (robust)"),
    *("BDK-SGLD (online)", "BDK-SGLD (augmented)", "BDK-DIR-SGLD (augmented)", "DPN (VGG)"),
)
_SHORT_DETECTION = (
    *("MCDP-KL: best of E, P, MI", "OPU-MCDP-MMD (paper-sgd): C", "OPU-MCDP (robust): N", "BDK-MCDP (augmented): E"),
    *("SGLD-KL: best of E, P, MI", "OPU-SGLD-MMD (paper-sgd): C", "OPU-SGLD (robust): N", "BDK-SGLD (augmented): E"),
    *("DPN (VGG): E", "best trivial detector"),
)
_OURS = tuple(
    f"OPU-{teacher} ({kind}): N"
    for teacher in ("MCDP", "SGLD", "ENS")
    for kind in ("robust", "robust, logistic-normal")
)


def detection_table(runs: list[Record]) -> str:
    """A student beside its teacher and the best trivial detector, for errors and for each OOD set."""
    header = [f"AUROC, mean of {number_of(len(runs), 'seed')} (range)", "teacher, best of E, P, MI"]
    tasks = {"its own errors": [run["misclassification"] for run in runs]}
    tasks |= {name.replace("_", " "): [run["ood"][name] for run in runs] for name in runs[0]["ood"]}
    lines = [[name, *map(mean_and_range, zip(*map(_aurocs, same), strict=True))] for name, same in tasks.items()]
    return markdown_table([*header, "**student N**", "student E", "student C", "best trivial"], lines)


def _aurocs(task: Record) -> list[float | None]:
    def auroc(model: str, measure: str) -> float | None:
        entry = task[model][measure]
        return None if entry is None else float(entry["auroc"])

    def best(model: str, names: Any) -> float | None:
        values = [value for value in (auroc(model, name) for name in names) if value is not None]
        return max(values, default=None)

    student = [auroc("student", measure) for measure in named("N", "E", "C")]
    return [best("teacher", TEACHER_MEASURES), *student, best("trivial", task["trivial"])]


def accuracies(runs: list[Record]) -> str:
    """Teacher's and student's accuracy in one sentence."""
    teacher, student = (mean_and_range([run["accuracy"][who] for run in runs]) for who in ("teacher", "student"))
    return f"Accuracy: teacher {teacher}, student {student}."


def demo(results: Path) -> str:
    """The demo over several seeds, with accuracy and speed."""
    runs = read(results, "demo-seed*.json", "for s in 0 1 2 3 4; do opu demo --seed $s --out runs/demo-$s; done")
    loop, vectorised = (
        statistics.median(run["speedup"][kind] for run in runs) for kind in ("naive_loop", "vectorised")
    )
    made, particles = runs[0]["environment"], runs[0]["speedup"]["num_particles"]
    return (
        f"{detection_table(runs)}\n\n{accuracies(runs)} One pass of the student is {loop:.0f} times as fast as {particles} "
        f"passes in a loop and {vectorised:.0f} times as fast as the same passes vectorised (medians; "
        f"{number_of(made['threads'], 'thread')}, {made['cpu']})."
    )


def _beside(table: str, only: tuple[str, ...] | None = None) -> Callable[[Path], str]:
    """A table of MNIST or EMNIST beside the paper's numbers, all its rows or some."""

    def render(results: Path) -> str:
        times = read_one(results, f"{table}-full-times.json", _command(table))
        return _paper(table, lambda records: paper.beside_the_paper(records, times), only)(results)

    return render


def _paper(
    table: str, part: Part, only: tuple[str, ...] | None = None, what: str = "mean ± standard deviation"
) -> Callable[[Path], str]:
    """A table of MNIST or EMNIST.

    Args:
        table: Name of the experiment.
        part: From records to header and lines.
        only: Names of the rows that are shown; all by default.
        what: What its numbers are.
    """

    def render(results: Path) -> str:
        records = read(results, f"{table}-full-seed*.json", _command(table))
        header, rows = part(records)
        shown = markdown_table(header, [row for row in rows if only is None or row[0] in only])
        domains = ", ".join(f"`{name}`" for name in dict.fromkeys(record["domain"] for record in records))
        return f"{shown}\n\nDomain {domains}, seeds {_seeds(records)}; {what} over seeds; {_machine(records[0])}."

    return render


def _command(table: str) -> str:
    return f"opu reproduce {table} --seeds 0,1,2,3,4 --out runs/reproduce, and copy the files it leaves there"


def _seeds(records: list[Record]) -> str:
    return ", ".join(str(record["seed"]) for record in records)


def _machine(record: Record) -> str:
    made = record["environment"]
    return f"{made['gpu'] or made['cpu']}, torch {made['versions']['torch']}"


def _tabular(table: str, part: Part, what: str = "mean ± standard deviation") -> Callable[[Path], str]:
    """A table of logistic regression (``blr``) or Gaussian processes (``gp``)."""

    def render(results: Path) -> str:
        records = _tabular_records(results, table)
        made = [each["environment"] for record in records for each in record["parts"].values()]
        machines = {each["gpu"] or f"{each['cpu']}, {number_of(each['threads'], 'thread')}" for each in made}
        seeds = {
            data: sum(any(name.startswith(data) for name in record["parts"]) for record in records)
            for data in ("pima", "spambase")
        }
        counted = ", ".join(f"{data} {number_of(count, 'seed')}" for data, count in seeds.items() if count)
        return f"{markdown_table(*part(records))}\n\n{counted}; {what}; {'; '.join(sorted(machines))}."

    return render


def _mixing(table: str) -> Callable[[Path], str]:
    return lambda results: tabular.mixing(_tabular_records(results, table))


def _tabular_records(results: Path, table: str) -> list[Record]:
    return read(results, f"{table}-seed*.json", _command(table))


def one_seed(results: Path) -> str:
    """How long one seed of MNIST's table takes, alone on a machine."""
    runs = read(results, "mnist-one-seed*.json", "python -m reproduction.studies.one_seed --device cuda --record")
    rows = {name: seconds for run in runs for name, seconds in run["rows"].items()}
    if len(rows) != sum(len(run["rows"]) for run in runs):
        raise ValueError("some rows stand in more than one of the mnist-one-seed*.json files; delete the old files.")
    longest = sorted(rows, key=lambda name: -rows[name])[:3]
    parts = ", ".join(f"{len(run['rows'])} rows in {run['seconds']:.0f} s" for run in runs)
    how_many = "all" if len(rows) == len(MNIST) else f"{len(rows)} of the"
    return (
        f"One seed of {how_many} {len(MNIST)} MNIST rows, alone on one {runs[0]['environment']['gpu']}: "
        f"{sum(run['seconds'] for run in runs):.0f} s{f' ({parts})' if len(runs) > 1 else ''}. "
        "The longest: " + ", ".join(f"{name} ({rows[name]:.0f} s)" for name in longest) + "."
    )


def comparison(results: Path) -> str:
    """Our students beside other methods."""
    records = read(
        results,
        "comparison-full-seed*.json",
        "opu compare --seeds 0,1,2,3,4 --out runs/compare, and copy the files it leaves there",
    )
    alone = read_one(
        results, "comparison-alone.json", "opu compare --seeds 0 --out runs/alone, and copy its file under this name"
    )
    seconds = {row["name"]: row["test_seconds"] for row in alone["rows"]}
    missing = {row["name"] for record in records for row in record["rows"]} - seconds.keys()
    if missing:
        raise ValueError(f"comparison-alone.json has no times of {', '.join(sorted(missing))}; make it again.")
    return (
        f"{markdown_table(*comparison_table(records, seconds))}\n\nSeeds {_seeds(records)}; mean ± standard deviation; "
        "best of each column of AUROC in bold; times are of probabilities and all scores of a row, of one seed alone; "
        f"{_machine(records[0])}."
    )


TABLES: dict[str, Callable[[Path], str]] = {
    "demo": demo,
    "comparison": comparison,
    "mnist-one-seed": one_seed,
    "mnist-beside": _beside("mnist"),
    "mnist-beside-short": _beside("mnist", _SHORT),
    "mnist-detection": _paper("mnist", paper.detection),
    "mnist-detection-short": _paper("mnist", paper.detection, _SHORT_DETECTION),
    "mnist-held-out": _paper("mnist-held-out", paper.detection),
    "mnist-goal": _paper("mnist-robust", paper.goal, what="differences of means"),
    "mnist-goal-short": _paper("mnist-robust", paper.goal, _OURS, "differences of means"),
    "mnist-robust": _paper("mnist-robust", paper.detection),
    "emnist-beside": _beside("emnist"),
    "emnist-detection": _paper("emnist", paper.detection),
    "emnist-held-out": _paper("emnist-held-out", paper.detection),
    "emnist-goal": _paper("emnist-robust", paper.goal, what="differences of means"),
    "emnist-robust": _paper("emnist-robust", paper.detection),
    "blr-beside": _tabular("blr", tabular.beside_the_paper),
    "blr-detection": _tabular("blr", tabular.detection),
    "blr-gaps": _tabular("blr", tabular.gaps),
    "blr-mixing": _mixing("blr"),
    "blr-speed": _tabular("blr", tabular.speed, "medians"),
    "gp-beside": _tabular("gp", tabular.beside_the_paper),
    "gp-detection": _tabular("gp", tabular.detection),
    "gp-gaps": _tabular("gp", tabular.gaps),
    "gp-mixing": _mixing("gp"),
    "gp-bound": _tabular("gp", tabular.bound, "means"),
    "gp-speed": _tabular("gp", tabular.speed, "medians"),
}
