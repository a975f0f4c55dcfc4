"""Tables in files: what can be wrong with them, and how they are read and written."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opu.sklearn.frames import check_output, read_frame, write_frame


@pytest.fixture
def frame():
    return pd.DataFrame(
        {"age": [30, 41, 52, 63], "colour": ["red", "blue", "red", "green"], "ill": [0, 1, 0, 1], "site": ["x"] * 4}
    )


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_a_table_is_read_whole(ending, frame, tmp_path):
    path = tmp_path / f"table.{ending}"
    if ending == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if ending == "tsv" else ",")
    again = read_frame(path)
    assert list(again.columns) == ["age", "colour", "ill", "site"]
    assert again["age"].tolist() == [30, 41, 52, 63]


def test_what_is_no_table_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no file"):
        read_frame(tmp_path / "none.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ValueError, match="could not be read as a table"):
        read_frame(tmp_path / "empty.csv")
    (tmp_path / "header.csv").write_text("a,b\n")
    with pytest.raises(ValueError, match="holds no rows"):
        read_frame(tmp_path / "header.csv")
    (tmp_path / "table.xlsx").write_text("a")
    with pytest.raises(ValueError, match=r"must end in \.csv, \.tsv or \.parquet; got \.xlsx"):
        read_frame(tmp_path / "table.xlsx")
    (tmp_path / "broken.parquet").write_text("not parquet")
    with pytest.raises(ValueError, match="could not be read as a table"):
        read_frame(tmp_path / "broken.parquet")


def test_a_file_without_names_is_noticed_and_can_be_read(tmp_path):
    path = tmp_path / "raw.CSV"
    path.write_text("6,148,1\n1,85,0\n8,183,1\n")
    with pytest.raises(ValueError, match=r"first line of .* looks like data, not like column names \(6, 148, 1, "):
        read_frame(path)
    frame = read_frame(path, header=False)
    assert list(frame.columns) == ["1", "2", "3"]
    assert frame["2"].tolist() == [148, 85, 183]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,a,ill\n1,2,0\n", "column names must differ; 'a' occurs more than once"),
        ("a;b\n1;2\n", "separated by semicolons"),
        (",a,ill\n0,1,0\n", "column 1 of .* has no name"),
        ("a,ill\n1,2,0\n", "first line has 2 names and its rows have more values"),
    ],
)
def test_names_that_cannot_be_are_refused(text, message, tmp_path):
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_frame(tmp_path / "table.csv")


def test_a_column_may_be_called_na(tmp_path):
    (tmp_path / "table.csv").write_text("NA,null,ill\n1,2,0\n3,4,1\n")
    assert list(read_frame(tmp_path / "table.csv").columns) == ["NA", "null", "ill"]


def test_any_separator_is_read_and_written(frame, tmp_path):
    for separator, shown in ((";", ";"), ("|", "|"), ("tab", "\t")):
        frame.to_csv(tmp_path / "table.csv", index=False, sep=shown)
        again = read_frame(tmp_path / "table.csv", separator=separator)
        pd.testing.assert_frame_equal(again, frame, check_dtype=False)
        write_frame(tmp_path / "again.csv", again, separator)
        assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "table.csv").read_bytes()


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_what_is_written_is_read_again(ending, frame, tmp_path):
    path = tmp_path / f"table.{ending}"
    write_frame(path, frame)
    pd.testing.assert_frame_equal(read_frame(path), frame, check_dtype=False)


def test_ids_are_read_as_they_stand(tmp_path):
    (tmp_path / "table.csv").write_text("id,a\n007,1\nNA,2\n,3\n")
    assert read_frame(tmp_path / "table.csv", verbatim=["id"])["id"].tolist() == ["007", "NA", ""]
    (tmp_path / "table.csv").write_text("kind,a\n1,1\n2,2\nNA,3\n")
    kinds = read_frame(tmp_path / "table.csv", texts=["kind"])["kind"]
    assert kinds.tolist()[:2] == ["1", "2"]
    assert kinds.isna().tolist() == [False, False, True]
    assert read_frame(tmp_path / "table.csv")["a"].tolist() == [1, 2, 3]


def test_separators_that_cannot_be_are_refused(frame, tmp_path):
    frame.to_csv(tmp_path / "table.csv", index=False)
    with pytest.raises(ValueError, match="--sep must be one character such as ';' or ',', or 'tab'; got ';;'"):
        read_frame(tmp_path / "table.csv", separator=";;")
    frame.to_parquet(tmp_path / "table.parquet")
    with pytest.raises(ValueError, match="--sep is for CSV files"):
        read_frame(tmp_path / "table.parquet", separator=";")
    (tmp_path / "decimals.csv").write_text("a;b;ill\n1,5;2;0\n1;2,5;1,0\n")
    with pytest.raises(ValueError, match="separated by semicolons; add --sep ';'"):
        read_frame(tmp_path / "decimals.csv")


def test_predictions_never_replace_the_table_or_another_file_by_accident(tmp_path):
    data, out = tmp_path / "table.csv", tmp_path / "out.csv"
    data.write_text("a\n1\n")
    check_output(out, data, overwrite=False)
    out.write_text("before")
    check_output(out, data, overwrite=True)
    with pytest.raises(
        ValueError, match="exists already and was not changed; choose another --out, or add --overwrite"
    ):
        check_output(out, data, overwrite=False)
    with pytest.raises(ValueError, match="is the table itself, which was not changed"):
        check_output(data, data, overwrite=True)
    with pytest.raises(ValueError, match=r"written to \.csv, \.tsv or \.parquet; got out\.txt"):
        check_output(tmp_path / "out.txt", data, overwrite=True)


CELLS = {
    "lists": pa.array([[0] * 1000] * 4),
    "structs": pa.array([{"text": "z" * 1000}] * 4),
    "maps": pa.array([[("a", 1)]] * 4, pa.map_(pa.string(), pa.int8())),
    "matrices": pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((4, 50, 50))),
    "views of texts": pa.array(["z" * 1000] * 4, pa.string_view()),
    "views of bytes": pa.array([b"z" * 1000] * 4, pa.binary_view()),
    "texts of json": pa.array(['{"a": 1}'] * 4, pa.json_(pa.string())),
}


def test_a_parquet_file_of_numbers_times_and_texts_is_read(tmp_path):
    columns = {
        "number": pa.array([1, 2, None], pa.int16()),
        "decimal": pa.array([1, 2, 3], pa.decimal128(5, 2)),
        "day": pa.array([1, 2, 3], pa.date32()),
        "moment": pa.array([1, 2, 3], pa.timestamp("us")),
        "true": pa.array([True, False, None]),
        "text": pa.array(["a", "b", None]),
        "long text": pa.array(["a", "b", None], pa.large_string()),
        "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), tmp_path / "table.parquet")
    assert list(read_frame(tmp_path / "table.parquet").columns) == list(columns)


@pytest.mark.parametrize("cells", CELLS.values(), ids=CELLS)
def test_a_parquet_file_of_nested_columns_is_refused_before_it_is_read(cells, tmp_path, monkeypatch):
    pq.write_table(pa.table({"a": [1.0] * 4, "more": cells}), tmp_path / "table.parquet")
    monkeypatch.setattr(pd, "read_parquet", None)
    monkeypatch.setattr(pq, "read_table", None)
    with pytest.raises(
        ValueError, match=r"column more of .* holds values of type .*; a cell of a table holds one number"
    ):
        read_frame(tmp_path / "table.parquet")


def test_a_parquet_file_of_wide_values_is_refused_before_it_is_read(tmp_path, monkeypatch):
    wide = pa.array([b"z" * 10_000] * 1000, pa.binary(10_000))
    pq.write_table(pa.table({"a": [1.0] * 1000, "wide": wide}), tmp_path / "table.parquet")
    assert (tmp_path / "table.parquet").stat().st_size < 100_000
    monkeypatch.setattr("opu.sklearn.frames.LARGEST_INFLATED", 2**20)
    monkeypatch.setattr(pd, "read_parquet", None)
    with pytest.raises(ValueError, match=r"would take 10 MB of memory, from 0\.0 MB in the file"):
        read_frame(tmp_path / "table.parquet")


def test_decimals_are_counted_as_the_objects_that_they_become(tmp_path, monkeypatch):
    pq.write_table(pa.table({"a": pa.array([1] * 10_000, pa.decimal128(5, 2))}), tmp_path / "table.parquet")
    monkeypatch.setattr("opu.sklearn.frames.LARGEST_INFLATED", 2**20)
    monkeypatch.setattr(pd, "read_parquet", None)
    with pytest.raises(ValueError, match=r"would take 1 MB of memory, from 0\.0 MB in the file"):
        read_frame(tmp_path / "table.parquet")


BOMB = """if True:
    import resource, pathlib, sys
    import pandas, pyarrow.parquet
    from opu.sklearn.frames import read_frame
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        read_frame(pathlib.Path(sys.argv[1]))
    except ValueError as error:
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_nested_bomb_takes_no_memory(tmp_path):
    millions = pa.ListArray.from_arrays(pa.array([0, 20_000_000]), pa.array(np.zeros(20_000_000, np.int8)))
    pq.write_table(pa.table({"a": millions}), tmp_path / "bomb.parquet", compression="zstd")
    assert (tmp_path / "bomb.parquet").stat().st_size < 10_000
    done = subprocess.run([sys.executable, "-c", BOMB, tmp_path / "bomb.parquet"], capture_output=True, text=True)
    assert int(done.stdout) < 10, done.stderr  # megabytes
