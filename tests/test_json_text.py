"""Texts from files: what json can say comes back, and what means two things or too much is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opu.json_text import MOST_CHARACTERS, parse, shown

numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(values)
def test_what_json_can_say_comes_back(value):
    assert parse(json.dumps(value)) == value


def test_infinite_numbers_are_taken_where_they_are_asked_for():
    assert parse("[-Infinity, 1]", constants=True) == [-float("inf"), 1]


REFUSED = {
    "[NaN]": "it holds NaN, which is no number",
    "-Infinity": "it holds -Infinity, which is no number",
    '{"a": 1, "b": 2, "a": 3}': "the name 'a' occurs twice",
    "9" * 100_000: "an integer has 100000 digits, more than 64 bits hold",
    str(2**63): "an integer has 19 digits",
    "[" * 65 + "]" * 65: "nested more than 64 levels deep",
    "[" * 100_000: "nested too deeply",
    '{"a":' * 100_000: "nested too deeply",
    " " * MOST_CHARACTERS + "1": "it has 8,388,609 characters, and at most 8,388,608 are read",
    "{": "Expecting",
    "": "Expecting value",
}


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_what_means_two_things_or_too_much_is_refused(text):
    with pytest.raises(ValueError, match=REFUSED[text]):
        parse(text)


def test_64_levels_are_read():
    text = "[" * 64 + "]" * 64
    assert parse(text) == json.loads(text)


@pytest.mark.parametrize("value", ["a\nb\ud800", "x" * 10**6, [1] * 10**6, {"a": "\n"}, None], ids=range(5))
def test_values_in_sentences_are_short_and_on_one_line(value):
    assert len(shown(value)) < 70
    assert "\n" not in shown(value)
    shown(value).encode("ascii")
