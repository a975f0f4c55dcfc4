"""`opu fit` and `opu predict`: from a table to a run folder with a classifier, and from that to predictions."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from sklearn.model_selection import StratifiedKFold

from opu import measures, plotting
from opu.choices import TABLE_TEACHERS, TableTeacher, check_choice
from opu.distillation.outcome import keep_evaluation
from opu.distillation.run_folder import make_folder
from opu.environment import environment
from opu.evaluation import metrics
from opu.files import write_atomically, write_json
from opu.sklearn.classifier import OnePassClassifier
from opu.sklearn.frames import MOST_CATEGORIES, Encoding, read_frame, require_pandas

LEVEL = 0.9
(ENTROPY,) = measures.named("E")


def fit_table(
    data: Path,
    target: str,
    out: Path,
    *,
    teacher: TableTeacher = "polya-gamma",
    folds: int = 5,
    seed: int = 0,
    header: bool = True,
    console: Console,
) -> dict[str, Any]:
    """Cross-validate a classifier on a table, fit it to all rows, and write the run folder; returns the metrics."""
    check_choice("--teacher", teacher, TABLE_TEACHERS)
    frame = read_frame(data, header=header)
    encoding, notes = Encoding.of(frame, target)
    x, labels = encoding.matrix(frame), _labels(frame[target])
    make_folder(out)
    for note in notes:
        console.print(note, highlight=False)
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always", UserWarning)
        checked = _cross_validate(x, labels, teacher, folds, seed, console)
        model = OnePassClassifier(teacher, random_state=seed).fit(x, labels)
    model.save(out)
    write_json(out / "encoding.json", encoding.as_dict())
    settings = {"data": data.name, "target": target, "teacher": teacher, "folds": folds, "seed": seed}
    write_json(out / "config.json", settings)
    result = {
        "num_rows": len(x),
        "num_features": x.shape[1],
        "classes": model.classes_.tolist(),
        "cross_validation": checked["metrics"],
        "warnings": sorted({str(each.message) for each in noticed if each.category is UserWarning}),
        "seed": seed,
        "environment": environment(),
    }
    write_json(out / "metrics.json", result)
    if (advice := plotting.missing()) is None:
        picture = out / "calibration.png"
        plotting.draw_calibration(picture, checked["probabilities"], checked["truth"], checked["p_values"])
    else:
        console.print(advice, highlight=False)
    _keep_evaluation(out, model, x, labels)
    return result


def summary(found: dict[str, Any]) -> list[str]:
    """The lines that `opu fit` prints about its metrics."""
    checked = found["cross_validation"]
    first = (
        f"{found['num_rows']} rows, {found['num_features']} features, {len(found['classes'])} classes. In "
        f"{checked['folds']}-fold cross-validation: accuracy {checked['accuracy']:.1f} %, ECE {checked['ece']:.1f} %, "
        f"intervals hold {100 * checked['coverage']['of_teacher']:.0f} % of the teacher's particles (nominal: 90 %)."
    )
    return [first, *(f"Noticed: {warning}" for warning in found["warnings"])]


def _keep_evaluation(out: Path, model: OnePassClassifier, rows: NDArray[np.float64], labels: NDArray[Any]) -> None:
    """Write the teacher's particles for the withheld rows, which `opu fidelity` reads."""
    kept = model.withheld_rows_
    if not len(kept):
        return
    x = model.standardise_(torch.from_numpy(rows)).float()
    truth = torch.from_numpy(np.searchsorted(model.classes_, labels))[kept]
    seen = np.setdiff1d(np.arange(len(x)), kept)
    keep_evaluation(out, model.teacher_, x[kept], truth, x[seen])


