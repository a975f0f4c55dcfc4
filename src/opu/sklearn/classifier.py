"""A classifier for tables that predicts a whole distribution over the class probabilities, in one pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from opu import measures, students
from opu.distillation import Recipe, calibrate, distill
from opu.distillation.replacing import put_back
from opu.distributions import Dirichlet, SimplexDistribution, cat
from opu.distributions.pointwise import maximum_likelihood
from opu.novelty import FEWEST_INPUTS
from opu.sklearn.frames import require_pandas
from opu.sklearn.missing import text_column, what_is_missing
from opu.sklearn.saved import as_classes, read_classifier, write_classifier
from opu.sklearn.teachers import make_teacher
from opu.sklearn.weights import check_sample_weight, row_weights
from opu.students import Student
from opu.students.impute import Prepare
from opu.students.links import Sigmoid, bounds_for

# From a smaller table no rows are withheld.
FEWEST_TO_WITHHOLD = 100
(NOVELTY,) = measures.named("N")
_ROWS_AT_ONCE = 8192


class OnePassClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A Bayesian classifier fitted to a table, then distilled into a small network.

    ``fit`` fits the teacher and distils it. Afterwards one pass of the network gives class probabilities, a credible
    interval for each of them, and a novelty score. The score knows what the teacher knows: a Gaussian process grows
    uncertain far from its training rows, a logistic regression may be certain about a row unlike any of them. Columns are
    standardised internally. They must be numbers: encode categories in a pipeline first.

    Missing values (NaN) are imputed with the column's median, and each column with missing values in training gets an
    indicator as one more feature. A row with a missing value in a column that was complete in training is predicted
    too, but marked as novel: its novelty is above that of all calibration rows, and its p-value the least possible.

    Args:
        teacher: ``"polya-gamma"`` (Bayesian logistic regression, needs the extra ``blr``), ``"gp"`` (a Gaussian process),
            ``"forest"``, ``"ensemble"`` (small networks), a scikit-learn ensemble, or any ``teacher(x, num_particles)``
            that takes raw rows, with NaN where values are missing. A teacher that would take more than half an hour on a
            table of this size says so before it starts.
        hidden: Widths of the student's layers.
        family: What the student predicts: ``"dirichlet"``, or ``"logistic_normal"``, whose intervals fit the teacher's
            particles more closely.
        objective: Objective that :func:`opu.distill` minimises. The clipped KL trains small networks on tables well and
            fast, since no single row can dominate a step.
        learning_rate: Learning rate of the distillation. Small networks need larger steps than those on images.
        num_particles: Number of fresh particles per row and step.
        epochs: Number of passes over the rows; by default as many as 1,500 steps need.
        withheld: Fraction of the rows that the teacher does not see; they calibrate the novelty p-values. A table of
            fewer than 100 rows is used whole, and p-values are then slightly too small.
        class_weight: Weights of the classes: ``"balanced"`` lets all classes count alike, which suits a rare class; a dict
            gives a weight to each. They multiply ``sample_weight``. Probabilities are then those of the weighted table.
        random_state: Seed or random state of teacher, student and split.

    Attributes:
        classes_: The labels, in the order of the columns of ``predict_proba``.
        standardise_: Module from raw to imputed and standardised rows.
        missing_: One sentence on the missing values of the training rows; empty if there were none.
        teacher_: The fitted teacher of standardised rows; absent after ``load``.
        student_: The network.
        withheld_rows_: Indices of the training rows that only calibrated: neither teacher nor student was fitted to them.
    """

    def __init__(
        self,
        teacher: Any = "polya-gamma",
        *,
        hidden: Any = (128, 128),
        family: Any = "dirichlet",
        objective: Any = "clipped_kl",
        learning_rate: Any = 1e-2,
        num_particles: Any = 64,
        epochs: Any = None,
        withheld: Any = 0.1,
        class_weight: Any = None,
        random_state: Any = None,
    ) -> None:
        # scikit-learn requires that the constructor stores its arguments unchanged; fit checks them.
        self.teacher = teacher
        self.hidden = hidden
        self.family = family
        self.objective = objective
        self.learning_rate = learning_rate
        self.num_particles = num_particles
        self.epochs = epochs
        self.withheld = withheld
        self.class_weight = class_weight
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "OnePassClassifier":
        """Fit the teacher to labelled rows, and the student to the teacher.

        Args:
            X: Rows of numbers; NaN where a value is missing.
            y: The class of each row.
            sample_weight: Weight of each row: one of weight 2 counts as two rows, and one of weight 0 as none. Logistic
                regression and the Gaussian process weigh the likelihood, which is exact; a forest passes the weights to
                its trees; the small networks draw their rows with probabilities in proportion to the weights. Weights
                concern the teacher only: the student learns from it at every row alike.
        """
        X, y = self._validated(X, y)
        check_classification_targets(y)
        weights = check_sample_weight(sample_weight, len(X))
        counted = np.arange(len(X)) if weights is None else np.flatnonzero(weights)
        X, y, weights = X[counted], y[counted], None if weights is None else weights[counted]
        self.classes_ = unique_labels(y)
        if len(self.classes_) < 2:
            raise ValueError(
                f"a classifier needs rows of at least two classes; got one class, {self.classes_[0]!r}. Check the target."
            )
        labels = np.searchsorted(self.classes_, y)
        weights = row_weights(weights, self.class_weight, labels, self.classes_)
        names = getattr(self, "feature_names_in_", None)
        names = None if names is None else names.tolist()
        self.missing_ = what_is_missing(np.isnan(X).sum(0).tolist(), len(X), names)
        self.standardise_ = Prepare.fit(X, names)
        x = self.standardise_(torch.tensor(X)).float()
        with _own_randomness(self.random_state) as seed:
            seen, kept = _split(labels, self.withheld, seed)
            known = torch.from_numpy(labels)[seen]
            self.withheld_rows_ = np.arange(0) if kept is None else counted[kept.numpy()]
            weighed = None if weights is None else torch.from_numpy(weights)[seen]
            self.teacher_ = make_teacher(
                self.teacher, x[seen], known, self.standardise_, self.classes_.tolist(), weighed
            )
            student = self._untrained(x[seen])
            distill(
                self.teacher_,
                student,
                x[seen],
                recipe=Recipe(
                    objective=self.objective,
                    learning_rate=self.learning_rate,
                    num_particles=self.num_particles,
                    epochs=self.epochs,
                    batch_size=min(256, max(16, len(seen) // 10), len(seen)),
                    start_from_teacher=False,  # the average of the ensemble's networks is no network like them
                ),
                held_out=self.withheld if kept is None else x[kept],
                progress=False,
            )
            if student.novelty is None and len(x) >= FEWEST_INPUTS:
                calibrate(student, x)  # on all rows, since too few were held out
        self._keep(student)
        return self

    def _untrained(self, x: Tensor) -> Student:
        """A student whose link, if it has one, suits the teacher's particles at these rows."""
        sizes = x.shape[1], len(self.classes_), self.hidden
        if self.family != "dirichlet":
            return students.mlp(*sizes, family=self.family)
        fitted = maximum_likelihood(self.teacher_(x[:: max(1, len(x) // 500)], 200)).log_precision
        student = students.mlp(*sizes, link=Sigmoid(*bounds_for(fitted)))
        return student.start_precision_at(float(fitted.median()))

    def _keep(self, student: Student) -> None:
        # In float32 a row's prediction would depend, in its last digits, on the other rows of the batch.
        self.student_ = student.double().eval()

    def _validated(self, X: Any, *y: Any, reset: bool = True) -> Any:
        """The rows in float64, and their labels if given."""
        try:
            return validate_data(self, X, *y, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan")
        except (ValueError, TypeError) as error:
            if (sentence := text_column(X)) is not None:
                raise ValueError(sentence) from error
            raise

    def _rows(self, X: Any) -> Tensor:
        check_is_fitted(self, "student_")
        rows = torch.tensor(self._validated(X, reset=False))
        if bool((large := self.standardise_.too_large(rows)).any()):
            row, column = large.nonzero()[0].tolist()
            raise ValueError(
                f"row {row} holds {float(rows[row, column]):.3g} in column {column} (both counted from 0), too large beside "
                "the training rows to be predicted; correct it, or replace it by NaN."
            )
        return rows

    def predict_distribution(self, X: Any) -> SimplexDistribution:
        """One distribution over the class probabilities per row, of the family."""
        return self._distribution(self._rows(X))

    def predict_dirichlet(self, X: Any) -> Dirichlet:
        """One Dirichlet over the class probabilities per row, if that is the family."""
        found = self.predict_distribution(X)
        if not isinstance(found, Dirichlet):
            raise ValueError(f"this classifier predicts {self.student_.family}; use predict_distribution.")
        return found

    @torch.no_grad()
    def _distribution(self, rows: Tensor) -> SimplexDistribution:
        return cat([self.student_(self.standardise_(part)) for part in rows.split(_ROWS_AT_ONCE)])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Class probabilities."""
        probabilities: NDArray[np.float64] = self.predict_distribution(X).mean.numpy()
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class."""
        best = self.predict_proba(X).argmax(-1)
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper end of a credible interval for each class probability, both ``(rows, classes)``."""
        low, high = self.predict_distribution(X).interval(level)
        return low.numpy(), high.numpy()

    def uncertainty(self, X: Any) -> Any:
        """A pandas frame with every measure, the novelty score and its p-value, one line per row."""
        pd = require_pandas()
        rows, novelty = self._rows(X), self.student_.novelty
        q = self._distribution(rows)
        columns = measures.all_measures(q, novelty)
        if novelty is not None:
            columns["novelty_p_value"] = novelty.p_value(q)
            new = self.standardise_.unexpected(rows)
            columns[NOVELTY][new] = columns[NOVELTY][new].clamp(min=novelty.beyond)
            columns["novelty_p_value"][new] = novelty.least_p_value
        index = X.index if isinstance(X, pd.DataFrame) else None  # a list has a method of this name
        return pd.DataFrame({k: v.numpy() for k, v in columns.items()}, index=index)

    def save(self, folder: str | Path) -> None:
        """Write the student, the classes, imputation and scaling into a folder, without pickle and without the teacher.

        Over a classifier that is there already, a kill at any moment leaves the old one or the new one.
        """
        check_is_fitted(self, "student_")
        folder = Path(folder)
        if (folder / "encoding.json").exists():
            raise ValueError(
                f"{folder} holds a run of `opu fit`, which would no longer fit its table; choose another folder."
            )
        names = getattr(self, "feature_names_in_", None)
        description = {
            "classes": self.classes_.tolist(),
            "dtype": "str" if self.classes_.dtype.kind in "OU" else self.classes_.dtype.name,
            **self.standardise_.description(),
            "feature_names": None if names is None else list(names),
            "missing": self.missing_,
        }
        write_classifier(folder, self.student_, description)

    @classmethod
    def load(cls, folder: str | Path) -> "OnePassClassifier":
        """Read a classifier that :meth:`save` wrote; it can predict but has no teacher."""
        put_back(Path(folder))  # where a command was killed while it replaced this one
        found, student = read_classifier(Path(folder))
        new = cls()
        new.classes_ = as_classes(found)
        new.standardise_ = Prepare.from_description(found)
        new.missing_ = found.get("missing", "")
        new.n_features_in_ = len(new.standardise_.impute.fill)
        if found.get("feature_names") is not None:
            new.feature_names_in_ = np.array(found["feature_names"], dtype=object)
        new._keep(student)
        return new


def _check_names(model: OnePassClassifier, names: Any) -> None:
    """Refuse classes that are not different, and names that are not one for each column."""
    classes = model.classes_
    if classes.ndim != 1 or len({*classes.tolist()}) < max(2, len(classes)) or (np.sort(classes) != classes).any():
        raise ValueError("classes must be different, and sorted")
    if classes.dtype == object and not all(isinstance(each, str) for each in classes):
        raise ValueError("classes must be texts")
    num_columns = len(model.standardise_.impute.fill)
    if names is not None and not (
        isinstance(names, list) and len(names) == num_columns and all(isinstance(each, str) for each in names)
    ):
        raise ValueError("feature_names must be one text for each column")


def _check_fits(model: OnePassClassifier, path: Path) -> None:
    """Refuse a student of other rows or other classes than its description."""
    row = model.standardise_.standardise.mean[None]
    try:
        with torch.no_grad():
            found = model.student_(model.standardise_.standardise(row)).num_classes
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{path} does not fit the student beside it ({error}); use another copy.") from error
    if found != len(model.classes_):
        raise ValueError(
            f"{path} names {len(model.classes_)} classes, and the student beside it predicts {found}; use another copy."
        )


@contextmanager
def _own_randomness(random_state: Any) -> Iterator[int]:
    """Set torch's random state from a seed within the block, and restore it afterwards; yields the seed."""
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield seed


def _split(labels: NDArray[np.int64], fraction: float, seed: int) -> tuple[Tensor, Tensor | None]:
    """Row numbers for the teacher, and those withheld from it; the teacher keeps rows of every class."""
    rows = np.arange(len(labels))
    if not fraction or len(labels) < FEWEST_TO_WITHHOLD:
        return torch.from_numpy(rows), None
    # A class with a single row cannot be divided, and must not be lost.
    counts = np.bincount(labels)
    single = counts[labels] < 2
    enough = fraction * (~single).sum() >= len(counts)
    seen, kept = train_test_split(
        rows[~single], test_size=fraction, random_state=seed, stratify=labels[~single] if enough else None
    )
    seen = np.sort(np.concatenate([seen, rows[single]]))
    lost = np.setdiff1d(labels, labels[seen])
    if len(lost):
        back = np.isin(labels[kept], lost)
        seen, kept = np.sort(np.concatenate([seen, kept[back]])), kept[~back]
    return torch.from_numpy(seen), torch.from_numpy(np.sort(kept))
