"""Text of users and files reaches the terminal as text: no markup, no emoji codes, no control characters."""

import ast
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from opu.tables import print_table
from opu.terminal import printable, say

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for folder in ("src/opu", "reproduction", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
# The only files that may call a console's methods, and the only ones of the library that may call print.
DOORS = {"src/opu/terminal.py", "src/opu/tables.py"}
PLAIN = {"src/opu/cli/version.py", "src/opu/cli/entry.py"}
HOSTILE = (
    "[/red] [bold]x[/bold] [link=http://a]b[/link] :smile: \x1b[31m \x1b]0;title\x07 \r\n\t\x00 \u202e \x9b2J \udcff"
)


def printed(text, **options):
    file = io.StringIO()
    say(Console(file=file, width=10_000, force_terminal=True, color_system=None), text, **options)
    return file.getvalue()


def test_markup_emoji_and_control_characters_are_shown_as_they_are():
    shown = r"[/red] [bold]x[/bold] [link=http://a]b[/link] :smile: \x1b[31m \x1b]0;title\x07 \r\n\t\x00 \u202e \x9b2J \udcff"
    assert printed(HOSTILE) == shown + "\n"
    file = io.StringIO()
    print_table(Console(file=file, width=400), [HOSTILE, "b"], [["a", HOSTILE]], title=HOSTILE)
    assert file.getvalue().count(shown) == 3


@given(st.text())
def test_nothing_but_characters_that_can_be_seen_is_printed(text):
    shown = printable(text)
    assert all(
        sign.isprintable() or (sign.isspace() and sign not in "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85") for sign in shown
    )
    assert printable(shown) == shown
    shown.encode()  # no half of a surrogate pair is left, which no terminal takes
    assert printed(text) == shown + "\n" or len(shown) > 9_000 or shown != shown.rstrip()


@given(st.text(st.characters(categories=["L", "N", "P", "S"])))
def test_visible_text_is_left_as_it_is(text):
    assert printable(text) == text


def test_letters_that_a_terminal_cannot_write_are_spelt_out():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    say(Console(file=file, width=80), "größe")
    file.flush()
    assert file.buffer.getvalue() == b"gr\\xf6\\xdfe\n"


def calls(path):
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]


def named(call):
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_everything_is_printed_through_one_door(path):
    place = path.relative_to(ROOT).as_posix()
    for call in calls(path):
        where = f"{place}, line {call.lineno}: {ast.unparse(call)}"
        method = isinstance(call.func, ast.Attribute)
        if method and named(call) in ("print", "rule", "status", "input", "print_json") and place not in DOORS:
            raise AssertionError(f"{where}: use opu.terminal.say")
        if not method and named(call) == "print" and place.startswith("src/") and place not in PLAIN:
            raise AssertionError(f"{where}: use opu.terminal.say")
        if named(call) == "echo":
            raise AssertionError(f"{where}: use opu.terminal.say")
        if named(call) == "track":
            assert isinstance(call.args[1], ast.Constant), f"{where}: a description is markup, so it must be a constant"
        if named(call) == "TextColumn" and not isinstance(call.args[0], ast.Constant):
            raise AssertionError(f"{where}: the text of a column is markup, so it must be a constant")
        if named(call) == "TextColumn" and "{task" in call.args[0].value:
            assert ast.unparse(call).endswith("markup=False)"), f"{where}: a description is markup; add markup=False"


def test_the_law_would_find_what_it_forbids(tmp_path):
    path = tmp_path / "new.py"
    path.write_text('console.print(f"{name}", markup=False)')
    assert [named(call) for call in calls(path)] == ["print"]
