"""Tables from files: what can be wrong with them, and how they become numbers."""

import numpy as np
import pandas as pd
import pytest

from opu.sklearn.frames import Encoding, read_frame


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


def test_numbers_stay_and_texts_become_one_number_each(frame):
    encoding, notes = Encoding.of(frame, "ill")
    assert notes == ["column site is the same in every row and is left out."]
    assert encoding.features == ["age", "colour=blue", "colour=green", "colour=red"]
    expected = [[30, 0, 0, 1], [41, 1, 0, 0], [52, 0, 0, 1], [63, 0, 1, 0]]
    np.testing.assert_array_equal(encoding.matrix(frame), expected)
    assert encoding.unused(frame.assign(extra=1)) == ["site", "extra"]
    assert Encoding.from_dict(encoding.as_dict()) == encoding


def test_the_order_of_columns_does_not_matter(frame):
    encoding, _ = Encoding.of(frame, "ill")
    np.testing.assert_array_equal(encoding.matrix(frame[["colour", "age"]]), encoding.matrix(frame))


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


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            pd.date_range("2020", periods=4),
            "column age holds neither numbers nor texts but Timestamp, such as '2020-01-01",
        ),
        ([[1, 2]] * 4, r"neither numbers nor texts but list, such as '\[1, 2\]'"),
        (["30", "41", "52", "63"], "column age holds numbers that are stored as texts"),
    ],
)
def test_what_is_neither_a_number_nor_a_category_is_refused(values, message, frame):
    with pytest.raises(ValueError, match=message):
        Encoding.of(frame.assign(age=values), "ill")


def test_a_column_may_be_called_na(tmp_path):
    (tmp_path / "table.csv").write_text("NA,null,ill\n1,2,0\n3,4,1\n")
    assert list(read_frame(tmp_path / "table.csv").columns) == ["NA", "null", "ill"]


def test_each_mistake_in_a_column_is_named(frame):
    with pytest.raises(ValueError, match=r"the target Ill is not in the table.* Did you mean ill\?"):
        Encoding.of(frame, "Ill")
    with pytest.raises(ValueError, match="target ill is missing in 1 of 4 rows"):
        Encoding.of(frame.assign(ill=[0, None, 1, 1]), "ill")
    with pytest.raises(ValueError, match="column age is missing in 2 of 4 rows"):
        Encoding.of(frame.assign(age=[1, None, None, 2]), "ill")
    with pytest.raises(ValueError, match="column age holds text where numbers belong: 'old' in row 3"):
        Encoding.of(frame.assign(age=["30", "41", "old", "63"]), "ill")
    with pytest.raises(ValueError, match="every one is the same in all rows"):
        Encoding.of(frame[["site", "ill"]], "ill")
    many = pd.DataFrame({"name": [f"person {i}" for i in range(60)], "ill": [0, 1] * 30})
    with pytest.raises(ValueError, match="column name holds 60 different texts, such as 'person 0'"):
        Encoding.of(many, "ill")


def test_new_rows_must_fit_the_encoding(frame):
    encoding, _ = Encoding.of(frame, "ill")
    with pytest.raises(
        ValueError, match=r"column age is not in the table, which has Age, colour, .* Did you mean Age\?"
    ):
        encoding.matrix(frame.rename(columns={"age": "Age"}))
    with pytest.raises(
        ValueError, match="column colour holds 'pink', which the model has not seen; it knows blue, green, red"
    ):
        encoding.matrix(frame.assign(colour="pink"))
    with pytest.raises(ValueError, match="column age holds text where numbers belong: 'x' in row 1"):
        encoding.matrix(frame.assign(age="x"))
    with pytest.raises(ValueError, match="column age holds infinite values"):
        encoding.matrix(frame.assign(age=np.inf))
