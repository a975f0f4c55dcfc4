"""How the columns of a table become numbers: at the fit, and for new rows, whose surprises are noted row by row."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opu.digests import Digest
from opu.files import plain
from opu.sklearn import columns as kinds
from opu.sklearn.frames import unknown_column
from opu.sklearn.missing import what_is_missing

_CHECKSUM = "checksum"
Texts = tuple[str | None, ...]


@dataclass(frozen=True)
class Encoding:
    """How columns become numbers: columns of numbers stay as they are, columns of texts become one indicator per text.

    Attributes:
        target: Name of the column to predict.
        numbers: Names of the columns of numbers, in order. A missing value stays missing; the model imputes it.
        texts: Names of the columns of texts, in order, with the texts that each may hold; None, the last, for a missing text.
        ids: Names of the columns that are no features and are passed through to the predictions.
        dropped: Names of the columns that were left out.
        missing: Names of the columns of numbers that had missing values.
        num_columns: Number of columns of a file without names, whose columns are known by their place.
    """

    target: str
    numbers: tuple[str, ...]
    texts: dict[str, Texts]
    ids: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    num_columns: int | None = None

    @classmethod
    def of(
        cls, frame: Any, target: str, *, drop: Sequence[str] = (), ids: Sequence[str] = ()
    ) -> tuple["Encoding", list[str]]:
        """The encoding of a table, and a sentence on each column that is left out or needs attention."""
        _check_choice_of_columns(list(frame.columns), target, drop, ids)
        missing = int(frame[target].isna().sum())
        if missing:
            raise ValueError(f"the target {target} is missing in {missing} of {len(frame)} rows; remove those rows.")
        notes, numbers, texts = [], [], dict[str, Texts]()
        for name in frame.columns.drop([target, *dict.fromkeys([*drop, *ids])]):
            column = frame[name]
            if column.isna().all():
                notes.append(f"column {name} is missing in every row and is left out.")
                continue
            kinds.refuse_other_kinds(column)
            if column.nunique(dropna=False) == 1:
                notes.append(f"column {name} is the same in every row and is left out.")
                continue
            if kinds.looks_like_an_id(column):
                notes.append(
                    f"column {name} differs in every row and looks like an id; leave it out with --drop {name}, or pass it "
                    f"through with --id {name}."
                )
            if kinds.is_number(column):
                numbers.append(name)
                if kinds.loses_digits(column):
                    notes.append(
                        f"column {name} holds whole numbers beyond 2^53, of which some become equal as floating-point "
                        f"numbers; if it is an id, leave it out with --drop {name}, or pass it through with --id {name}."
                    )
            else:
                texts[name] = kinds.texts_of(column)
        if not numbers and not texts:
            raise ValueError("no column besides the target is left to predict from; every one is the same in all rows.")
        used = [*numbers, *texts]
        counts = frame[used].isna().sum().tolist()
        if sentence := what_is_missing(counts, len(frame), used, bool(texts)):
            notes.append(sentence)
        gaps = tuple(name for name, count in zip(used, counts, strict=True) if count and name not in texts)
        return cls(target, tuple(numbers), texts, tuple(ids), tuple(drop), gaps), notes

    @property
    def features(self) -> list[str]:
        """Names of the columns of :meth:`matrix`."""
        of_texts = (
            f"{name}={'missing' if text is None else text}" for name, known in self.texts.items() for text in known
        )
        return [*self.numbers, *of_texts]

    @property
    def columns(self) -> list[dict[str, Any]]:
        """The columns in the order of :meth:`matrix`, by name; those of texts with their categories."""
        texts = [{"name": name, "categories": list(known)} for name, known in self.texts.items()]
        return [*({"name": name} for name in self.numbers), *texts]

    def matrix(self, frame: Any) -> NDArray[np.float64]:
        """The rows as numbers."""
        return self.rows(frame)[0]

    def rows(self, frame: Any) -> tuple[NDArray[np.float64], list[str]]:
        """The rows as numbers, and a note on each row with a value that the model has not seen the like of.

        Such a value is encoded as missing, and so are all indicators of a text that the model does not know.
        """
        self.check_columns(frame)
        notes: list[list[str]] = [[] for _ in range(len(frame))]
        known_gaps = set(self.missing)
        parts = []
        for name in self.numbers:
            values, odd = kinds.as_numbers(frame[name])
            gaps = () if name in known_gaps else np.flatnonzero(frame[name].isna().to_numpy())
            for row in gaps:
                notes[row].append(f"{name} is missing")
            for row in odd:
                notes[row].append(
                    f"{name} is {str(frame[name].iloc[row])[:80]!r}, {kinds.why_odd(frame[name].iloc[row])}"
                )
            parts.append(values[:, None])
        for name, known in self.texts.items():
            values = kinds.as_texts(frame[name])
            indicators = np.stack([values == text for text in known], 1).astype(np.float64)
            for row in np.flatnonzero(~indicators.any(1)):
                value = values[row]
                notes[row].append(f"{name} is missing" if value is None else f"{name} is {value[:80]!r}, unseen")
                indicators[row] = np.nan
            parts.append(indicators)
        return np.concatenate(parts, 1), ["; ".join(each) for each in notes]

    def check_columns(self, frame: Any) -> None:
        """Refuse a table that lacks a column, or that holds texts only where numbers belong."""
        given = set(frame.columns)
        for name in (*self.numbers, *self.texts):
            if name not in given:
                raise ValueError(unknown_column(name, list(frame.columns)))
        for name in self.numbers:
            kinds.refuse_texts_only(frame[name])

    def unused(self, frame: Any) -> list[str]:
        """Names of the columns of a table that the model does not use, besides those that the fit was told to leave out."""
        known = {*self.numbers, *self.texts, *self.ids, *self.dropped, self.target}
        return [name for name in frame.columns if name not in known]

    def as_dict(self) -> dict[str, Any]:
        """The encoding as values for a json file, with a checksum of them."""
        values = plain(asdict(self))
        return {**values, _CHECKSUM: _checksum(values)}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> "Encoding":
        """The encoding that :meth:`as_dict` described, today or before it knew ids, missing values and checksums."""
        found = dict(found)
        if _CHECKSUM in found and found.pop(_CHECKSUM) != _checksum(found):
            raise ValueError("it is damaged, or was edited; fit the table again, or use another copy")
        texts = {name: _texts(known, or_none=True) for name, known in found["texts"].items()}
        later = {key: _texts(found.get(key, ())) for key in ("ids", "dropped", "missing")}
        target, numbers, num_columns = found["target"], _texts(found["numbers"]), found.get("num_columns")
        if not isinstance(target, str) or not (num_columns is None or type(num_columns) is int):
            raise ValueError("the target must be a text, and the number of columns a whole number")
        if set(numbers) & set(texts) or not {*numbers, *texts} - {target}:
            raise ValueError("the columns of numbers and of texts must differ from each other and from the target")
        return cls(target, numbers, texts, **later, num_columns=num_columns)


def _checksum(values: dict[str, Any]) -> str:
    """A checksum against damage and edits: columns in another order would be read as each other."""
    digest = Digest()
    digest.add_text("encoding", json.dumps(values, sort_keys=False))
    return digest.text()


def _texts(values: Any, *, or_none: bool = False) -> tuple[Any, ...]:
    """Different texts out of a file."""
    found = tuple(values) if isinstance(values, list | tuple) else (0,)
    if not all(isinstance(each, str) or (or_none and each is None) for each in found) or len(set(found)) < len(found):
        raise ValueError(f"names and categories must be different texts; got {str(values)[:40]}")
    return found


def _check_choice_of_columns(given: Sequence[str], target: str, drop: Sequence[str], ids: Sequence[str]) -> None:
    known, passed = set(given), set(ids)
    if target not in known:
        raise ValueError(unknown_column(target, given, "the target"))
    for option, names in (("--drop", drop), ("--id", ids)):
        for name in names:
            if name not in known:
                raise ValueError(unknown_column(name, given, f"{option}: column"))
            if name == target:
                raise ValueError(f"{option} names the target {target}, which is needed; leave it out of {option}.")
    both = [name for name in drop if name in passed]
    if both:
        raise ValueError(
            f"column {both[0]} is in --drop and in --id; an id is no feature anyway. Name it in one of them."
        )