def predict_table(
    run: Path, data: Path, out: Path, *, level: float = LEVEL, header: bool = True, console: Console
) -> int:
    """Write probabilities, intervals, measures and novelty for each row of a table as CSV; returns the number of rows."""
    pd = require_pandas()
    if out.exists():
        raise ValueError(f"{out} exists already and was not changed; choose another --out.")
    model = OnePassClassifier.load(run)
    encoding = _read_encoding(run / "encoding.json")
    frame = read_frame(data, header=header)
    unused = encoding.unused(frame)
    if unused:
        console.print(f"not used, since the model was not fitted to them: {', '.join(unused)}.", highlight=False)
    x = encoding.matrix(frame)
    probabilities, (low, high) = model.predict_proba(x), model.predict_interval(x, level)
    columns: dict[str, Any] = {"prediction": model.predict(x)}
    for k, name in enumerate(model.classes_):
        columns |= {f"probability_{name}": probabilities[:, k], f"low_{name}": low[:, k], f"high_{name}": high[:, k]}
    table = pd.concat([pd.DataFrame(columns), model.uncertainty(x)], axis=1)
    write_atomically(out, table.to_csv(index=False, float_format="%.6g").encode())
    return len(table)


def _labels(column: Any) -> NDArray[Any]:
    count = column.nunique()
    if count < 2:
        raise ValueError(
            f"the target {column.name} holds one class only, {str(column.iloc[0])!r}; a classifier needs two."
        )
    if count > MOST_CATEGORIES:
        raise ValueError(
            f"the target {column.name} holds {count} different values; a classifier is for {MOST_CATEGORIES} classes at "
            "most. Is this the right column?"
        )
    fewest = column.value_counts()
    if int(fewest.min()) < 2:
        raise ValueError(
            f"every class needs at least two rows to be cross-validated; {str(fewest.idxmin())!r} has one. Remove it, "
            "or join it with another class."
        )
    plain: NDArray[Any] = column.to_numpy() if column.dtype.kind in "iub" else column.astype(str).to_numpy()
    return plain


def _cross_validate(
    x: NDArray[np.float64], labels: NDArray[Any], teacher: TableTeacher, folds: int, seed: int, console: Console
) -> dict[str, Any]:
    """Predictions for every row by a classifier that has not seen it, and their metrics."""
    folds = min(folds, int(np.unique(labels, return_counts=True)[1].min()))
    classes = np.unique(labels)
    probabilities = np.zeros((len(x), len(classes)))
    entropy, novelty, p_values = (np.zeros(len(x)) for _ in range(3))
    covered, accuracies = [], []
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed).split(x, labels)
    shown = track(parts, "cross-validation", folds, transient=True, disable=not console.is_terminal)
    for number, (train, test) in enumerate(shown):
        model = OnePassClassifier(teacher, random_state=seed + number).fit(x[train], labels[train])
        probabilities[test] = model.predict_proba(x[test])
        measured = model.uncertainty(x[test])
        entropy[test], novelty[test] = measured[ENTROPY], measured.get("novelty", np.nan)
        p_values[test] = measured.get("novelty_p_value", np.nan)
        accuracies.append(100 * model.score(x[test], labels[test]))
        covered.append(_coverage(model, x[test]))
    truth = torch.from_numpy(np.searchsorted(classes, labels))
    predicted = torch.from_numpy(probabilities)
    wrong = (predicted.argmax(-1) != truth).numpy()
    found = {
        "folds": folds,
        "accuracy": metrics.accuracy(predicted, truth),
        "accuracy_of_folds": accuracies,
        "nll": metrics.negative_log_likelihood(predicted, truth),
        "brier": metrics.brier_score(predicted, truth),
        "ece": metrics.calibration_error(predicted, truth),
        "errors": {
            "base_rate": 100 * float(wrong.mean()),
            "entropy": metrics.detection_or_none(entropy, wrong),
            "novelty": metrics.detection_or_none(novelty, wrong),
        },
        "coverage": {"level": LEVEL, "of_teacher": float(np.mean(covered))},
        "flagged_at_5_percent": 100 * float(np.mean(p_values < 0.05)),
    }
    return {"metrics": found, "probabilities": probabilities, "truth": truth.numpy(), "p_values": p_values}


def _coverage(model: OnePassClassifier, rows: NDArray[np.float64]) -> float:
    """Fraction of the teacher's particles within the student's intervals."""
    low, high = model.predict_interval(rows, LEVEL)
    x = model.standardise_(torch.from_numpy(rows)).float()
    particles = model.teacher_(x, 200).double().exp().numpy()
    return float(np.mean((low <= particles) & (particles <= high)))


def _read_encoding(path: Path) -> Encoding:
    try:
        return Encoding.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path.parent} is not a run of `opu fit`: {path.name} cannot be read ({error}).") from error
