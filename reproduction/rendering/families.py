"""The tables of families: which one fits a teacher's particles, and how closely students of each follow their teachers."""

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from opu.measures import named
from opu.tables import markdown_table
from reproduction.results import read, read_one

Record = dict[str, Any]
_COMMAND = "python -m reproduction.studies.families --record"
_NAMES = {"dirichlet": "Dirichlet", "logistic_normal": "logistic-normal"}
_TEACHERS = {
    "mc_dropout": "MC dropout",
    "sgld": "SGLD",
    "ensemble": "ensemble of five",
    "PG": "Polya-Gamma",
    "SGPMC": "GP",
}
_FOLLOWED = ["rank correlation of MI", "total variation of the mean", "squared MMD"]
_FOLLOWED += ["coverage of the predicted class by decile, %"]
_OOD = ["OOD, AUROC of E", "of MI", "of N"]


def _mean(values: Iterable[float]) -> float:
    return statistics.mean(values)


def _followed(found: list[Record]) -> list[str]:
    """How closely students follow their teachers, from what :func:`reproduction.agreement.agreement` gives."""
    deciles = [_mean(column) for column in zip(*(each["coverage"]["predicted"] for each in found), strict=True)]
    return [
        f"{_mean(each['rank_correlation']['mutual_information'] for each in found):.3f}",
        f"{_mean(each['total_variation'] for each in found):.4f}",
        f"{_mean(each['squared_mmd'] for each in found):.1e}",
        f"{min(deciles):.0f} to {max(deciles):.0f}",
    ]


_FITS = {
    "dirichlet_maximum_likelihood": "Dirichlet, most likely",
    "dirichlet_minimum_mmd": "Dirichlet, nearest in MMD",
    "dirichlet_mixture": "mixture of three Dirichlets, most likely",
    "logistic_normal_diagonal": "logistic-normal, no factor",
    "logistic_normal_two": "logistic-normal, two factors",
    "logistic_normal": "logistic-normal, four factors",
    "logistic_normal_full": "logistic-normal, full covariance",
    "particles": "the other particles",
}
_DECILES = (1, 4, 7, 9, 10)


def families(results: Path) -> str:
    """How each family fits the particles of the demo's teacher."""
    runs = read_one(results, "study-families.json", _COMMAND)["runs"]
    lines = []
    for name, words in _FITS.items():
        found = [run["comparison"]["families"][name] for run in runs]
        shares = [_mean(each["coverage"][decile - 1] for each in found) for decile in _DECILES]
        numbers = [
            _mean(each[key] for each in found) for key in ("total_variation", "squared_mmd", "mutual_information_error")
        ]
        covered = ", ".join(f"{share:.0f}" for share in shares)
        lines.append([words, covered, f"{numbers[0]:.4f}", f"{numbers[1]:.1e}", f"{numbers[2]:.3f}"])
    deciles = ", ".join(map(str, _DECILES))
    header = [f"coverage of the predicted class, %, deciles {deciles}", "total variation of the mean", "squared MMD"]
    return markdown_table(["fit", *header, "error of MI, decile 10"], lines)


def family_students(results: Path) -> str:
    """What students of each family reach on the demo's digits."""
    runs = read_one(results, "study-families.json", _COMMAND)["runs"]
    lines = []
    for name, words in _NAMES.items():
        found = [run["students"][name] for run in runs]
        ranks = [_mean(each["auroc"][ood][m] for each in found for ood in each["auroc"]) for m in ("E", "MI", "N")]
        cells = [f"{_mean(each['accuracy'] for each in found):.1f}", f"{_mean(each['nll'] for each in found):.3f}"]
        lines.append([words, *cells, *_followed(found), *(f"{rank:.1f}" for rank in ranks)])
    return markdown_table(["student", "accuracy", "NLL", *_FOLLOWED, *_OOD], lines)


