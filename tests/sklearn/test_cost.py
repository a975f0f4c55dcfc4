"""A teacher that does not suit the size of the table says so before it starts."""

import numpy as np
import pytest

from opu.choices import TABLE_TEACHERS
from opu.sklearn import OnePassClassifier, cost
from opu.sklearn.cost import COSTS, SlowTeacher, check_size


@pytest.mark.parametrize("teacher", TABLE_TEACHERS)
def test_costs_grow_with_the_table_and_small_tables_are_for_everyone(teacher):
    small, large = COSTS[teacher](768, 8, 2), COSTS[teacher](7680, 80, 2)
    assert 0 < small.seconds < large.seconds
    assert small.bytes < large.bytes
    assert check_size(teacher, 768, 8, 2) is None


def test_the_costs_that_were_measured_are_met_within_a_factor_of_three():
    measured = {  # seconds on one core
        ("polya-gamma", 1000, 10): 5.2,
        ("polya-gamma", 10_000, 10): 21,
        ("polya-gamma", 5000, 100): 63,
        ("polya-gamma", 1000, 1000): 1325,
        ("gp", 1000, 5): 26 + 57,
        ("gp", 4000, 5): 429 + 560,
        ("forest", 50_000, 10): 36,
    }
    for (teacher, rows, features), seconds in measured.items():
        assert 1 / 3 < COSTS[teacher](rows, features, 2).seconds / seconds < 3, (teacher, rows, features)


def test_a_slow_teacher_names_the_option_and_an_impossible_one_is_refused(monkeypatch):
    monkeypatch.setattr(cost, "_memory", lambda: 64e9)
    found = check_size("polya-gamma", 10_000, 2000, 2)
    assert found.startswith("the teacher polya-gamma will take about 12 hours for 10,000 rows with 2,000 features; ")
    assert found.endswith('take teacher="forest" (--teacher forest), which takes about a minute.')
    assert "and 6 fits" in check_size("polya-gamma", 10_000, 2000, 2, fits=6)
    assert "--teacher ensemble" in check_size("forest", 5_000_000, 50, 2)
    monkeypatch.setattr(cost, "_memory", lambda: 32e9)
    with pytest.raises(
        ValueError, match=r"gp needs about 64 GB of memory for 100,000 rows .*has 32 GB.*--teacher forest"
    ):
        check_size("gp", 100_000, 10, 2)
    monkeypatch.setattr(cost, "_memory", lambda: float("inf"))
    with pytest.raises(ValueError, match=r"gp would take about \d+ days for 100,000 rows"):
        check_size("gp", 100_000, 10, 2)


def test_the_estimator_warns_before_the_teacher_starts(monkeypatch):
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    monkeypatch.setattr(cost, "SLOW", 0.0)
    started = []

    def teacher(*args):
        started.append(args)
        raise RuntimeError("started")

    monkeypatch.setattr("opu.sklearn.teachers.FITTED", {"gp": teacher})
    with pytest.warns(SlowTeacher, match="the teacher gp will take"), pytest.raises(RuntimeError, match="started"):
        OnePassClassifier("gp").fit(X, y)
    assert len(started) == 1
    with pytest.raises(SlowTeacher):  # warnings are errors here, so that nothing starts
        OnePassClassifier("gp").fit(X, y)
    assert len(started) == 1
