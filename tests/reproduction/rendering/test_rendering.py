"""Tables between markers: what is filled in, what is left alone, and cells that can be worked out by hand."""

import json

import pytest

from reproduction.cells import mean_and_deviation, mean_and_range, notation
from reproduction.rendering import render

BENCH = {
    "inputs": 10_000,
    "particles": 500,
    "classes": 10,
    "seconds": 12.3,
    "environment": {"threads": 1, "cpu": "a machine"},
}


def test_text_between_markers_is_replaced_and_the_rest_stays(tmp_path):
    (tmp_path / "bench-fidelity.json").write_text(json.dumps(BENCH))
    text = "before\n<!-- table: bench-fidelity -->\nold\n<!-- end -->\nafter\n"
    rendered = render(text, tmp_path)
    sentence = "A report on 10,000 inputs with 500 particles and 10 classes takes 12 s (1 thread, a machine; "
    assert rendered == text.replace("old", f"{sentence}`python -m benchmarks.fidelity`).")
    assert render(rendered, tmp_path) == rendered


def test_symbols_are_spelt_out_under_the_table(tmp_path):
    run = {"held_out": 1, "seed": 0, "teacher": 90.0, "entropy": 91.0, "precision": 92.0, "novelty": {"1/2": 93.0}}
    (tmp_path / "study-novelty-shares.json").write_text(json.dumps({"runs": [run, {**run, "novelty": {"1/2": 95.0}}]}))
    rendered = render("<!-- table: novelty-shares -->\n<!-- end -->", tmp_path)
    assert "| **mean** | 90.0 | 91.0 | 92.0 | 94.0 |" in rendered
    assert rendered.endswith("\n\nE: predictive entropy; C: negative log-precision.\n<!-- end -->")


def test_an_unknown_table_is_refused(tmp_path):
    with pytest.raises(ValueError, match="asks for the table 'nonsense'; those that exist are demo"):
        render("<!-- table: nonsense -->\n<!-- end -->", tmp_path)


def test_cells():
    assert mean_and_deviation([1.0]) == "1.0"
    assert mean_and_deviation([1.0, 3.0]) == "2.0 ± 1.4"
    assert mean_and_range([1.0, None, 3.0]) == "2.0 (1.0 to 3.0)"
    assert mean_and_range([None]) == "no errors"
    assert notation("| BDK-E | CPU | 97.0 MI |") == "MI: mutual information."
    assert notation("nothing here") == ""
