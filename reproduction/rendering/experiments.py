"""The tables of reproduced experiments, whole for the documents and in short for the README."""

from collections.abc import Callable
from pathlib import Path

from reproduction.rendering.shared import read

# The README shows few of the rows: the divergence that the paper recommends, our own recipe, and the baselines.
SHORT: tuple[str, ...] = ("MCDP-MMD", "OPU-MCDP-MMD (paper)", "OPU-MCDP-MMD (paper-sgd)", "OPU-MCDP (robust)")
SHORT += ("SGLD-MMD", "OPU-SGLD-MMD (paper)", "OPU-SGLD-MMD (paper-sgd)", "OPU-SGLD (robust)")
SHORT += ("BDK-SGLD (online)", "BDK-SGLD (augmented)", "BDK-DIR-SGLD (augmented)", "DPN (VGG)")
SUMMARY: tuple[str, ...] = (
    "MCDP-KL: best of E, P, MI",
    "OPU-MCDP-MMD (paper-sgd): C",
    "OPU-MCDP (robust): N",
    "BDK-MCDP (augmented): E",
)
SUMMARY += (
    "SGLD-KL: best of E, P, MI",
    "OPU-SGLD-MMD (paper-sgd): C",
    "OPU-SGLD (robust): N",
    "BDK-SGLD (augmented): E",
)
SUMMARY += ("DPN (VGG): E", "best trivial detector")

OURS = tuple(f"OPU-{teacher} (robust): N" for teacher in ("MCDP", "SGLD", "ENS"))


def reproduced(table: str, part: str, only: tuple[str, ...] | None = None) -> Callable[[Path], str]:
    """A table of a reproduced experiment, all its rows or some.

    Args:
        table: Of which experiment.
        part: ``beside`` the paper's, ``detection`` by fixed scores, or our recipe less its teachers, the ``goal``.
        only: The rows that are shown, where not all are.
    """

    def render_it(results: Path) -> str:
        from reproduction.paper.table import as_markdown, beside_the_paper, detection, goal

        command = f"opu reproduce {table} --seeds 0,1,2,3,4 --out runs/reproduce, and copy the files it leaves there"
        records = read(results, f"{table}-full-seed*.json", command)
        if part == "beside":
            (times,) = read(results, f"{table}-full-times.json", command)
            header, rows = beside_the_paper(records, times)
        else:
            header, rows = {"detection": detection, "goal": goal}[part](records)
        lines = as_markdown(header, [row for row in rows if only is None or row[0] in only])
        made = records[0]["environment"]
        seeds = ", ".join(str(record["seed"]) for record in records)
        domains = ", ".join(f"`{name}`" for name in dict.fromkeys(record["domain"] for record in records))
        summary = "differences of means" if part == "goal" else "mean ± standard deviation"
        return (
            f"{lines}\n\nDomain {domains}, seeds {seeds}; {summary} over seeds; "
            f"{made['gpu'] or made['cpu']}, torch {made['versions']['torch']}."
        )

    return render_it


def tabular(table: str, part: str) -> Callable[[Path], str]:
    """A table of logistic regression or Gaussian processes: ``beside`` the paper's numbers, ``detection``, and so on."""

    def render_it(results: Path) -> str:
        from reproduction.paper.table import as_markdown
        from reproduction.tabular.table import beside_the_paper, bound, detection, gaps, mixing, speed

        records = read(results, f"{table}-seed*.json", f"opu reproduce {table} --seeds 0,1,2 --out results")
        parts = {"beside": beside_the_paper, "detection": detection, "gaps": gaps, "speed": speed, "bound": bound}
        if part == "mixing":
            return mixing(records)
        environments = [each["environment"] for record in records for each in record["parts"].values()]
        machines = {
            made["gpu"] or f"{made['cpu']}, {made['threads']} thread{'s'[: made['threads'] > 1]}"
            for made in environments
        }
        seeds = {
            data: sum(any(name.startswith(data) for name in record["parts"]) for record in records)
            for data in ("pima", "spambase")
        }
        summary = {"speed": "medians", "bound": "means"}.get(part, "mean ± standard deviation")
        counted = ", ".join(f"{data} {number} seeds" for data, number in seeds.items() if number)
        return f"{as_markdown(*parts[part](records))}\n\n{counted}; {summary}; {'; '.join(sorted(machines))}."

    return render_it


def one_seed_seconds(results: Path) -> str:
    """How long one seed of a table takes, alone on a machine."""
    from reproduction.paper.rows import MNIST

    runs = read(results, "mnist-one-seed*.json", "python -m reproduction.studies.one_seed --device cuda")
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


def rivals(results: Path) -> str:
    """What a user would pick instead, side by side."""
    from reproduction.comparison.table import comparison_table
    from reproduction.paper.table import as_markdown

    records = read(
        results, "rivals-full-seed*.json", "opu run rivals --seeds 0,1,2,3,4 --device cuda --out runs/rivals"
    )
    # Several seeds share a GPU, so that times are of one that had it to itself.
    (alone,) = read(results, "rivals-alone.json", "opu run rivals --seeds 0 --device cuda --out runs/rivals-alone")
    seconds = {row["name"]: row["test_seconds"] for row in alone["rows"]}
    missing = {row["name"] for record in records for row in record["rows"]} - seconds.keys()
    if missing:
        raise ValueError(f"rivals-alone.json has no times of {', '.join(sorted(missing))}; record it again.")
    made = records[0]["environment"]
    seeds = ", ".join(str(record["seed"]) for record in records)
    return (
        f"{as_markdown(*comparison_table(records, seconds))}\n\nSeeds {seeds}; mean ± standard deviation; best of each column "
        "of AUROC in bold; times are of probabilities and all scores of a row, of one seed alone; "
        f"{made['gpu'] or made['cpu']}, torch {made['versions']['torch']}."
    )
