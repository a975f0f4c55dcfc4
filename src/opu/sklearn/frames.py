"""Tables in files: reading them, checking their columns, and encoding them as numbers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opu.checks import first_line, optional

MOST_CATEGORIES = 50


def read_frame(path: Path, *, header: bool = True) -> Any:
    """A pandas frame from a CSV, TSV or Parquet file; without a header, columns are named 1, 2, and so on."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give a CSV or Parquet file.")
    kind = path.suffix.lower()
    if kind not in (".csv", ".tsv", ".parquet"):
        raise ValueError(f"{path} must end in .csv, .tsv or .parquet; got {path.suffix or 'no ending'}.")
    try:
        frame, names = _read(path, kind, header)
    except (ValueError, OSError) as error:  # pandas and pyarrow raise kinds of ValueError for broken files
        raise ValueError(f"{path} could not be read as a table ({first_line(error)}).") from error
    _check_names(path, names, header=header and kind != ".parquet")
    frame.columns = names
    if frame.empty:
        raise ValueError(f"{path} holds no rows.")
    return frame


def _read(path: Path, kind: str, header: bool) -> tuple[Any, list[str]]:
    pd = require_pandas()
    if kind == ".parquet":
        frame = pd.read_parquet(path)
        return frame, [str(name) for name in frame.columns]
    separator = "\t" if kind == ".tsv" else ","
    if not header:
        frame = pd.read_csv(path, sep=separator, header=None)
        return frame, [str(number) for number in range(1, frame.shape[1] + 1)]
    # The names are read on their own, since pandas would rename those that occur twice.
    first = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, keep_default_na=False)
    names = [str(name) for name in first.iloc[0]]
    frame = pd.read_csv(path, sep=separator)
    if frame.shape[1] != len(names) or not isinstance(frame.index, pd.RangeIndex):
        raise ValueError(f"its first line has {len(names)} names and its rows have more values")
    return frame, names


