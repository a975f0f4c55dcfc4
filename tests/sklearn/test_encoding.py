"""How columns become numbers, and what can be wrong with them."""

import numpy as np
import pandas as pd
import pytest

from opu.sklearn.encoding import Encoding


@pytest.fixture
def frame():
    return pd.DataFrame(
        {"age": [30, 41, 52, 63], "colour": ["red", "blue", "red", "green"], "ill": [0, 1, 0, 1], "site": ["x"] * 4}
    )


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


def test_each_mistake_in_a_column_is_named(frame):
    with pytest.raises(ValueError, match=r"the target Ill is not in the table.* Did you mean ill\?"):
        Encoding.of(frame, "Ill")
    with pytest.raises(ValueError, match="target ill is missing in 1 of 4 rows"):
        Encoding.of(frame.assign(ill=[0, None, 1, 1]), "ill")
    with pytest.raises(ValueError, match="column age holds infinite values"):
        Encoding.of(frame.assign(age=[1, np.inf, 3, 2]), "ill")
    with pytest.raises(ValueError, match="column age holds text where numbers belong: 'old' in row 3"):
        Encoding.of(frame.assign(age=["30", "41", "old", "63"]), "ill")
    with pytest.raises(ValueError, match="every one is the same in all rows"):
        Encoding.of(frame[["site", "ill"]], "ill")
    many = pd.DataFrame({"name": [f"person {i}" for i in range(60)], "ill": [0, 1] * 30})
    with pytest.raises(
        ValueError, match=r"column name holds 60 different texts, such as 'person 0'.* --drop name, .* --id name, "
    ):
        Encoding.of(many, "ill")
    days = many.assign(name=pd.date_range("2020", periods=60).astype(str))
    with pytest.raises(ValueError, match="They look like dates: numbers, such as days"):
        Encoding.of(days, "ill")
    with pytest.raises(ValueError, match=r"--drop: column nmae is not in the table.* Did you mean name\?"):
        Encoding.of(many, "ill", drop=["nmae"])
    with pytest.raises(ValueError, match="--id names the target ill, which is needed"):
        Encoding.of(many, "ill", ids=["ill"])
    with pytest.raises(ValueError, match="column name is in --drop and in --id"):
        Encoding.of(many, "ill", ids=["name"], drop=["name"])


def test_new_rows_must_fit_the_encoding(frame):
    encoding, _ = Encoding.of(frame, "ill")
    with pytest.raises(
        ValueError, match=r"column age is not in the table, which has Age, colour, .* Did you mean Age\?"
    ):
        encoding.matrix(frame.rename(columns={"age": "Age"}))
    with pytest.raises(ValueError, match="column age holds text where numbers belong: 'x' in row 1"):
        encoding.matrix(pd.concat([frame, frame]).assign(age="x"))


def test_a_missing_text_is_a_category_and_a_missing_number_stays_missing(frame):
    gaps = frame.assign(age=[30, None, 52, 63], colour=["red", None, "red", "green"])
    encoding, notes = Encoding.of(gaps, "ill")
    assert encoding.features == ["age", "colour=green", "colour=red", "colour=missing"]
    rows, said = encoding.rows(gaps)
    np.testing.assert_array_equal(rows[1], [np.nan, 0, 0, 1])
    assert said == [""] * 4  # as in training
    assert notes[-1].startswith("values are missing in columns age (1), colour (1) of 4 rows; numbers were imputed")
    assert encoding.columns == [{"name": "age"}, {"name": "colour", "categories": ["green", "red", None]}]
    assert Encoding.from_dict(encoding.as_dict()) == encoding


def test_surprises_in_new_rows_are_noted_and_encoded_as_missing(frame):
    encoding, _ = Encoding.of(frame, "ill")
    new = frame.assign(age=[None, "41", "old", "inf"], colour=["red", "pink", None, "green"])
    rows, notes = encoding.rows(new)
    assert notes == [
        "age is missing",
        "colour is 'pink', unseen",
        "age is 'old', not a finite number; colour is missing",
        "age is 'inf', not a finite number",
    ]
    nan = np.nan
    expected = [[nan, 0, 0, 1], [41, nan, nan, nan], [nan, nan, nan, nan], [nan, 0, 1, 0]]
    np.testing.assert_array_equal(rows, expected)


def test_truth_values_are_numbers_also_with_gaps(frame):
    encoding, _ = Encoding.of(frame.assign(age=[True, False, True, False]), "ill")
    assert encoding.numbers == ("age",)
    rows, notes = encoding.rows(frame.assign(age=[True, None, False, True]))
    np.testing.assert_array_equal(rows[:, 0], [1, np.nan, 0, 1])
    assert notes[1] == "age is missing"


def test_columns_are_dropped_or_passed_through_and_ids_are_noticed():
    rows = np.arange(30)
    table = pd.DataFrame(
        {"number": rows + 1, "name": [f"p{i}" for i in rows], "a": rows % 7, "gone": None, "ill": rows % 2}
    )
    _, notes = Encoding.of(table, "ill")
    assert [note.split(" looks")[0] for note in notes[:2]] == [
        "column number differs in every row and",
        "column name differs in every row and",
    ]
    assert "--drop number" in notes[0]
    assert "column gone is missing in every row and is left out." in notes
    encoding, notes = Encoding.of(table, "ill", drop=["number", "gone"], ids=["name"])
    assert (notes, encoding.features, encoding.ids) == ([], ["a"], ("name",))
    assert encoding.unused(table.assign(more=1)) == ["more"]


def test_an_encoding_from_before_ids_and_gaps_is_read():
    old = {"target": "ill", "numbers": ["age"], "texts": {"colour": ["blue", "red"]}}
    assert Encoding.from_dict(old) == Encoding("ill", ("age",), {"colour": ("blue", "red")})
