"""Which measures should make up the novelty of rows of a table? Judged on tables that no experiment evaluates.

python -m reproduction.studies.tabular_novelty [--seeds 0 1 2] [--teachers polya-gamma gp] [--out results/study-tabular-novelty.json]
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import datasets
from torch import Tensor

from opu import measures
from opu.distributions.dirichlet import Dirichlet
from opu.environment import environment
from opu.evaluation import metrics
from opu.evaluation.compare import TEACHER_MEASURES
from opu.files import write_json
from opu.novelty import negative_log_p
from opu.prediction import predict_teacher
from opu.teachers import GibbsSettings, SGPMCSettings, Teacher, polya_gamma, sgpmc
from reproduction.data.tables import Table
from reproduction.tabular import setups
from reproduction.tabular.students import SOUND, distil

Scores = dict[str, Tensor]


def tables() -> dict[str, Callable[[], Table]]:
    """Two tables that come with scikit-learn and two that are drawn: with normal columns, and with long tails."""

    def loaded(name: str, read: Callable[..., Any]) -> Callable[[], Table]:
        def load() -> Table:
            x, labels = read(return_X_y=True)
            return Table(name, np.asarray(x, np.float64), np.asarray(labels, np.int64))

        return load

    def drawn(name: str, seed: int, tails: bool) -> Callable[[], Table]:
        def load() -> Table:
            x, labels = datasets.make_classification(
                2000, 20, n_informative=8, n_clusters_per_class=3, flip_y=0.08, class_sep=1.2, random_state=seed
            )
            return Table(name, np.exp(x / 2) if tails else x, labels.astype(np.int64))

        return load

    return {
        "breast cancer": loaded("breast cancer", datasets.load_breast_cancer),
        "wine": loaded("wine", datasets.load_wine),
        "drawn": drawn("drawn", 1, tails=False),
        "drawn, long tails": drawn("drawn, long tails", 2, tails=True),
    }


def scores(q: Dirichlet) -> Scores:
    """The measures that may take part."""
    names = ("predictive_entropy", "least_confidence", "mutual_information", "negative_log_precision")
    found = {name: value.double() for name, value in measures.all_measures(q).items() if name in names}
    # How far the log-odds spread: what a linear model's doubt is, whatever its mean says.
    found["log_odds_spread"] = torch.special.polygamma(1, q.concentration.double()).sum(-1).log()
    found["negative_mean_log_concentration"] = -q.log_concentration().mean(-1)
    found["log_odds_volume"] = torch.special.polygamma(1, q.concentration.double()).log().mean(-1)
    return found


def rules(ordinary: Scores, seen: Scores) -> Scores:
    """Candidate scores, from the negative_log_p of each measure among ordinary rows."""
    r = {name: negative_log_p(seen[name], ordinary[name].sort().values) for name in seen}
    e, c, mi, v = (
        r[name] for name in ("predictive_entropy", "negative_log_precision", "mutual_information", "log_odds_spread")
    )
    handicap = np.log(9)
    return {
        **{f"student {name}": value for name, value in seen.items()},
        "max(E, C), C a tenth": torch.maximum(e, c - handicap),
        "max(E, C)": torch.maximum(e, c),
        "max(E, C), E a tenth": torch.maximum(e - handicap, c),
        "max(E, MI)": torch.maximum(e, mi),
        "max(MI, C)": torch.maximum(mi, c),
        "max(MI, C), C a tenth": torch.maximum(mi, c - handicap),
        "max(E, MI, C)": torch.maximum(torch.maximum(e, mi), c),
        "max(E, spread)": torch.maximum(e, v),
        "max(MI, spread)": torch.maximum(mi, v),
        "max(C, spread)": torch.maximum(c, v),
        "max(C, spread), spread a tenth": torch.maximum(c, v - handicap),
        "max(C, spread), E a tenth": torch.maximum(e - np.log(4.5), torch.maximum(c, v)),
        "max(MI, C, spread)": torch.maximum(torch.maximum(mi, c), v),
        "C + spread": c + v,
        "max(E a tenth, C + spread)": torch.maximum(e - handicap, c + v),
        "max(E a tenth, mean log alpha)": torch.maximum(e - handicap, r["negative_mean_log_concentration"]),
        "max(E a tenth, volume)": torch.maximum(e - handicap, r["log_odds_volume"]),
        "max(C, mean log alpha)": torch.maximum(c, r["negative_mean_log_concentration"]),
        "E + C": e + c,
        "E + MI": e + mi,
        "MI + C": mi + c,
        "MI + spread": mi + v,
        "E + spread": e + v,
    }


def one(table: str, kind: str, seed: int) -> dict[str, Any]:
    """AUROC of each candidate on each set of strangers, beside the teacher's measures."""
    torch.manual_seed(seed)
    setup = setups.Setup(table, "sound", "standard")
    data = setups.prepare(setup, seed)
    teacher: Teacher
    if kind == "polya-gamma":
        teacher = polya_gamma(data.x, data.labels, GibbsSettings(num_samples=500, thinning=10))
    else:
        teacher = sgpmc(data.x, data.labels, SGPMCSettings(num_samples=300))
    student = distil(SOUND, teacher, data)
    with torch.no_grad():
        ordinary, inside = (
            scores(student(data.held_out)),
            rules(scores(student(data.held_out)), scores(student(data.test))),
        )
        answers = predict_teacher(teacher, data.test, 300)
        answer = {"table": table, "teacher": kind, "seed": seed, "sets": {}}
        for name, x in data.ood.items():
            outside = rules(ordinary, scores(student(x)))
            theirs = predict_teacher(teacher, x, 300).scores
            found = {rule: _auroc(inside[rule].numpy(), outside[rule].numpy()) for rule in inside}
            found |= {f"teacher {m}": _auroc(answers.scores[m], theirs[m]) for m in TEACHER_MEASURES}
            answer["sets"][name] = found
    return answer


def _auroc(inside: NDArray[np.float64], outside: NDArray[np.float64]) -> float:
    positive = np.repeat([False, True], [len(inside), len(outside)])
    return round(float(metrics.auroc(np.concatenate([inside, outside]), positive)), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--teachers", nargs="+", default=["polya-gamma", "gp"])
    parser.add_argument("--tables", nargs="+", default=list(tables()))
    parser.add_argument("--out", type=Path, default=Path("results/study-tabular-novelty.json"))
    options = parser.parse_args()
    setups.LOADERS |= tables()
    runs = []
    for kind in options.teachers:
        for table in options.tables:
            # With three functions the sampler mixes too slowly to judge by (it warns).
            for seed in [] if (kind, table) == ("gp", "wine") else options.seeds:
                runs.append(one(table, kind, seed))
                print(table, kind, seed, flush=True)
                write_json(options.out, {"runs": runs, "environment": environment()})


if __name__ == "__main__":
    main()
