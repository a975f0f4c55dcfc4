"""Sentences on the columns of a table: which have missing values, and which hold text."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

MOST_NAMED = 5


def what_is_missing(
    counts: Iterable[int], num_rows: int, names: Sequence[str] | None = None, texts: bool = False
) -> str:
    """One sentence on the missing values of each column, and how they were treated; empty if there are none.

    Args:
        counts: Number of missing values in each column.
        num_rows: Number of rows.
        names: Names of the columns; by default they are numbered from 1.
        texts: Whether some columns hold texts.
    """
    found = {number: int(count) for number, count in enumerate(counts) if count}
    if not found:
        return ""
    shown = [f"{number + 1 if names is None else names[number]} ({found[number]})" for number in found]
    more = f" and {len(shown) - MOST_NAMED} more" if len(shown) > MOST_NAMED else ""
    words = ", and a missing text is a category of its own" if texts else ""
    columns = "columns" if len(shown) > 1 else "column"
    return (
        f"values are missing in {columns} {', '.join(shown[:MOST_NAMED])}{more} of {num_rows} rows; numbers were imputed "
        f"inside the model with the column's median, with an indicator as one more feature{words}."
    )


def text_column(X: Any) -> str | None:
    """One sentence on the first column of a data frame that does not hold numbers, or None."""
    if getattr(getattr(X, "dtype", None), "names", None):
        return (
            "rows must be an array of numbers with one column for each feature; got a structured array. Convert it with "
            "numpy.lib.recfunctions.structured_to_unstructured, or give a data frame."
        )
    columns = getattr(X, "columns", None)
    if columns is None:
        return None
    for place, name in enumerate(columns):
        column = X.iloc[:, place] if hasattr(X, "iloc") else X[name]  # names may occur twice in pandas
        try:
            np.asarray(column, dtype=np.float64)
        except (ValueError, TypeError):
            example = next((value for value in column if isinstance(value, str)), next(iter(column)))
            return (
                f"column {name} holds {example!r}, and every column must hold numbers; encode it in a pipeline "
                "(OneHotEncoder), drop it, or fit the file with `opu fit`, which encodes texts."
            )
    return None
