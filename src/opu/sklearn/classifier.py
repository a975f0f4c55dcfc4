"""A classifier for tables that answers with a whole distribution over the class probabilities, in one pass."""

import json
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
from opu.distributions.dirichlet import Dirichlet
from opu.distillation import Recipe, calibrate, distill
from opu.files import write_json
from opu.distributions.pointwise import maximum_likelihood
from opu.novelty import FEWEST_INPUTS
from opu.sklearn.frames import require_pandas
from opu.sklearn.teachers import make_teacher, standardisation
from opu.students import Student
from opu.students.links import Sigmoid, bounds_for

FORMAT = 1
# With fewer rows than this, none is withheld from the teacher.
FEWEST_TO_WITHHOLD = 100
_ROWS_AT_ONCE = 8192


class OnePassClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A Bayesian classifier fitted to a table, then distilled into a small network.

    ``fit`` fits the teacher and distils it; afterwards everything is one pass of the network: class probabilities, a
    credible interval for each of them, and a novelty score. The score knows what the teacher knows: a Gaussian process
    grows unsure far from its rows, a logistic regression may be sure of a row like none before. Columns are standardised
    within. Numbers only: encode categories in a pipeline before it.

    Args:
        teacher: ``"polya-gamma"`` (Bayesian logistic regression, needs ``opu[blr]``), ``"gp"`` (a Gaussian process, needs
            ``opu[gp]``), ``"forest"``, ``"ensemble"`` (small networks), an ensemble of scikit-learn, or any
            ``teacher(x, num_particles)`` of raw rows.
        hidden: Widths of the student's layers.
        objective: What :func:`opu.distill` minimises. A small network on a table follows the KL well, and fast,
            once no single row may pull too hard.
        learning_rate: Of the distillation; small networks bear, and need, larger steps than those on images.
        num_particles: Fresh ones for each row and step.
        epochs: Passes over the rows; enough for 1,500 steps unless given.
        withheld: Share of the rows that the teacher does not see; on them the novelty p-values are calibrated. Tables of
            fewer than 100 rows are used whole, and p-values are then a little too small.
        random_state: Of everything random.

    Attributes:
        classes_: The labels, in the order of the columns of ``predict_proba``.
        teacher_: The fitted teacher, of standardised rows; absent after ``load``.
        student_: The network.
        withheld_rows_: Places of the training rows that calibrated it and that neither it nor its teacher was fitted to.
    """

    def __init__(
        self,
        teacher: Any = "polya-gamma",
        *,
        hidden: Any = (128, 128),
        objective: Any = "clipped_kl",
        learning_rate: Any = 1e-2,
        num_particles: Any = 64,
        epochs: Any = None,
        withheld: Any = 0.1,
        random_state: Any = None,
    ) -> None:
        # Whatever is given is kept as it is, and looked at in fit: scikit-learn's rule.
        self.teacher = teacher
        self.hidden = hidden
        self.objective = objective
        self.learning_rate = learning_rate
        self.num_particles = num_particles
        self.epochs = epochs
        self.withheld = withheld
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "OnePassClassifier":
        """Fit the teacher to labelled rows, and the student to the teacher."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_ = unique_labels(y)
        if len(self.classes_) < 2:
            raise ValueError(
                f"a classifier needs rows of at least two classes; got one class, {self.classes_[0]!r}. Check the target."
            )
        labels = np.searchsorted(self.classes_, y)
        mean, scale = standardisation(X)
        x = torch.from_numpy((X - mean.numpy()) / scale.numpy()).float()
        with _own_randomness(self.random_state) as seed:
            seen, kept = _split(labels, self.withheld, seed)
            known = torch.from_numpy(labels)[seen]
            self.withheld_rows_ = np.arange(0) if kept is None else kept.numpy()
            self.teacher_ = make_teacher(self.teacher, x[seen], known, mean, scale, self.classes_.tolist())
            fitted = maximum_likelihood(self.teacher_(x[seen][:: max(1, len(seen) // 500)], 200)).log_precision
            student = students.mlp(x.shape[1], len(self.classes_), self.hidden, link=Sigmoid(*bounds_for(fitted)))
            student.start_precision_at(float(fitted.median()))
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
                ),
                held_out=self.withheld if kept is None else x[kept],
                progress=False,
            )
            if student.novelty is None and len(x) >= FEWEST_INPUTS:  # too few were held out, so all of them serve
                calibrate(student, x)
        self._ready(student, mean, scale)
        return self

    def _ready(self, student: Student, mean: Tensor, scale: Tensor) -> None:
        self.mean_, self.scale_ = mean.numpy(), scale.numpy()
        # In float64 an answer does not depend on the rows beside it, to all digits that matter.
        self.student_ = student.double().eval()

    @torch.no_grad()
    def predict_dirichlet(self, X: Any) -> Dirichlet:
        """One Dirichlet over the class probabilities for each row."""
        check_is_fitted(self, "student_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        x = torch.from_numpy((X - self.mean_) / self.scale_)
        parts = [self.student_(part) for part in x.split(_ROWS_AT_ONCE)]
        columns = zip(*((q.mean, q.log_precision, q.log_mean) for q in parts), strict=True)
        return Dirichlet(*(torch.cat(column) for column in columns))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Class probabilities."""
        answer: NDArray[np.float64] = self.predict_dirichlet(X).mean.numpy()
        return answer

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class."""
        best = self.predict_proba(X).argmax(-1)
        answer: NDArray[Any] = self.classes_[best]
        return answer

    def predict_interval(
        self,
        X: Any,
        level: float = 0.9,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper end of a credible interval for each class probability, both ``(rows, classes)``."""
        low, high = self.predict_dirichlet(X).marginals().interval(level)
        return low.numpy(), high.numpy()

    def uncertainty(self, X: Any) -> Any:
        """A frame of pandas with every measure, the novelty score and its p-value, one line for each row."""
        pd = require_pandas()
        q = self.predict_dirichlet(X)
        columns = {name: values.numpy() for name, values in measures.all_measures(q).items()}
        if self.student_.novelty is not None:
            with torch.no_grad():
                columns["novelty"] = self.student_.novelty(q).numpy()
                columns["novelty_p_value"] = self.student_.novelty.p_value(q).numpy()
        return pd.DataFrame(columns, index=getattr(X, "index", None))

    def save(self, folder: str | Path) -> None:
        """Write the student, the classes and the scaling into a folder, without pickle; the teacher stays behind."""
        check_is_fitted(self, "student_")
        folder = Path(folder)
        self.student_.save(folder / "student")
        names = getattr(self, "feature_names_in_", None)
        description = {
            "format": FORMAT,
            "kind": "opu classifier",
            "classes": self.classes_.tolist(),
            "dtype": "str" if self.classes_.dtype.kind in "OU" else self.classes_.dtype.name,
            "mean": self.mean_.tolist(),
            "scale": self.scale_.tolist(),
            "feature_names": None if names is None else list(names),
        }
        write_json(folder / "classifier.json", description)

    @classmethod
    def load(cls, folder: str | Path) -> "OnePassClassifier":
        """Read what :meth:`save` wrote; ready to predict."""
        path = Path(folder) / "classifier.json"
        try:
            found = json.loads(path.read_text())
            if found["kind"] != "opu classifier" or found["format"] != FORMAT:
                raise KeyError(f"of kind {found['kind']!r}, version {found['format']!r}")
            new = cls()
            new.classes_ = np.array(found["classes"], dtype=object if found["dtype"] == "str" else found["dtype"])
            mean, scale = (torch.tensor(found[key], dtype=torch.float64) for key in ("mean", "scale"))
            names = found["feature_names"]
        except FileNotFoundError:
            raise ValueError(f"there is no saved classifier in {folder}: {path.name} is missing.") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not the description of a classifier ({error}); use another copy.") from error
        new.n_features_in_ = len(mean)
        if names is not None:
            new.feature_names_in_ = np.array(names, dtype=object)
        new._ready(students.load(Path(folder) / "student"), mean, scale)
        return new


@contextmanager
def _own_randomness(random_state: Any) -> Iterator[int]:
    """A seed, and torch's random state set by it within, and as it was afterwards."""
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield seed


def _split(labels: NDArray[np.int64], share: float, seed: int) -> tuple[Tensor, Tensor | None]:
    """Rows for the teacher, and rows withheld from it; every class stays with the teacher."""
    rows = np.arange(len(labels))
    if not share or len(labels) < FEWEST_TO_WITHHOLD:
        return torch.from_numpy(rows), None
    # A class with a single row cannot be divided, and must not be lost.
    counts = np.bincount(labels)
    single = counts[labels] < 2
    enough = share * (~single).sum() >= len(counts)
    seen, kept = train_test_split(
        rows[~single], test_size=share, random_state=seed, stratify=labels[~single] if enough else None
    )
    seen = np.sort(np.concatenate([seen, rows[single]]))
    lost = np.setdiff1d(labels, labels[seen])
    if len(lost):
        back = np.isin(labels[kept], lost)
        seen, kept = np.sort(np.concatenate([seen, kept[back]])), kept[~back]
    return torch.from_numpy(seen), torch.from_numpy(np.sort(kept))
