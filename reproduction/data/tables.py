"""Tables of numbers with a label of 0 or 1 in each row, as they were published."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64

from reproduction.data import dataset
from reproduction.data.arrays import read_numbers
from reproduction.data.local import checked

PIMA_FEATURES = (
    "pregnancies",
    "glucose",
    "blood_pressure",
    "skin_fold",
    "insulin",
    "body_mass_index",
    "pedigree",
    "age",
)
_SPAM_WORDS = (
    "make address all 3d our over remove internet order mail receive will people report addresses free business email "
    "you credit your font 000 money hp hpl george 650 lab labs telnet 857 data 415 85 technology 1999 parts pm direct "
    "cs meeting original project re edu table conference"
)
SPAMBASE_FEATURES = (
    *(f"word_freq_{word}" for word in _SPAM_WORDS.split()),
    *(f"char_freq_{character}" for character in ";([!$#"),
    *(f"capital_run_length_{summary}" for summary in ("average", "longest", "total")),
)


@dataclass(frozen=True)
class Table:
    """Raw features, a label for each row, and the names of the features if they are known."""

    name: str
    features: Float64[np.ndarray, "N F"]
    labels: Int64[np.ndarray, " N"]
    feature_names: tuple[str, ...] | None = None


def pima(folder: Path | None = None) -> Table:
    """Pima Indians Diabetes: 768 women, 8 features, 268 positive.

    Zeros stand for missing values in glucose (5), blood pressure (35), skin fold (227), insulin (374) and body mass
    index (11); they are left as they are.
    """
    return _table("pima", 768, PIMA_FEATURES, folder)


def spambase(folder: Path | None = None) -> Table:
    """Spambase: 4,601 mails, 57 features, 1,813 of them spam (label 1).

    Rows are sorted by label, spam first: shuffle before splitting. 391 rows repeat an earlier one, and the last three
    features have long tails.
    """
    return _table("spambase", 4601, SPAMBASE_FEATURES, folder)


def _table(name: str, num_rows: int, feature_names: tuple[str, ...], folder: Path | None) -> Table:
    path = checked(dataset(name).files[0], folder)
    numbers = read_numbers(path, len(feature_names) + 1)
    labels = numbers[:, -1]
    if len(numbers) != num_rows or not np.isin(labels, (0, 1)).all():
        raise ValueError(
            f"{path} must hold {num_rows} rows that end in a label of 0 or 1; got {len(numbers)} rows with labels "
            f"{np.unique(labels)[:5]}. Compare it with `opu data verify {name}`."
        )
    return Table(name, numbers[:, :-1].copy(), labels.astype(np.int64), feature_names)
