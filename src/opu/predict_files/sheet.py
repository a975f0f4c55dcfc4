"""Predictions row by row into a CSV or Parquet file, with memory for some thousand rows only."""

import csv
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opu.checks import optional

Columns = Mapping[str, NDArray[Any]]
_ROWS_AT_ONCE = 20_000  # rows in a group of a Parquet file


class Sheet(ABC):
    """A table that grows: the input, the columns of its prediction, and a note where there is none.

    A cell that is NaN, or masked, stays empty.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[list[Any], list[str]]] = []
        self._none: Columns | None = None

    def write(self, names: list[Any], notes: list[str], was_read: Sequence[bool], columns: Columns | None) -> None:
        """Append rows.

        Args:
            names: The inputs.
            notes: A text for each input without a prediction, and an empty one for all others.
            was_read: Which inputs have values in the columns.
            columns: Those values, in order; None if there are none.
        """
        if columns is not None and self._none is None:
            self._none = {name: values[:0] for name, values in columns.items()}
            self.begin(names, columns)
            for earlier in self._waiting:
                self.append(*earlier, [False] * len(earlier[0]), self._none)
        columns = self._none if columns is None else columns
        if columns is None:  # names of columns are not known before the first prediction
            self._waiting.append((names, notes))
        else:
            self.append(names, notes, was_read, columns)

    @abstractmethod
    def begin(self, names: list[Any], columns: Columns) -> None:
        """Write names and types of the columns."""

    @abstractmethod
    def append(self, names: list[Any], notes: list[str], was_read: Sequence[bool], columns: Columns) -> None:
        """Write rows."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left."""

    def __enter__(self) -> "Sheet":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error, such as a full disk, closing may fail as well; the first error says more.
        with nullcontext() if kind is None else suppress(Exception):
            self.close()


class CSV(Sheet):
    """Numbers with six digits; empty cells where there is no prediction."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")

    def begin(self, names: list[Any], columns: Columns) -> None:
        """The first line."""
        self._writer.writerow(["input", *columns, "note"])

    def append(self, names: list[Any], notes: list[str], was_read: Sequence[bool], columns: Columns) -> None:
        """A line for each input."""
        predicted = zip(*(_texts(values) for values in columns.values()), strict=True)
        empty = [""] * len(columns)
        self._writer.writerows(
            [name, *(next(predicted) if known else empty), note]
            for name, note, known in zip(names, notes, was_read, strict=True)
        )

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Parquet(Sheet):
    """Full precision; null where there is no prediction."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._arrow = optional("pyarrow", "a Parquet file", "tables")
        self._parquet = optional("pyarrow.parquet", "a Parquet file", "tables")
        self._path, self._writer = path, None
        self._tables: list[Any] = []

    def begin(self, names: list[Any], columns: Columns) -> None:
        """Types of the columns."""
        example = self._table(names[:1], ["none"], [False], {name: each[:0] for name, each in columns.items()})
        self._writer = self._parquet.ParquetWriter(self._path, example.schema)

    def append(self, names: list[Any], notes: list[str], was_read: Sequence[bool], columns: Columns) -> None:
        """Rows, which are written when there are enough for a group."""
        self._tables.append(self._table(names, notes, was_read, columns))
        if sum(map(len, self._tables)) >= _ROWS_AT_ONCE:
            self._flush()

    def close(self) -> None:
        """Write the last group and the end of the file."""
        if self._writer is not None:
            self._flush()
            self._writer.close()

    def _flush(self) -> None:
        if self._tables and self._writer is not None:
            self._writer.write_table(self._arrow.concat_tables(self._tables))
        self._tables = []

    def _table(self, names: list[Any], notes: list[str], was_read: Sequence[bool], columns: Columns) -> Any:
        pa = self._arrow
        known = np.array(was_read, dtype=bool)
        found = {"input": pa.array(names)}
        for name, values in columns.items():
            missing = ~known
            missing[known] = _missing(values)
            full = np.zeros(len(names), dtype=values.dtype)
            full[~missing] = np.asarray(values)[~_missing(values)]
            found[name] = pa.array(full, mask=missing)
        return pa.table(found | {"note": pa.array([note or None for note in notes], pa.string())})


SHEETS: dict[str, type[CSV | Parquet]] = {".csv": CSV, ".parquet": Parquet}


def _texts(values: NDArray[Any]) -> list[str]:
    form = "{:.6g}" if values.dtype.kind == "f" else "{}"
    return ["" if gone else form.format(value) for value, gone in zip(values.tolist(), _missing(values), strict=True)]


def _missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values are NaN, or masked among names of classes."""
    return np.isnan(values) if values.dtype.kind == "f" else np.ma.getmaskarray(values)
