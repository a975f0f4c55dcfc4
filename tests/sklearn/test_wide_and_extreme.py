"""Tables with very many columns, with numbers at the ends of floating point, and files that ask for too much memory."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from opu.sklearn import OnePassClassifier, columns, frames
from opu.sklearn.encoding import Encoding
from opu.sklearn.frames import read_frame, unknown_column
from opu.sklearn.missing import text_column
from opu.students.impute import Prepare
from opu.students.reading import in_known_order
from opu.students.standardise import OddColumn, Standardise


class Name(str):
    """A name that counts how often it is compared with another."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def comparisons(call, count):
    names = [Name(f"column{place}") for place in range(count)]
    Name.compared = 0
    call(names)
    return Name.compared


def frame_of(names, rows=3):
    values = np.random.default_rng(0).normal(size=(rows, len(names)))
    return pd.DataFrame(values, columns=pd.Index(names, dtype=object))


def encoded(names):
    frame = frame_of(names)
    encoding, _ = Encoding.of(frame, names[0], drop=names[1:9], ids=names[9:20])
    assert encoding.rows(frame)[0].shape == (3, len(names) - 20)
    assert encoding.unused(frame) == []


LINEAR = {
    "names": lambda names: frames._check_names(Path("t.csv"), names, header=True),
    "encoding": encoded,
    "text": lambda names: text_column(frame_of(names)),
}


@pytest.mark.parametrize("call", LINEAR.values(), ids=LINEAR.keys())
def test_names_are_compared_a_few_times_each(call):
    few, many = (comparisons(call, count) for count in (100, 800))
    assert many <= 12 * 800
    assert many - few <= 12 * 700


class Columns(list):
    """Names that count how often all of them are looked at."""

    passes = 0

    def __iter__(self):
        Columns.passes += 1
        return super().__iter__()


class Known:
    def __init__(self, names):
        self.names = names

    def columns(self):
        return self.names


class Frame:
    def __init__(self, names):
        self.columns = Columns(names)


def test_the_columns_of_a_frame_are_looked_at_a_few_times_however_many_are_missing():
    Columns.passes = 0
    with pytest.raises(
        ValueError, match=r"with the columns a0, a1, .*, a11 and 988 more; a0, .* and 988 more is missing"
    ):
        in_known_order(Known([f"a{place}" for place in range(1000)]), Frame([f"b{place}" for place in range(1000)]))
    assert Columns.passes <= 5


def test_columns_are_put_in_order_unless_their_names_do_not_tell_them_apart():
    frame = pd.DataFrame([[1, 2, 3]], columns=["b", "a", "c"])
    assert list(in_known_order(Known(["a", "b", "c"]), frame).columns) == ["a", "b", "c"]
    twice = pd.DataFrame([[1, 2, 3]], columns=["b", "a", "a"])
    assert in_known_order(Known(["b", "a", "a"]), twice) is twice
    with pytest.raises(ValueError, match="some names occur more than once, so it is not known which is which"):
        in_known_order(Known(["a", "a", "b"]), twice)


def test_a_table_of_five_thousand_columns_is_read(tmp_path):
    names = [f"c{place}" for place in range(5_000)]
    lines = [",".join(names), *(",".join([str(row)] * len(names)) for row in range(2))]
    (tmp_path / "wide.csv").write_text("\n".join(lines) + "\n")
    assert list(read_frame(tmp_path / "wide.csv").columns) == names
    (tmp_path / "twice.csv").write_text("\n".join([lines[0].replace("c1", "c"), *lines[1:]]) + "\n")
    with pytest.raises(
        ValueError, match=r"column names must differ; 'c0', 'c2', .* and [\d,]+ more occurs more than once"
    ):
        read_frame(tmp_path / "twice.csv")
    assert "Did you mean c4999?" in unknown_column("c4999x", names)
    assert unknown_column("x" * 10**6, ["y" * 10**6, "b"]).endswith("which has " + "y" * 10**6 + ", b.")


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["," * 1001, "\n\n" + "," * 1001, "a,b\n1,2\n" + "," * 1001 + "\n"])
def test_a_line_of_separators_is_refused(text, tmp_path, monkeypatch):
    monkeypatch.setattr(frames, "MOST_COLUMNS", 1000)
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=r"has about 1,002 columns; 1,000 are the most that can be read"):
        read_frame(tmp_path / "t.csv")


