"""`opu fit` and `opu predict`: from a table to a run folder with a classifier, and from that to predictions."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from opu import measures, plotting
from opu.checks import listed
from opu.choices import CLASS_WEIGHTS, TABLE_TEACHERS, ClassWeight, TableTeacher, check_choice
from opu.distillation.kinds import FIT
from opu.distillation.outcome import keep_evaluation
from opu.distillation.replacing import fresh_folder, put_back
from opu.environment import environment
from opu.files import read_json, write_json
from opu.sklearn.classifier import NOVELTY, OnePassClassifier
from opu.sklearn.columns import MOST_CATEGORIES
from opu.sklearn.cost import SlowTeacher, check_size
from opu.sklearn.cross_validation import LEVEL, cross_validate
from opu.sklearn.encoding import Encoding
from opu.sklearn.frames import check_output, read_frame, require_pandas, unknown_column, write_frame
from opu.students.impute import Prepare
from opu.students.standardise import OddColumn
from opu.terminal import say

ROWS_AT_ONCE = 8192
UNBALANCED = 90.0  # percent of the rows in one class from which accuracy alone misleads


def fit_table(
    data: Path,
    target: str,
    out: Path,
    *,
    teacher: TableTeacher = "polya-gamma",
    folds: int = 5,
    seed: int = 0,
    header: bool = True,
    separator: str | None = None,
    drop: Sequence[str] = (),
    ids: Sequence[str] = (),
    class_weight: ClassWeight = "none",
    overwrite: bool = False,
    console: Console | None = None,
) -> dict[str, Any]:
    """Cross-validate a classifier on a table, fit it to all rows, and write the run folder; returns the metrics.

    Args:
        data: A CSV, TSV or Parquet file.
        target: Name of the column to predict.
        out: The run folder.
        teacher: Name of the teacher.
        folds: Number of folds of the cross-validation.
        seed: Seed of everything random.
        header: Whether the first line holds names; otherwise columns are 1, 2, and so on.
        separator: What stands between two values of a CSV file.
        drop: Names of columns to leave out.
        ids: Names of columns that are no features, but are passed through to predictions.
        class_weight: ``"balanced"`` lets all classes count alike, ``"none"`` all rows.
        overwrite: Whether a folder that `opu fit` wrote is replaced, once the new run is complete.
        console: Where to print.
    """
    console = console or Console()
    check_choice("--teacher", teacher, TABLE_TEACHERS)
    check_choice("--class-weight", class_weight, CLASS_WEIGHTS)
    frame = read_frame(data, header=header, separator=separator, verbatim=ids)
    encoding, notes = Encoding.of(frame, target, drop=drop, ids=ids)
    x, labels = encoding.matrix(frame), _labels(frame[target])
    _check_written(frame[target], data, header, separator)
    notes += _odd_columns(x, encoding.features)
    _check_ids(ids, np.unique(labels))
    slow = check_size(teacher, len(x), x.shape[1], len(np.unique(labels)), fits=folds + 1)
    if out.resolve() in data.resolve().parents:
        raise ValueError(f"{data} lies in the output folder {out}, which would be replaced; choose another folder.")
    if not header:
        encoding = replace(encoding, num_columns=frame.shape[1])
    if (interrupted := put_back(out)) is not None:
        say(console, interrupted)
    with fresh_folder(out, FIT, overwrite=overwrite) as folder:
        for note in [*notes, *([slow] if slow else [])]:
            say(console, note)
        make = partial(_classifier, teacher, class_weight)
        with warnings.catch_warnings(record=True) as noticed:
            warnings.simplefilter("always", UserWarning)
            warnings.simplefilter("ignore", SlowTeacher)  # said above, for all folds together
            warnings.simplefilter("ignore", OddColumn)  # said above, by name
            checked = cross_validate(x, labels, make, folds, seed, console)
            model = make(seed).fit(x, labels)
        model.save(folder)
        write_json(folder / "encoding.json", encoding.as_dict())
        settings = {"data": data.name, "target": target, "teacher": teacher, "folds": folds, "seed": seed}
        settings |= {"drop": list(drop), "ids": list(ids), "class_weight": class_weight}
        write_json(folder / "config.json", settings)
        result = {
            "num_rows": len(x),
            "num_features": x.shape[1],
            "classes": model.classes_.tolist(),
            "class_weight": class_weight,
            "cross_validation": checked["metrics"],
            "notes": notes,
            "warnings": sorted({str(each.message) for each in noticed if each.category is UserWarning}),
            "seed": seed,
            "environment": environment(),
        }
        write_json(folder / "metrics.json", result)
        if (advice := plotting.missing()) is None:
            picture = folder / "calibration.png"
            plotting.draw_calibration(picture, checked["probabilities"], checked["truth"], checked["p_values"])
        else:
            say(console, advice)
        _keep_evaluation(folder, model, x, labels)
    return result


def summary(found: dict[str, Any]) -> list[str]:
    """The lines that `opu fit` prints about its metrics."""
    checked = found["cross_validation"]
    first = (
        f"{found['num_rows']} rows, {found['num_features']} features, {len(found['classes'])} classes. In "
        f"{checked['folds']}-fold cross-validation: accuracy {checked['accuracy']:.1f} % (the commonest class has "
        f"{checked['base_rate']:.1f} %), balanced accuracy {checked['balanced_accuracy']:.1f} %, AUROC "
        f"{checked['auroc']:.1f} %, ECE {checked['ece']:.1f} %, "
        f"intervals hold {100 * checked['coverage']['of_teacher']:.0f} % of the teacher's particles (nominal: 90 %)."
    )
    noticed = list(found["warnings"])
    if checked["base_rate"] >= UNBALANCED:
        advice = (
            ""
            if found["class_weight"] != "none"
            else ", and let rare classes count as much with --class-weight balanced"
        )
        noticed.append(
            f"{checked['base_rate']:.1f} % of the rows are of one class, so accuracy says little: judge by balanced accuracy "
            f"and AUROC{advice}."
        )
    return [first, *(f"Noticed: {each}" for each in noticed)]


def predict_table(
    run: Path,
    data: Path,
    out: Path,
    *,
    level: float = LEVEL,
    header: bool = True,
    separator: str | None = None,
    keep: Sequence[str] = (),
    overwrite: bool = False,
    console: Console | None = None,
) -> int:
    """Write probabilities, intervals, measures and novelty for each row of a table; returns the number of rows.

    A row with a value unlike any in training (an unseen text, a value that was never missing) is predicted too, with a
    note, a novelty above that of all calibration rows, and the least possible p-value.

    Args:
        run: A folder that `opu fit` wrote.
        data: A CSV, TSV or Parquet file with the same columns.
        out: A CSV, TSV or Parquet file for the predictions.
        level: Level of the credible intervals.
        header: Whether the first line holds names.
        separator: What stands between two values, in the table and in the predictions.
        keep: Names of columns that are passed through, besides the ids of the fit.
        overwrite: Whether a file that exists is replaced.
        console: Where to print.
    """
    console = console or Console()
    pd = require_pandas()
    check_output(out, data, overwrite)
    model = OnePassClassifier.load(run)
    encoding = read_encoding(run / "encoding.json")
    if len(encoding.features) != model.n_features_in_:
        raise ValueError(
            f"{run} is damaged: encoding.json describes {len(encoding.features)} features, and classifier.json "
            f"{model.n_features_in_}; use another copy."
        )
    passed = list(dict.fromkeys([*encoding.ids, *keep]))
    used = {*encoding.numbers, *encoding.texts}
    reading: dict[str, Any] = {"header": header, "separator": separator, "texts": list(encoding.texts)}
    # A feature is read for the model as without --keep; what is passed through is read again, as it stands in the file.
    frame = read_frame(data, **reading, verbatim=[name for name in passed if name not in used])
    if encoding.num_columns is not None and frame.shape[1] != encoding.num_columns:
        raise ValueError(
            f"the model was fitted to a file of {encoding.num_columns} columns without names; {data} has {frame.shape[1]}, "
            "so their numbers do not agree. Keep the place of the target, or use a file with names."
        )
    for name in keep:
        if name not in frame.columns:
            raise ValueError(unknown_column(name, list(frame.columns), "--keep: column"))
    _check_ids(keep, model.classes_, "--keep")
    encoding.check_columns(frame)
    _tell_of_columns(encoding, frame, passed, console)
    starts = range(0, len(frame), ROWS_AT_ONCE)
    shown = track(
        starts, "predicting", transient=True, console=console, disable=len(starts) < 2 or not console.is_terminal
    )
    parts = [_predictions(model, encoding, frame.iloc[start : start + ROWS_AT_ONCE], level) for start in shown]
    table = pd.concat(parts, ignore_index=True)
    if used.intersection(passed):
        frame = read_frame(data, **reading, verbatim=passed)
    kept = frame[[name for name in passed if name in frame.columns]].astype(object)  # numbers of users keep all digits
    write_frame(out, pd.concat([kept.reset_index(drop=True), table], axis=1), separator)
    if count := int((table["note"] != "").sum()):
        example = table["note"][table["note"] != ""].iloc[0]
        rows = "row holds a value" if count == 1 else "rows hold values"
        say(
            console,
            f"{count} {rows} unlike any in training (such as: {example}); predicted as if missing, and marked as novel "
            "with a note.",
        )
    return len(table)


def _predictions(model: OnePassClassifier, encoding: Encoding, frame: Any, level: float) -> Any:
    pd = require_pandas()
    x, notes = _without_too_large(model, encoding, *encoding.rows(frame))
    probabilities, (low, high) = model.predict_proba(x), model.predict_interval(x, level)
    columns: dict[str, Any] = {"prediction": model.classes_[probabilities.argmax(-1)]}
    for k, name in enumerate(model.classes_):
        columns |= {f"probability_{name}": probabilities[:, k], f"low_{name}": low[:, k], f"high_{name}": high[:, k]}
    measured = model.uncertainty(x)
    noted = np.array([note != "" for note in notes])
    novelty = model.student_.novelty
    if novelty is not None:  # also where the model knows missing values, but not this one
        measured.loc[noted, NOVELTY] = measured.loc[noted, NOVELTY].clip(lower=novelty.beyond)
        measured.loc[noted, "novelty_p_value"] = novelty.least_p_value
    return pd.concat([pd.DataFrame(columns), measured, pd.DataFrame({"note": notes})], axis=1)


def _without_too_large(
    model: OnePassClassifier, encoding: Encoding, x: NDArray[np.float64], notes: list[str]
) -> tuple[NDArray[np.float64], list[str]]:
    """Values that are too large to be standardised as if missing, with a note."""
    large = model.standardise_.too_large(torch.from_numpy(x)).numpy()
    for row, column in np.argwhere(large):
        notes[row] = "; ".join(
            filter(None, [notes[row], f"{encoding.features[column]} is {x[row, column]:.3g}, too large"])
        )
    return np.where(large, np.nan, x), notes


def _tell_of_columns(encoding: Encoding, frame: Any, passed: Sequence[str], console: Console) -> None:
    kept = set(passed)
    unused = [name for name in encoding.unused(frame) if name not in kept]
    if unused:
        say(
            console,
            f"not used, since the model was not fitted to them: {listed(unused)}. Pass them through with --keep.",
        )
    absent = [name for name in passed if name not in frame.columns]
    if absent:
        say(console, f"not in this table, so not passed through: {listed(absent)}.")


def _classifier(teacher: TableTeacher, class_weight: ClassWeight, seed: int) -> OnePassClassifier:
    weight = None if class_weight == "none" else class_weight
    return OnePassClassifier(teacher, class_weight=weight, random_state=seed)


def _keep_evaluation(out: Path, model: OnePassClassifier, rows: NDArray[np.float64], labels: NDArray[Any]) -> None:
    """Write the teacher's particles for the withheld rows, which `opu fidelity` reads."""
    kept = model.withheld_rows_
    if not len(kept):
        return
    x = model.standardise_(torch.from_numpy(rows)).float()
    truth = torch.from_numpy(np.searchsorted(model.classes_, labels))[kept]
    seen = np.setdiff1d(np.arange(len(x)), kept)
    keep_evaluation(out, model.teacher_, x[kept], truth, x[seen])