def family_recipes(results: Path) -> str:
    """What students of each family reach on held-out MNIST digits, by teacher."""
    command = "python -m reproduction.studies.family_recipes --device cuda, for each teacher"
    runs = read_one(results, "study-family-recipes.json", command)["runs"]
    lines = []
    for teacher, candidate in dict.fromkeys((run["teacher"], run["candidate"]) for run in runs):
        found = [run for run in runs if (run["teacher"], run["candidate"]) == (teacher, candidate)]
        for run in found:
            run["coverage"] = {"predicted": [100 * share for share in run["coverage"]]}
        numbers = [
            f"{_mean(run['accuracy']['student'] for run in found):.2f}",
            f"{_mean(run['nll'] for run in found):.4f}",
        ]
        ood = [_mean(each[symbol] for run in found for each in run["ood"].values()) for symbol in ("E", "MI", "N")]
        shown = [*numbers, *_followed(found), *(f"{each:.1f}" for each in ood)]
        family = "Dirichlet" if candidate == "Dirichlet" else "logistic-normal"
        lines.append([f"{_TEACHERS[teacher]}, {len(found)}", family, *shown])
    return markdown_table(["teacher, seeds", "student", "accuracy", "NLL", *_FOLLOWED, *_OOD], lines)


def family_tests(results: Path) -> str:
    """Students of both families on the test sets of MNIST and EMNIST, by the robust recipe."""
    lines = []
    for table, words in (("mnist", "MNIST"), ("emnist", "EMNIST")):
        command = f"opu reproduce {table}-robust --out runs/reproduce, and copy the files it leaves there"
        records = read(results, f"{table}-robust-full-seed*.json", command)
        for name in dict.fromkeys(name for record in records for name in record["rows"]):
            found = [record["rows"][name] for record in records if "agreement" in record["rows"].get(name, {})]
            if found:
                who = f"{words}, {_TEACHERS[found[0]['row']['teacher']]}, {len(found)}"
                lines.append([who, _NAMES[found[0]["row"]["family"]], *_reached(found)])
    header = ["accuracy", "NLL", "ECE", "errors, AUROC of P"]
    return markdown_table(["data, teacher, seeds", "student", *header, *_FOLLOWED, *_OOD], lines)


def family_tables(results: Path) -> str:
    """Students of both families on Pima and Spambase."""
    lines = []
    for table, teacher in (("blr", "PG"), ("gp", "SGPMC")):
        command = f"opu reproduce {table} --rows standardised --out runs/families, and copy its files under these names"
        records = read(results, f"{table}-families-seed*.json", command)
        for part in ("pima (standardised)", "spambase (standardised)"):
            for added, family in (("", "dirichlet"), (" (logistic-normal)", "logistic_normal")):
                parts = [record["parts"][part] for record in records if part in record["parts"]]
                rows = [each["rows"].get(f"OPU-{teacher}{added}", {}) for each in parts]
                if found := [row for row in rows if "agreement" in row]:
                    who = f"{part.split()[0].capitalize()}, {_TEACHERS[teacher]}, {len(found)}"
                    lines.append([who, _NAMES[family], *_reached(found)])
    header = ["accuracy", "NLL", "ECE", "errors, AUROC of P"]
    return markdown_table(["data, teacher, seeds", "student", *header, *_FOLLOWED, *_OOD], lines)


def _reached(found: list[Record]) -> list[str]:
    """The cells of one student over seeds."""
    (confidence,) = named("P")
    ood = [_mean(each[m]["auroc"] for row in found for each in row["ood"].values()) for m in named("E", "MI", "N")]
    return [
        f"{_mean(row['accuracy'] for row in found):.2f}",
        f"{_mean(row['nll'] for row in found):.4f}",
        f"{_mean(row['ece'] for row in found):.2f}",
        f"{_mean(row['misclassification'][confidence]['auroc'] for row in found):.1f}",
        *_followed([row["agreement"] for row in found]),
        *(f"{each:.1f}" for each in ood),
    ]


def family_costs(results: Path) -> str:
    """How much longer all measures of a logistic-normal take than those of a Dirichlet, by runtime."""
    bench = read_one(results, "bench-families.json", "python -m benchmarks.families --record")
    runtimes = list(dict.fromkeys(name.split(", ")[1] for found in bench["seconds"].values() for name in found))
    lines = []
    for what, found in bench["seconds"].items():
        ratios = [
            found[f"logistic_normal, {runtime}"]["seconds"] / found[f"dirichlet, {runtime}"]["seconds"]
            for runtime in runtimes
        ]
        lines.append([what, *(f"{each:.2f}" for each in ratios)])
    made = bench["environment"]
    machine = f"{made['threads']} threads, {made['cpu']}; medians of {bench['rounds']} timings in turns."
    return f"{markdown_table(['', *runtimes], lines)}\n\n{machine}"


TABLES: dict[str, Callable[[Path], str]] = {
    "family-costs": family_costs,
    "families": families,
    "family-students": family_students,
    "family-recipes": family_recipes,
    "family-tests": family_tests,
    "family-tables": family_tables,
}
