"""The result of a run: five true lines, and a picture of its curves."""

import math
import sys

import pytest

from opu.distillation import Distillation


@pytest.fixture
def result():
    return Distillation([5.0, 3.0, 2.0, 2.0, 1.0, 0.5], [4.0, 1.25, 1.5], 2, held_out_medians=[3.5, 1.0, 1.75])


def test_it_prints_in_five_lines_with_its_own_numbers(result):
    assert repr(result).splitlines() == [
        "Distillation: 6 steps in 3 epochs",
        "  loss      4 -> 0.75 (means of epoch 1 -> epoch 3)",
        "  held out  mean 4 -> 1.25, median 3.5 -> 1 (epoch 1 -> kept)",
        "  kept      epoch 2 of 3",
        "  warnings  none",
    ]
    assert str(result) == repr(result)


def test_the_last_epoch_no_held_out_inputs_and_warnings_are_named():
    text = repr(Distillation([2.0, 1.0], [math.nan, math.nan], 2, ["This happened.", "That too."]))
    assert "held out  no inputs" in text
    assert "epoch 2 of 2, the last" in text
    assert text.splitlines()[4:] == ["  warnings  This happened. That too."]


def test_a_run_that_has_not_begun_prints_too():
    assert repr(Distillation()) == "Distillation: 0 steps in 0 epochs"


def test_curves_are_drawn_by_epoch_with_the_kept_one_marked(result, tmp_path):
    drawing = result.plot(tmp_path / "new" / "curves.png")
    (axes,) = drawing.axes
    assert (tmp_path / "new" / "curves.png").stat().st_size > 0
    curves = {line.get_label(): [*zip(*line.get_data(), strict=True)] for line in axes.lines}
    assert curves["loss, mean of an epoch"] == [(1, 4.0), (2, 2.0), (3, 0.75)]
    assert curves["held-out inputs, mean"] == [(1, 4.0), (2, 1.25), (3, 1.5)]
    assert curves["held-out inputs, median"] == [(1, 3.5), (2, 1.0), (3, 1.75)]
    assert curves["kept: epoch 2 of 3"][0][0] == 2
    assert axes.get_xlabel() == "epoch"
    assert [text.get_text() for text in drawing.legends[0].get_texts()] == list(curves)


def test_there_is_no_curve_for_held_out_inputs_that_were_not_there():
    (axes,) = Distillation([2.0, 1.0], [math.nan, math.nan], 2).plot().axes
    assert [line.get_label() for line in axes.lines] == ["loss, mean of an epoch", "kept: epoch 2 of 2"]


def test_first_epochs_far_above_do_not_flatten_the_curves():
    values = [1e6, 1e5, *(1 + 1 / t for t in range(1, 99))]
    (axes,) = Distillation(values, values, 100).plot().axes
    assert axes.get_ylim()[1] < 10


def test_without_matplotlib_one_sentence_says_what_to_install(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        ImportError, match=r"Distillation.plot needs the package matplotlib; install it with: .*\[plot\]"
    ):
        result.plot()
