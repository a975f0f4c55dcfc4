"""Which measures should make up the novelty of rows of a table? Judged on tables that no experiment evaluates.

python -m reproduction.studies.tabular_novelty [--seeds 0 1 2] [--teachers polya-gamma gp] [--record]
"""

from collections.abc import Callable
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
from opu.prediction import predict_teacher
from opu.ranks import negative_log_p
from opu.teachers import GibbsSettings, SGPMCSettings, Teacher, polya_gamma, sgpmc
from reproduction.data.tables import Table
from reproduction.studies.options import study_options
from reproduction.tabular.setups import Setup, prepare
from reproduction.tabular.students import STANDARDISED, distil

Scores = dict[str, Tensor]
MEASURES = measures.named("E", "P", "C", "MI")


def _loaded(name: str, read: Callable[..., Any]) -> Callable[[], Table]:
    def load() -> Table:
        x, labels = read(return_X_y=True)
        return Table(name, np.asarray(x, np.float64), np.asarray(labels, np.int64))

    return load


def _drawn(name: str, seed: int, tails: bool) -> Callable[[], Table]:
    def load() -> Table:
        x, labels = datasets.make_classification(
            2000, 20, n_informative=8, n_clusters_per_class=3, flip_y=0.08, class_sep=1.2, random_state=seed
        )
        return Table(name, np.exp(x / 2) if tails else x, labels.astype(np.int64))

    return load


# Two tables that come with scikit-learn and two that are drawn: with normal columns, and with long tails.
TABLES = {
    "breast cancer": _loaded("breast cancer", datasets.load_breast_cancer),
    "wine": _loaded("wine", datasets.load_wine),
    "drawn": _drawn("drawn", 1, tails=False),
    "drawn, long tails": _drawn("drawn, long tails", 2, tails=True),
}


def scores(q: Dirichlet) -> Scores:
    """The measures that may take part."""
    found = {name: measures.MEASURES[name](q).double() for name in MEASURES}
    # How far the log-odds spread: the uncertainty of a linear model, whatever its mean says.
    spread = torch.special.polygamma(1, q.concentration.double())
    found["log_odds_spread"] = spread.sum(-1).log()
    found["negative_mean_log_concentration"] = -q.log_concentration().mean(-1)
    found["log_odds_volume"] = spread.log().mean(-1)
    return found


def rules(calibration: Scores, seen: Scores) -> Scores:
    """Candidate scores, from -log p of each measure among calibration rows."""
    r = {name: negative_log_p(seen[name], calibration[name].sort().values) for name in seen}
    e, c, mi, v = (r[name] for name in (*measures.named("E", "C", "MI"), "log_odds_spread"))
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
    """AUROC of each candidate on each OOD set, beside the teacher's measures."""
    torch.manual_seed(seed)
    data = prepare(Setup(table, "standardised", "standard"), seed, TABLES[table]())
    teacher: Teacher
    if kind == "polya-gamma":
        teacher = polya_gamma(data.x, data.labels, GibbsSettings(num_samples=500, thinning=10))
    else:
        teacher = sgpmc(data.x, data.labels, SGPMCSettings(num_samples=300))
    student = distil(STANDARDISED, teacher, data)
    sets = {}
    with torch.no_grad():
        calibration = scores(student(data.held_out))
        inside = rules(calibration, scores(student(data.test)))
        theirs_inside = predict_teacher(teacher, data.test, 300).scores
        for name, x in data.ood.items():
            outside = rules(calibration, scores(student(x)))
            theirs = predict_teacher(teacher, x, 300).scores
            found = {rule: _auroc(inside[rule].numpy(), outside[rule].numpy()) for rule in inside}
            sets[name] = found | {f"teacher {m}": _auroc(theirs_inside[m], theirs[m]) for m in TEACHER_MEASURES}
    return {"table": table, "teacher": kind, "seed": seed, "sets": sets}


def _auroc(inside: NDArray[np.float64], outside: NDArray[np.float64]) -> float:
    positive = np.repeat([False, True], [len(inside), len(outside)])
    return round(float(metrics.auroc(np.concatenate([inside, outside]), positive)), 2)


def main() -> None:
    """Run every teacher, table and seed."""
    parser = study_options(__doc__, "study-tabular-novelty.json")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--teachers", nargs="+", default=["polya-gamma", "gp"])
    parser.add_argument("--tables", nargs="+", default=list(TABLES))
    options = parser.parse_args()
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
