"""Tables keep every cell, whatever the width of the terminal."""

import io

import pytest
from rich.console import Console

from opu.tables import markdown_table, print_table

HEADER, ROWS = ["to detect", "teacher", "N"], [["errors", "98.7 (E)", "98.5"], ["held out class", "96.4 (MI)", "9.1"]]


@pytest.mark.parametrize("width", [20, 80])
def test_a_table_is_not_cut_and_numbers_are_aligned_to_the_right(width):
    file = io.StringIO()
    print_table(Console(file=file, width=width), HEADER, ROWS, title="AUROC in percent")
    title, *lines = (line.rstrip() for line in file.getvalue().splitlines() if line.strip(" ─"))
    assert title == "AUROC in percent"
    assert [line.split("  ")[0].strip() for line in lines] == ["to detect", "errors", "held out class"]
    assert all(cell in line for cells, line in zip([HEADER, *ROWS], lines, strict=True) for cell in cells)
    assert len({len(line) for line in lines}) == 1


def test_brackets_are_printed_and_not_read_as_markup():
    file = io.StringIO()
    print_table(Console(file=file, width=80), ["[bold]a", "b"], [["[/red]", "[x]"]], title="[i]t")
    assert all(text in file.getvalue() for text in ("[bold]a", "[/red]", "[x]", "[i]t"))


def test_markdown():
    assert markdown_table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
