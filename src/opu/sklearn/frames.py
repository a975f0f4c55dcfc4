"""Tables in files: reading them, checking the names of their columns, and writing them."""

from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path
from typing import Any

from opu.checks import first_line, listed, optional
from opu.files import write_atomically

READ = (".csv", ".tsv", ".parquet")
MOST_COLUMNS = 1_000_000
# A table of numbers may take so much memory, or as many times its size in the file.
LARGEST_INFLATED, LARGEST_RATIO = 2**30, 32
_LONG, _MANY = 200, 20_000  # letters of a name, and names, that are compared with one that is not there
_BYTES_OF_DECIMAL = 136  # pandas makes an object of each


def read_frame(
    path: Path,
    *,
    header: bool = True,
    separator: str | None = None,
    texts: Sequence[str] = (),
    verbatim: Sequence[str] = (),
) -> Any:
    """A pandas frame from a CSV, TSV or Parquet file.

    A CSV file of more than a million columns is refused, and a Parquet file whose numbers or texts would take more than
    1 GiB and more than 32 times the file's size, or that has a column of lists or structs.

    Args:
        path: The file.
        header: Whether its first line holds names; otherwise columns are named 1, 2, and so on.
        separator: What stands between two values; a comma by default, or a tab if the file ends in ``.tsv``.
        texts: Names of columns that are read as texts, even if they look like numbers.
        verbatim: Names of columns that are read as they stand in the file: 007 stays 007, and NA is not missing.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give a CSV or Parquet file.")
    kind = path.suffix.lower()
    if kind not in READ:
        raise ValueError(f"{path} must end in .csv, .tsv or .parquet; got {path.suffix or 'no ending'}.")
    if kind == ".parquet" and separator is not None:
        raise ValueError(f"--sep is for CSV files; {path} needs none. Leave it out.")
    sign = _separator(kind, separator)
    (_check_parquet if kind == ".parquet" else _check_width)(path, sign)
    try:
        frame, names = _read(path, kind, header, sign, texts, verbatim)
    except ImportError:
        raise
    except Exception as error:  # pandas and pyarrow raise all kinds of errors for broken files
        raise ValueError(f"{path} could not be read as a table ({first_line(error)}).{_hint(path, kind)}") from error
    _check_names(path, names, header=header and kind != ".parquet")
    frame.columns = names
    if frame.empty:
        raise ValueError(f"{path} holds no rows.")
    return frame


def write_frame(path: Path, frame: Any, separator: str | None = None) -> None:
    """Write a pandas frame to a CSV, TSV or Parquet file, atomically."""
    kind = path.suffix.lower()
    if kind == ".parquet":
        content = BytesIO()
        frame.to_parquet(content, index=False)
        write_atomically(path, content.getvalue())
    else:
        text = frame.to_csv(index=False, float_format="%.6g", sep=_separator(kind, separator))
        write_atomically(path, text.encode())


def check_output(path: Path, data: Path, overwrite: bool) -> None:
    """Refuse a file for predictions that has no known kind, that is the table itself, or that is there already."""
    if path.suffix.lower() not in READ:
        raise ValueError(
            f"predictions are written to .csv, .tsv or .parquet; got {path.name}, which ends in {path.suffix or 'none'}."
        )
    if path.exists() and data.exists() and path.samefile(data):
        raise ValueError(f"--out {path} is the table itself, which was not changed; choose another --out.")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} exists already and was not changed; choose another --out, or add --overwrite.")


def _check_width(path: Path, separator: str) -> None:
    """Refuse a CSV file with so many columns that pandas, which keeps a kilobyte for each, would fill the memory."""
    with path.open("rb") as file:  # any line may be the widest: pandas skips empty ones at the top
        count = max((line.count(separator.encode()) + 1 for line in file if len(line) > MOST_COLUMNS), default=0)
    if count > MOST_COLUMNS:
        raise ValueError(f"{path} has about {count:,} columns; {MOST_COLUMNS:,} are the most that can be read.")


def _check_parquet(path: Path, _separator: str) -> None:
    """Refuse a Parquet file that asks for far more memory than it holds: constant columns take almost no place in it.

    Nothing but its last part, which describes it, is read as long as it may be too large.
    """
    parquet = optional("pyarrow.parquet", "a Parquet file", "tables")
    try:
        found = parquet.read_metadata(path)
        stated = sum(found.row_group(number).total_byte_size for number in range(found.num_row_groups))
        schema = found.schema.to_arrow_schema()
    except Exception as error:
        raise ValueError(f"{path} could not be read as a table ({first_line(error)}).") from error
    _check_types(path, schema)
    size = path.stat().st_size
    needed = max(found.num_rows * sum(_width(each.type) for each in schema), stated)
    most = max(LARGEST_INFLATED, LARGEST_RATIO * size)
    needed = needed if needed > most else max(needed, _size_of_texts(path, schema))
    if needed > most:
        raise ValueError(
            f"{path} would take {needed / 1e6:.0f} MB of memory, from {size / 1e6:.1f} MB in the file; divide it into "
            "several files with fewer rows."
        )


def _check_types(path: Path, schema: Any) -> None:
    """Refuse all but numbers, times and texts by their type: a file of kilobytes may hold millions of values in one cell."""
    for each in schema:
        if not _is_plain(each.type):
            raise ValueError(
                f"column {each.name} of {path} holds values of type {str(each.type)[:_LONG]}; a cell of a table holds one "
                "number or text. Remove the column, or make its parts columns of their own."
            )


def _is_plain(kind: Any) -> bool:
    """Whether a value is one number, time or text. A new type of Arrow is not, until its size is counted."""
    types = optional("pyarrow", "a Parquet file", "tables").types
    stored = _stored(kind)
    fixed = (types.is_null, types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_temporal)
    if any(is_one(stored) for is_one in (*fixed, types.is_fixed_size_binary)):
        return True
    if types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    return any(is_text(kind) for is_text in _of_texts(types))  # of an extension, texts would not be counted


def _of_texts(types: Any) -> tuple[Any, ...]:
    return (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)


def _stored(kind: Any) -> Any:
    """A type of Arrow without what an extension makes of it."""
    while hasattr(kind, "storage_type"):
        kind = kind.storage_type
    return kind


def _width(kind: Any) -> int:
    """Bytes of one value in memory, at least; texts are counted apart."""
    if optional("pyarrow", "a Parquet file", "tables").types.is_decimal(_stored(kind)):
        return _BYTES_OF_DECIMAL
    try:
        return max(8, int(_stored(kind).byte_width))
    except (AttributeError, ValueError):  # of no fixed width
        return 8


def _size_of_texts(path: Path, schema: Any) -> int:
    """How much memory the texts of a Parquet file take: it may hold a long text once, and repeat it by its number."""
    types, parquet = optional("pyarrow", "a Parquet file", "tables").types, optional("pyarrow.parquet", "", "tables")
    compute = optional("pyarrow.compute", "a Parquet file", "tables")
    names = [each.name for each in schema if any(is_text(each.type) for is_text in _of_texts(types))]
    total = 0
    try:
        for name in dict.fromkeys(names):
            for chunk in parquet.read_table(path, columns=[name], read_dictionary=[name]).column(0).chunks:
                lengths = compute.binary_length(chunk.dictionary)
                total += compute.sum(compute.take(lengths, chunk.indices)).as_py() or 0
    except Exception as error:  # of any kind, for a broken file
        raise ValueError(f"{path} could not be read as a table ({first_line(error)}).") from error
    return total


def _separator(kind: str, wanted: str | None) -> str:
    if wanted is None:
        return "\t" if kind == ".tsv" else ","
    if wanted in ("\\t", "tab"):
        return "\t"
    if len(wanted) != 1 or wanted.isalnum() or wanted in "\"'.\n":
        raise ValueError(f"--sep must be one character such as ';' or ',', or 'tab'; got {wanted!r}.")
    return wanted


def _read(
    path: Path, kind: str, header: bool, separator: str, texts: Sequence[str], verbatim: Sequence[str]
) -> tuple[Any, list[str]]:
    pd, wanted, kept = require_pandas(), set(texts), set(verbatim)
    if kind == ".parquet":
        frame = pd.read_parquet(path)
        return frame, [str(name) for name in frame.columns]
    # The names are read on their own, since pandas would rename those that occur twice.
    first = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, keep_default_na=False)
    names = [str(name) for name in first.iloc[0]] if header else [str(each + 1) for each in range(first.shape[1])]
    as_texts = {place: str for place, name in enumerate(names) if name in wanted}
    layout = {"sep": separator, "header": 0 if header else None}
    frame = pd.read_csv(path, **layout, converters=as_texts, low_memory=False)
    if frame.shape[1] != len(names) or not isinstance(frame.index, pd.RangeIndex):
        raise ValueError(f"its first line has {len(names)} names and its rows have more values")
    places = [place for place, name in enumerate(names) if name in kept]
    if places:
        plain = pd.read_csv(
            path, **layout, usecols=places, dtype=str, keep_default_na=False, skip_blank_lines=len(names) > 1
        )
        for place, name in zip(places, plain.columns, strict=True):
            frame.isetitem(place, plain[name])
    return frame, names


def _hint(path: Path, kind: str) -> str:
    """What to try with a file whose rows do not have one length: numbers with decimal commas look like that."""
    if kind == ".parquet":
        return ""
    with path.open(errors="replace") as file:
        line = file.readline()
    return " It seems to be separated by semicolons; add --sep ';'." if line.count(";") > line.count(",") else ""


def _check_names(path: Path, names: list[str], *, header: bool) -> None:
    doubled = sorted(name for name, count in Counter(names).items() if count > 1)
    numbers = [name for name in names if _reads_as_number(name)]
    if header and len(numbers) > len(names) / 2:
        raise ValueError(
            f"the first line of {path} looks like data, not like column names ({', '.join(names[:3])}, ...); write a line of "
            "names above it, or say --no-header, and the columns are called 1, 2, and so on."
        )
    for sign, word, option in ((";", "semicolons", "';'"), ("\t", "tabs", "tab")):
        if len(names) == 1 and sign in names[0]:
            raise ValueError(f"{path} seems to be separated by {word}; add --sep {option}.")
    if doubled:
        raise ValueError(f"column names must differ; {listed(list(map(repr, doubled)))} occurs more than once.")
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


def unknown_column(name: str, given: Sequence[str], what: str = "column") -> str:
    """One sentence on a column that the table does not have, with the nearest name that it has."""
    near = get_close_matches(name[:_LONG], [each for each in given[:_MANY] if len(each) <= _LONG], 1, 0.6)
    guess = f" Did you mean {near[0]}?" if near else ""
    return f"{what} {name} is not in the table, which has {listed(given) or 'no other columns'}.{guess}"


def require_pandas() -> Any:
    """The package pandas, or an error that names the extra."""
    return optional("pandas", "reading a table", "tables")