def test_a_parquet_file_of_constants_is_read_up_to_a_bound(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({name: np.zeros(2_000_000) for name in "ab"}), path)
    assert path.stat().st_size < 100_000
    assert len(read_frame(path)) == 2_000_000
    monkeypatch.setattr(frames, "LARGEST_INFLATED", 2**24)
    monkeypatch.setattr(frames, "_read", None)  # it is not read at all
    with pytest.raises(
        ValueError, match=r"would take 32 MB of memory, from 0.0 MB in the file; divide it into several"
    ):
        read_frame(path)


def test_a_text_that_a_parquet_file_repeats_by_its_number_counts_as_often(tmp_path, monkeypatch):
    monkeypatch.setattr(frames, "LARGEST_INFLATED", 2**24)
    repeated = pa.DictionaryArray.from_arrays(np.zeros(5000, np.int32), pa.array(["a" * 4000]))
    table = pa.table({"a": np.zeros(5000), "text": repeated})
    with pq.ParquetWriter(tmp_path / "t.parquet", table.schema, store_schema=False) as writer:
        writer.write_table(table)
    assert (tmp_path / "t.parquet").stat().st_size < 20_000
    with pytest.raises(ValueError, match=r"would take 20 MB of memory, from 0.0 MB in the file"):
        read_frame(tmp_path / "t.parquet")
    monkeypatch.setattr(frames, "LARGEST_INFLATED", 2**25)
    assert read_frame(tmp_path / "t.parquet")["text"].str.len().tolist() == [4000] * 5000


def test_a_parquet_file_of_other_bytes_is_refused(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(ValueError, match=r"t.parquet could not be read as a table"):
        read_frame(tmp_path / "t.parquet")


# --- numbers ----------------------------------------------------------------------------------------------------------


def rows(count=60):
    x = np.random.default_rng(0).normal(size=(count, 2))
    return x, x[:, 0] > 0


DATES = {
    "dates": pd.Series(pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(8), "D")),
    "with a zone": pd.Series([pd.Timestamp("2020-01-01", tz="UTC")] * 8),
    "durations": pd.Series(pd.to_timedelta(np.arange(8), "h")),
    "objects": pd.Series([pd.Timestamp("2020-01-01").date()] * 8),
}


@pytest.mark.parametrize("column", DATES.values(), ids=DATES)
def test_dates_where_numbers_belong_are_no_numbers(column):
    values, odd = columns.as_numbers(column)
    assert np.isnan(values).all()
    assert odd.tolist() == list(range(8))
    with pytest.raises(ValueError, match=r"holds (Timestamp|Timedelta|date) where numbers belong: '.*' in row 1"):
        columns.refuse_texts_only(column.rename("age"))


def test_a_long_text_is_cut_in_its_note():
    encoding, _ = Encoding.of(pd.DataFrame({"kind": ["a", "b"] * 4, "y": [0, 1] * 4}), "y")
    (note,) = encoding.rows(pd.DataFrame({"kind": ["z" * 10**6]}))[1]
    assert len(note) < 120


@pytest.mark.parametrize("seed", range(3))
def test_forests_that_agree_on_easy_rows_are_fitted(seed):
    x = np.random.default_rng(seed).normal(size=(300, 2))
    model = OnePassClassifier("forest", epochs=100, hidden=(16,), random_state=0).fit(x, x[:, 0] > 0)
    assert model.score(x, x[:, 0] > 0) > 0.8


@pytest.mark.parametrize("value", [1e308, -1e308, 1e160, np.finfo(float).max])
@pytest.mark.parametrize("gaps", [False, True])
def test_a_value_that_is_too_large_is_refused_by_the_name_of_its_column(value, gaps):
    x, y = rows()
    x[1:, 1] = np.where(gaps & (np.arange(59) % 2 == 0), np.nan, x[1:, 1])
    x[0, 1] = value
    frame = pd.DataFrame(x, columns=["height", "weight"])
    with pytest.raises(
        ValueError, match=r"column weight holds .*too large for its variance to be a number; correct or"
    ):
        OnePassClassifier("ensemble").fit(frame, y)
    with pytest.raises(
        ValueError, match=r"column weight holds .*too large for its variance to be a number; correct or"
    ):
        Encoding.of(frame.assign(ill=y), "ill")
    with pytest.raises(ValueError, match=r"column 1 \(counted from 0\) holds values of up to"):
        Prepare.fit(x)


