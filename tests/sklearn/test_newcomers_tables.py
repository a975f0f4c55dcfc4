"""What a newcomer broke with own tables: lost files, shifted columns, and refusals that could not be followed."""

import sys

import numpy as np
import pandas as pd
import pytest

from opu.cli import main
from opu.distillation.kinds import FIT, MARKS
from opu.distillation.replacing import fresh_folder
from opu.sklearn import OnePassClassifier
from opu.sklearn.columns import as_numbers, refuse_texts_only, texts_of
from opu.sklearn.encoding import Encoding


def a_run(folder):
    (folder / "student").mkdir(parents=True)
    for name in (*MARKS, "student/config.json", "student/model.safetensors", "student.onnx"):
        (folder / name).write_text("old")
    return folder


@pytest.mark.parametrize("name", ["student_data.csv", "student/mine.txt", "fidelity.xlsx"])
def test_a_file_of_ones_own_is_never_overwritten(tmp_path, name):
    run = a_run(tmp_path / "run")
    (run / name).write_text("mine")
    with pytest.raises(ValueError, match=f"also holds {name}, which `opu fit` did not write"):
        fresh_folder(run, FIT, overwrite=True).__enter__()
    assert (run / name).read_text() == "mine"


@pytest.mark.parametrize("name", ["student/student", "fidelity.png", "student/model.safetensors"])
def test_nor_is_one_in_a_folder_that_has_a_name_of_ours(tmp_path, name):
    run = a_run(tmp_path / "run")
    if (run / name).exists():
        (run / name).unlink()
    (run / name).mkdir()
    (run / name / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=f"also holds {name}, which `opu fit` did not write"):
        fresh_folder(run, FIT, overwrite=True).__enter__()
    assert (run / name / "notes.txt").read_text() == "mine"


def test_a_run_is_replaced_whole(tmp_path):
    run = a_run(tmp_path / "run")
    with fresh_folder(run, FIT, overwrite=True) as folder:
        (folder / "new").write_text("new")
    assert [path.name for path in run.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_put_into_the_folder_while_a_fit_runs_is_kept_and_so_is_the_fit(tmp_path, overwrite):
    run = a_run(tmp_path / "run") if overwrite else tmp_path / "run"
    place = fresh_folder(run, FIT, overwrite=overwrite)
    folder = place.__enter__()
    (folder / "new").write_text("new")
    (run / "notes.txt").write_text("mine")
    kept = folder.with_suffix(".kept")  # which no later fit removes
    with pytest.raises(ValueError, match=rf"something was put into .* the new run is in {kept}\."):
        place.__exit__(None, None, None)
    assert (run / "notes.txt").read_text() == "mine"
    assert (kept / "new").read_text() == "new"


def opu(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["opu", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_a_table_in_its_own_output_folder_is_refused(tmp_path, monkeypatch, capsys):
    run = a_run(tmp_path / "run")
    table = run / "people.csv"
    pd.DataFrame({"a": np.arange(40) % 7, "ill": np.arange(40) % 2}).to_csv(table, index=False)
    words = ("--target", "ill", "--out", run, "--overwrite", "--teacher", "ensemble")
    assert opu(monkeypatch, "fit", table, *words) == 2
    assert "lies in the output folder" in " ".join(capsys.readouterr().err.split())
    assert table.is_file()


@pytest.mark.slow
def test_columns_without_names_are_not_read_at_another_place(tmp_path, monkeypatch, capsys):
    rows = np.random.default_rng(0).normal(size=(60, 4))
    rows[:, 0] = rows[:, 1] > 0
    np.savetxt(tmp_path / "t.csv", rows, delimiter=",")
    np.savetxt(tmp_path / "new.csv", rows[:, 1:], delimiter=",")
    words = ("--target", "1", "--no-header", "--out", tmp_path / "run", "--teacher", "ensemble", "--folds", "2")
    assert opu(monkeypatch, "fit", tmp_path / "t.csv", *words) == 0
    capsys.readouterr()
    out = ("--no-header", "--out", tmp_path / "p.csv")
    assert opu(monkeypatch, "predict", tmp_path / "run", tmp_path / "new.csv", *out) == 2
    assert "a file of 4 columns without names" in " ".join(capsys.readouterr().err.split())
    assert opu(monkeypatch, "predict", tmp_path / "run", tmp_path / "t.csv", *out) == 0


def test_a_classifier_is_not_saved_into_a_run_of_another_table(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 2))
    model = OnePassClassifier("ensemble", hidden=(8,), epochs=2, random_state=0).fit(x, x[:, 0] > 0)
    with pytest.raises(ValueError, match="holds a run of `opu fit`"):
        model.save(a_run(tmp_path / "run"))


def test_a_column_whose_variance_is_no_number_is_refused():
    x = np.random.default_rng(0).normal(size=(60, 2))
    x[0, 1] = 1e300
    with pytest.raises(ValueError, match=r"column 1 \(counted from 0\) holds values of up to 1e\+300"):
        OnePassClassifier("ensemble").fit(x, x[:, 0] > 0)


def test_truth_values_beside_a_stray_word_are_read_and_the_word_is_noted():
    column = pd.Series(["True", "maybe", "FALSE"], name="flag")
    values, odd = as_numbers(column)
    np.testing.assert_array_equal(values, [1.0, np.nan, 0.0])
    assert odd.tolist() == [1]
    encoding = Encoding("ill", ("flag",), {})
    assert encoding.rows(pd.DataFrame({"flag": ["abc"]}))[1] == ["flag is 'abc', not a finite number"]
    with pytest.raises(ValueError, match="holds text where numbers belong"):
        refuse_texts_only(pd.Series(["abc"] * 5, name="v"))


def test_decimal_commas_are_not_categories():
    with pytest.raises(ValueError, match="numbers with a decimal comma, such as '0,1'"):
        texts_of(pd.Series([f"{i},{j}" for i in range(3) for j in range(1, 9)], name="v"))


def test_ids_and_kept_columns_of_a_parquet_file_keep_all_their_digits(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=60), "case": 123456789.5 + np.arange(60), "sum": 1234567.891})
    table["ill"] = np.where(table["a"] > 0, "yes", "no")
    table.to_parquet(tmp_path / "t.parquet")
    words = ["--target", "ill", "--id", "case", "--drop", "sum", "--out", tmp_path / "run", "--teacher", "ensemble"]
    assert opu(monkeypatch, "fit", tmp_path / "t.parquet", *words, "--folds", 2) == 0
    out = tmp_path / "out.csv"
    assert opu(monkeypatch, "predict", tmp_path / "run", tmp_path / "t.parquet", "--keep", "sum", "--out", out) == 0
    found = pd.read_csv(out)
    assert found["case"].tolist() == table["case"].tolist()
    assert found["sum"].tolist() == table["sum"].tolist()


@pytest.mark.parametrize("texts", [["01", "1", "2"], ["1.0", "1", "2"]])
def test_classes_that_are_written_differently_are_not_merged(tmp_path, monkeypatch, capsys, texts):
    rng = np.random.default_rng(0)
    lines = [f"{rng.normal():.3f},{texts[number % 3]}" for number in range(60)]
    (tmp_path / "t.csv").write_text("a,kind\n" + "\n".join(lines) + "\n")
    words = ["fit", tmp_path / "t.csv", "--target", "kind", "--out", tmp_path / "run", "--teacher", "ensemble"]
    assert opu(monkeypatch, *words) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"holds {texts[0]!r} and '1', which are the same number" in said
    assert not (tmp_path / "run").exists()