def _check_names(path: Path, names: list[str], *, header: bool) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    numbers = [name for name in names if _reads_as_number(name)]
    if header and len(numbers) > len(names) / 2:
        raise ValueError(
            f"the first line of {path} looks like data, not like column names ({', '.join(names[:3])}, ...); write a line of "
            "names above it, or say --no-header, and the columns are called 1, 2, and so on."
        )
    if header and len(names) == 1 and ";" in names[0]:
        raise ValueError(f"{path} seems to be separated by semicolons; save it with commas, or as .tsv with tabs.")
    if doubled:
        raise ValueError(f"column names must differ; {', '.join(map(repr, doubled))} occurs more than once.")
    if "" in names:
        raise ValueError(
            f"column {names.index('') + 1} of {path} has no name; name it, or remove it if it only counts the rows."
        )


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Encoding:
    """How columns become numbers: columns of numbers stay as they are, columns of texts become one indicator per text.

    Attributes:
        target: Name of the column to predict.
        numbers: Names of the columns of numbers, in order.
        texts: Names of the columns of texts, in order, with the texts that each may hold.
    """

    target: str
    numbers: tuple[str, ...]
    texts: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, frame: Any, target: str) -> tuple["Encoding", list[str]]:
        """The encoding of a table, and a line for each column that is left out."""
        if target not in frame.columns:
            raise ValueError(_unknown(target, list(frame.columns), "the target"))
        missing = int(frame[target].isna().sum())
        if missing:
            raise ValueError(f"the target {target} is missing in {missing} of {len(frame)} rows; remove those rows.")
        notes, numbers, texts = [], [], {}
        for name in frame.columns.drop(target):
            column = frame[name]
            _refuse_missing(column)
            _refuse_other_kinds(column)
            if column.nunique() == 1:
                notes.append(f"column {name} is the same in every row and is left out.")
            elif _is_number(column):
                numbers.append(name)
            else:
                texts[name] = _texts_of(column)
        if not numbers and not texts:
            raise ValueError("no column besides the target is left to predict from; every one is the same in all rows.")
        return cls(target, tuple(numbers), texts), notes

    @property
    def features(self) -> list[str]:
        """Names of the columns of :meth:`matrix`."""
        return [*self.numbers, *(f"{name}={text}" for name, known in self.texts.items() for text in known)]

    def matrix(self, frame: Any) -> NDArray[np.float64]:
        """The rows as numbers."""
        given = list(frame.columns)
        for name in (*self.numbers, *self.texts):
            if name not in given:
                raise ValueError(_unknown(name, given))
            _refuse_missing(frame[name])
        parts = [_as_numbers(frame[name])[:, None] for name in self.numbers]
        for name, known in self.texts.items():
            values = frame[name].astype(str).to_numpy()
            new = sorted(set(values) - set(known))
            if new:
                raise ValueError(
                    f"column {name} holds {new[0]!r}, which the model has not seen; it knows {', '.join(known)}. Correct the "
                    "text, or fit anew."
                )
            parts.append(values[:, None] == np.array(known)[None, :])
        return np.concatenate(parts, 1).astype(np.float64)

    def unused(self, frame: Any) -> list[str]:
        """Names of the columns of a table that the model does not use."""
        return [name for name in frame.columns if name not in (*self.numbers, *self.texts, self.target)]

    def as_dict(self) -> dict[str, Any]:
        """The encoding as values for a json file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> "Encoding":
        """The encoding that :meth:`as_dict` described."""
        return cls(
            found["target"], tuple(found["numbers"]), {name: tuple(known) for name, known in found["texts"].items()}
        )


def _is_number(column: Any) -> bool:
    return bool(column.dtype.kind in "iufb")


def _as_numbers(column: Any) -> NDArray[np.float64]:
    if not _is_number(column):
        raise ValueError(_text_among_numbers(column))
    values: NDArray[np.float64] = column.to_numpy().astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"column {column.name} holds infinite values; replace them.")
    return values


def _texts_of(column: Any) -> tuple[str, ...]:
    parsed = require_pandas().to_numeric(column, errors="coerce")
    if parsed.notna().mean() >= 0.5:  # a column that is mostly numbers is not meant as texts
        raise ValueError(_text_among_numbers(column))
    known = sorted(set(column.astype(str)))
    if len(known) > MOST_CATEGORIES:
        raise ValueError(
            f"column {column.name} holds {len(known)} different texts, such as {known[0]!r}; {MOST_CATEGORIES} are the most "
            "that make sense as categories. Remove the column, or turn it into numbers."
        )
    return tuple(known)


def _text_among_numbers(column: Any) -> str:
    parsed = require_pandas().to_numeric(column, errors="coerce")
    if parsed.notna().all():
        return f"column {column.name} holds numbers that are stored as texts; convert it, with pandas.to_numeric."
    row = int(np.flatnonzero(parsed.isna())[0])
    return (
        f"column {column.name} holds text where numbers belong: {column.iloc[row]!r} in row {row + 1}. Correct it, or remove "
        "the row."
    )


def _refuse_missing(column: Any) -> None:
    missing = int(column.isna().sum())
    if missing:
        raise ValueError(
            f"column {column.name} is missing in {missing} of {len(column)} rows; fill the gaps, or remove the rows or the "
            "column."
        )


def _refuse_other_kinds(column: Any) -> None:
    """Dates, lists and the like are neither numbers nor categories."""
    if not _is_number(column) and not column.map(lambda value: isinstance(value, str | bool)).all():
        raise ValueError(
            f"column {column.name} holds neither numbers nor texts but {type(column.iloc[0]).__name__}, such as "
            f"{str(column.iloc[0])[:40]!r}; turn it into numbers, or remove it."
        )


def _unknown(name: str, given: Sequence[str], what: str = "column") -> str:
    near = get_close_matches(name, given, 1, 0.6)
    guess = f" Did you mean {near[0]}?" if near else ""
    shown = ", ".join(given[:12]) + (", ..." if len(given) > 12 else "")
    return f"{what} {name} is not in the table, which has {shown or 'no other columns'}.{guess}"


def require_pandas() -> Any:
    """The package pandas, or an error that names the extra."""
    return optional("pandas", "reading a table", "tables")