@pytest.mark.parametrize("factor", [1.0, 1e-13, 1e-100, 1e-200, 1e-300, 1e30, 1e140])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_standardised_columns_do_not_depend_on_their_unit(factor, offset):
    x, _ = rows()
    x = x + offset
    expected = (x - x.mean(0)) / x.std(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Standardise.fit(x * factor)
    np.testing.assert_allclose(found(torch.from_numpy(x * factor)).numpy(), expected, rtol=1e-9, atol=1e-9)


def test_a_constant_column_of_any_size_has_scale_one():
    x = np.array([[0.0, 1e-200, -1e100, 0.1]] * 5)
    assert Standardise.fit(x).scale.tolist() == [1.0] * 4


def test_a_column_that_cannot_be_used_is_said_by_name():
    x, _ = rows()
    x[3, 0], x[:, 1] = 1e12, 1e6 + 1e-8 * x[:, 1]
    with pytest.warns(OddColumn) as noticed:
        Prepare.fit(x, ["height", "weight"])
    assert [str(each.message) for each in noticed] == [
        "column weight varies by less than 1e-12 of its size, too little to be used; subtract its offset.",
        "column height holds 1e+12, beside which most other values look alike, so it can hardly be used; correct that value, "
        "or take logarithms.",
    ]
    with pytest.warns(OddColumn, match=r"the same goes for 7 more columns") as noticed:
        Prepare.fit(np.repeat(x[:, :1], 8, 1))
    assert len(noticed) == 5


def test_long_tails_and_rare_values_are_nothing_odd():
    random = np.random.default_rng(0)
    x = np.stack([random.lognormal(0, 2, 500), random.standard_cauchy(500), random.random(500) < 0.01], 1).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Prepare.fit(x)


def test_a_new_value_that_is_too_large_is_noted_and_not_taken_for_a_number():
    encoding = Encoding("ill", ("height",), {})
    frame = pd.DataFrame({"height": [1.0, 1e308, -1e200, np.inf, 1e150]})
    x, notes = encoding.rows(frame)
    np.testing.assert_array_equal(np.isnan(x[:, 0]), [False, True, True, True, False])
    assert notes == [
        "",
        "height is '1e+308', too large a number",
        "height is '-1e+200', too large a number",
        "height is 'inf', not a finite number",
        "",
    ]
    whole = pd.DataFrame({"height": pd.Series([1, 10**400, None], dtype=object)})
    x, notes = encoding.rows(whole)
    np.testing.assert_array_equal(np.isnan(x[:, 0]), [False, True, True])
    assert notes[1].endswith("too large a number")
    with pytest.raises(ValueError, match=r"column height holds .*too large"):
        columns.refuse_other_kinds(whole["height"])


def test_whole_numbers_that_become_equal_are_said():
    frame = pd.DataFrame({"code": 2**60 + np.arange(30) % 7, "a": np.arange(30) % 5, "ill": np.arange(30) % 2})
    _, notes = Encoding.of(frame, "ill")
    assert any(
        note.startswith("column code holds whole numbers beyond 2^53, of which some become equal") for note in notes
    )
    _, notes = Encoding.of(frame.assign(code=2**60 + 2**20 * (np.arange(30) % 7)), "ill")
    assert notes == []


@pytest.mark.parametrize("kind", [np.longdouble, np.float16, object, ">f8", ">i4", np.uint64])
def test_numbers_of_every_type_are_rows(kind):
    x, y = rows()
    x = np.abs(np.round(x * 8) + 40)
    expected = OnePassClassifier("ensemble", hidden=(8,), epochs=2, random_state=0).fit(x, y).predict_proba(x)
    found = OnePassClassifier("ensemble", hidden=(8,), epochs=2, random_state=0).fit(x.astype(kind), y)
    np.testing.assert_array_equal(found.predict_proba(x.astype(kind)), expected)


def test_a_structured_array_is_refused():
    x = np.zeros(60, dtype=[("a", "f8"), ("b", "f8")])
    with pytest.raises(ValueError, match="got a structured array"):
        OnePassClassifier("ensemble").fit(x, np.arange(60) % 2)


def test_a_text_in_one_of_two_columns_of_one_name_is_found():
    frame = pd.DataFrame([[1.0, "x"], [2.0, "y"]], columns=["a", "a"])
    with pytest.raises(ValueError, match="column a holds 'x'"):
        OnePassClassifier("ensemble").fit(frame, [0, 1])
