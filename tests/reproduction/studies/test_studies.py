"""Every study starts, and writes into ``results/`` only if it is told to."""

import importlib
import pkgutil
import sys
from pathlib import Path

import pytest

from reproduction import studies
from reproduction.studies.options import study_options

NAMES = [each.name for each in pkgutil.iter_modules(studies.__path__) if each.name not in ("options", "development")]


@pytest.mark.parametrize("name", NAMES)
def test_a_study_starts(name, monkeypatch, capsys):
    study = importlib.import_module(f"reproduction.studies.{name}")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as stopped:
        study.main()
    assert stopped.value.code == 0
    assert "--record" in capsys.readouterr().out


def test_results_are_written_only_if_that_is_asked_for():
    parser = study_options("What it does.", "study-any.json")
    assert parser.parse_args([]).out == Path("runs/study-any.json")
    assert parser.parse_args(["--record"]).out == Path("results/study-any.json")
    assert parser.parse_args(["--out", "elsewhere.json"]).out == Path("elsewhere.json")