def _check_ids(names: Sequence[str], classes: Any, option: str = "--id") -> None:
    """Refuse to pass a column through whose name a column of predictions has."""
    taken = {"prediction", "note", "novelty_p_value", *measures.MEASURES}
    taken |= {f"{part}_{name}" for part in ("probability", "low", "high") for name in classes}
    for name in names:
        if name in taken:
            raise ValueError(f"{option} {name} has the name of a column of the predictions; rename it.")


def _odd_columns(x: NDArray[np.float64], names: list[str]) -> list[str]:
    """A sentence on each column whose values cannot be told apart once it is standardised."""
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always", OddColumn)
        Prepare.fit(x, names)
    return [str(each.message) for each in noticed if each.category is OddColumn]


def _check_written(target: Any, data: Path, header: bool, separator: str | None) -> None:
    """Refuse classes that are written differently but are one number, such as 01 and 1."""
    if data.suffix.lower() == ".parquet" or target.dtype.kind not in "iuf":
        return
    written = read_frame(data, header=header, separator=separator, verbatim=[target.name])[target.name].str.strip()
    for number, texts in written.groupby(target.to_numpy()).unique().items():
        if len(texts) > 1:
            raise ValueError(
                f"the target {target.name} holds {texts[0]!r} and {texts[1]!r}, which are the same number, {number}; write "
                "them alike if they are one class, and as texts, such as c01 and c1, if they are two."
            )


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
    fewest = fewest[fewest > 0]  # a category may have no rows
    if int(fewest.min()) < 2:
        raise ValueError(
            f"every class needs at least two rows to be cross-validated; {str(fewest.idxmin())!r} has one. Remove it, "
            "or join it with another class."
        )
    plain: NDArray[Any] = column.to_numpy() if column.dtype.kind in "iub" else column.astype(str).to_numpy()
    return plain


def read_encoding(path: Path) -> Encoding:
    """The encoding that `opu fit` wrote."""
    try:
        return Encoding.from_dict(read_json(path))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path.parent} is not a run of `opu fit`: {path.name} cannot be read ({error}).") from error
