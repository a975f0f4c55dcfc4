"""One column of a table: whether it holds numbers, texts or ids, and its values."""

import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opu.sklearn.frames import require_pandas
from opu.students.standardise import LARGEST

MOST_CATEGORIES = 50
NOT_FINITE, TOO_LARGE = "not a finite number", "too large a number"
_TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)
_FEWEST_IDS = 20  # fewer rows may differ by chance
_FEWEST_TO_REFUSE = 5  # in a file of few rows a word in each is a note, not the wrong column


def is_number(column: Any) -> bool:
    """Whether a column holds numbers or truth values, besides missing ones."""
    if column.dtype.kind in "iufb":
        return True
    known = column.dropna()
    return bool(len(known)) and bool(known.map(lambda value: isinstance(value, bool | int | float)).all())


def as_numbers(column: Any) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The values with NaN where there is no number up to 1e150, and the rows in which there is something else instead."""
    parsed = column if is_number(column) else _as_parsed(column.map(_as_truth_value))
    try:
        values = np.array(parsed.to_numpy(dtype=np.float64, na_value=np.nan))
    except OverflowError:  # a whole number of more than 308 digits
        values = np.array([_as_float(value) for value in parsed.array], dtype=np.float64)
    usable = np.abs(values) <= LARGEST
    if usable.all():
        return values, np.empty(0, dtype=np.int64)
    odd = np.flatnonzero(~usable & column.notna().to_numpy())
    values[odd] = np.nan
    return values, odd


def why_odd(value: Any) -> str:
    """Why a value that is not missing cannot be used as a number."""
    try:
        return TOO_LARGE if np.isfinite(float(value)) else NOT_FINITE
    except OverflowError:
        return TOO_LARGE
    except (ValueError, TypeError):
        return NOT_FINITE


def loses_digits(column: Any) -> bool:
    """Whether whole numbers that differ become equal as floating-point numbers."""
    if column.dtype.kind not in "iu" or not bool((column.abs() > 2**53).any()):
        return False
    whole = column.dropna()
    return bool(whole.nunique() > whole.astype(np.float64).nunique())


def as_texts(column: Any) -> NDArray[Any]:
    """The values as texts, and None where one is missing."""
    gone = column.isna().to_numpy()
    return np.array([None if out else str(value) for value, out in zip(column, gone, strict=True)], dtype=object)


def looks_like_an_id(column: Any) -> bool:
    """Whether every row has its own text, or the rows are counted."""
    if len(column) < _FEWEST_IDS or column.nunique() < len(column):
        return False
    if not is_number(column):
        return True
    values = np.sort(as_numbers(column)[0])
    return bool(np.all(np.diff(values) == 1))


def texts_of(column: Any) -> tuple[str | None, ...]:
    """The different texts of a column, sorted, and None at their end if some are missing."""
    known = column.dropna()
    if _as_parsed(known).notna().mean() >= 0.5:  # a column that is mostly numbers is not meant as texts
        raise ValueError(_text_among_numbers(column))
    texts = sorted({str(value) for value in known})
    if len(known) and known.astype(str).str.fullmatch(r"-?\d+,\d+").mean() > 0.9:
        raise ValueError(
            f"column {column.name} holds numbers with a decimal comma, such as {texts[0]!r}; write them with a point."
        )
    if len(texts) > MOST_CATEGORIES:
        dates = " They look like dates: numbers, such as days or months, would say more." if _are_dates(known) else ""
        raise ValueError(
            f"column {column.name} holds {len(texts)} different texts, such as {texts[0]!r}; {MOST_CATEGORIES} are the most "
            f"that make sense as categories. Leave it out with --drop {column.name}, pass it through with --id "
            f"{column.name}, or turn it into numbers.{dates}"
        )
    return (*texts, *([None] if len(known) < len(column) else []))


def refuse_texts_only(column: Any) -> None:
    """Refuse a column for numbers in which no value is one."""
    if is_number(column) or column.notna().sum() < _FEWEST_TO_REFUSE:
        return
    if not _as_parsed(column.map(_as_truth_value)).notna().any():
        raise ValueError(_text_among_numbers(column))


def refuse_other_kinds(column: Any) -> None:
    """Refuse dates, lists and the like, which are neither numbers nor categories, and infinite numbers."""
    if is_number(column):
        odd = as_numbers(column)[1]
        if len(odd):
            if why_odd(column.iloc[odd[0]]) != TOO_LARGE:
                raise ValueError(f"column {column.name} holds infinite values; replace them.")
            raise ValueError(
                f"column {column.name} holds {str(column.iloc[odd[0]])[:20]}, too large for its variance to be a number; "
                "correct or rescale it."
            )
        return
    known = column.dropna()
    if not known.map(lambda value: isinstance(value, str | bool)).all():
        raise ValueError(
            f"column {column.name} holds neither numbers nor texts but {type(known.iloc[0]).__name__}, such as "
            f"{str(known.iloc[0])[:40]!r}; turn it into numbers, or leave it out with --drop {column.name}."
        )


def _as_truth_value(value: Any) -> Any:
    """1 or 0 for a truth value that was read as text beside other texts."""
    if isinstance(value, _TIMES):
        return None
    return {"true": 1.0, "false": 0.0}.get(value.strip().lower(), value) if isinstance(value, str) else value


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")
    except (ValueError, TypeError):  # missing
        return float("nan")


def _as_parsed(column: Any) -> Any:
    if column.dtype.kind in "mM":  # pandas would count nanoseconds
        column = column.astype(object)
    column = column.map(lambda value: None if isinstance(value, _TIMES) else value)
    return require_pandas().to_numeric(column, errors="coerce")


def _text_among_numbers(column: Any) -> str:
    parsed = _as_parsed(column)
    wrong = np.flatnonzero((parsed.isna() & column.notna()).to_numpy())
    if not len(wrong):
        return f"column {column.name} holds numbers that are stored as texts; convert it, with pandas.to_numeric."
    first = column.iloc[wrong[0]]
    return (
        f"column {column.name} holds {'text' if isinstance(first, str) else type(first).__name__} where numbers belong: "
        f"{str(first)[:80]!r} in row {wrong[0] + 1}. Correct it, "
        f"leave the cell empty, or leave the column out with --drop {column.name}."
    )


def _are_dates(column: Any) -> bool:
    first = column.astype(str).head(20)
    return bool(first.str.match(r"^\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}").all())
